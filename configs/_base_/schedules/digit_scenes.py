# Long enough for cross-entropy to learn the noise by heart.
optim_wrapper = dict(type='OptimWrapper', optimizer=dict(type='Adam', lr=0.01))
param_scheduler = dict(type='CosineAnnealingLR', T_max=40, by_epoch=True, begin=0, end=40)
train_cfg = dict(by_epoch=True, max_epochs=40, val_interval=2)
auto_scale_lr = dict(base_batch_size=4, enable=False)
