# Long enough for cross-entropy to learn the noise by heart.
optim_wrapper = dict(type='OptimWrapper', optimizer=dict(type='Adam', lr=0.005))
param_scheduler = dict(type='CosineAnnealingLR', T_max=30, by_epoch=True, begin=0, end=30)
train_cfg = dict(by_epoch=True, max_epochs=30, val_interval=5)
auto_scale_lr = dict(base_batch_size=64, enable=False)
