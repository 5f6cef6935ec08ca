# 100 epochs of Adam at batch 128, the learning rate divided by 10 after 50. The paper names no
# weight decay.
optim_wrapper = dict(
    type='OptimWrapper', optimizer=dict(type='Adam', lr=1e-3, betas=(0.9, 0.999)))
param_scheduler = dict(type='MultiStepLR', by_epoch=True, milestones=[50], gamma=0.1)
train_cfg = dict(by_epoch=True, max_epochs=100, val_interval=1)
auto_scale_lr = dict(base_batch_size=128, enable=False)
