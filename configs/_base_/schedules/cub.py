# 200 epochs of SGD at batch 16, the learning rate divided by 10 every 80 epochs.
# The paper names no weight decay here; 5e-4 is the published code's for CIFAR-10.
optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='SGD', lr=0.1, momentum=0.9, weight_decay=5e-4))
param_scheduler = dict(type='MultiStepLR', by_epoch=True, milestones=[80, 160], gamma=0.1)
train_cfg = dict(by_epoch=True, max_epochs=200, val_interval=1)
auto_scale_lr = dict(base_batch_size=16, enable=False)
