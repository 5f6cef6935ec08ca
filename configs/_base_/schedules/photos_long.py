# 40 epochs of fine-tuning on smaller crops, for a CPU: until cross-entropy has learnt its 800
# photographs by heart. The new head learns ten times as fast as the encoder.
optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=5e-4, weight_decay=0.01),
    paramwise_cfg=dict(custom_keys=dict(decode_head=dict(lr_mult=10.0))))
param_scheduler = dict(
    type='PolyLR', power=0.9, by_epoch=True, begin=0, end=40, convert_to_iter_based=True)
train_cfg = dict(by_epoch=True, max_epochs=40, val_interval=5)
auto_scale_lr = dict(base_batch_size=8, enable=False)
