# 30 epochs of SGD, one cycle up to 0.2: not the paper's schedule, but half an hour on a CPU.
optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='SGD', lr=0.2, momentum=0.9, weight_decay=5e-4))
param_scheduler = dict(
    type='OneCycleLR', eta_max=0.2, total_steps=30, by_epoch=True, convert_to_iter_based=True)
train_cfg = dict(by_epoch=True, max_epochs=30, val_interval=5)
auto_scale_lr = dict(base_batch_size=128, enable=False)
