# Eight epochs of fine-tuning, for a CPU; the new head learns ten times as fast as the encoder.
optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=2e-4, weight_decay=0.01),
    paramwise_cfg=dict(custom_keys=dict(decode_head=dict(lr_mult=10.0))))
param_scheduler = dict(
    type='PolyLR', power=0.9, by_epoch=True, begin=0, end=8, convert_to_iter_based=True)
train_cfg = dict(by_epoch=True, max_epochs=8, val_interval=4)
auto_scale_lr = dict(base_batch_size=8, enable=False)
