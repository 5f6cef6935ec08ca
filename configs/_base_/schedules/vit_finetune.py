# Ours: the paper gives no schedule for ViT, and its published code none either.
# 10 epochs of SGD at batch 128, the learning rate warmed up to 0.01 over the first and brought to 0
# by a cosine. Momentum, clipping at 1 and no weight decay are the ViT paper's for fine-tuning
# (Dosovitskiy et al., ICLR 2021), which has batches of 512 and chooses the rate per data set.
optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='SGD', lr=0.01, momentum=0.9),
    clip_grad=dict(max_norm=1.0))
param_scheduler = [
    dict(
        type='LinearLR',
        start_factor=1e-3,
        by_epoch=True,
        begin=0,
        end=1,
        convert_to_iter_based=True),
    dict(
        type='CosineAnnealingLR',
        by_epoch=True,
        begin=1,
        end=10,
        T_max=9,
        convert_to_iter_based=True),
]
train_cfg = dict(by_epoch=True, max_epochs=10, val_interval=1)
auto_scale_lr = dict(base_batch_size=128, enable=False)
