# Long enough for cross-entropy to learn the noise by heart.
optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='SGD', lr=0.1, momentum=0.9, weight_decay=5e-4))
param_scheduler = dict(
    type='CosineAnnealingLR', T_max=30, by_epoch=True, begin=0, end=30)
train_cfg = dict(by_epoch=True, max_epochs=30, val_interval=1)
auto_scale_lr = dict(base_batch_size=64, enable=False)
