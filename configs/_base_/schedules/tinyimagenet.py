# 100 epochs of SGD at batch 64: 0.1 for 40, 0.01 for 20, 0.001 for 40.
# Weight decay and gradient clipping are from the published code; the text is silent on them.
optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='SGD', lr=0.1, momentum=0.9, weight_decay=5e-4),
    clip_grad=dict(max_norm=2.0))
param_scheduler = dict(type='MultiStepLR', by_epoch=True, milestones=[40, 60], gamma=0.1)
train_cfg = dict(by_epoch=True, max_epochs=100, val_interval=1)
auto_scale_lr = dict(base_batch_size=64, enable=False)
