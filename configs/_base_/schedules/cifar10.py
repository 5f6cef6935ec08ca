# 350 epochs of SGD at batch 128: 0.1 for 150, 0.01 for 100, 0.001 for 100. The paper's text says
# "0.01" twice, an evident slip. Its published code stops after 200 epochs.
# Weight decay and gradient clipping are from the published code; the text is silent on them.
optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='SGD', lr=0.1, momentum=0.9, weight_decay=5e-4),
    clip_grad=dict(max_norm=2.0))
param_scheduler = dict(type='MultiStepLR', by_epoch=True, milestones=[150, 250], gamma=0.1)
train_cfg = dict(by_epoch=True, max_epochs=350, val_interval=1)
auto_scale_lr = dict(base_batch_size=128, enable=False)
