# What every experiment shares. `default_scope` is set by the model.
custom_imports = dict(imports=['mmcalib'], allow_failed_imports=False)

default_hooks = dict(
    timer=dict(type='IterTimerHook'),
    logger=dict(type='LoggerHook', interval=50),
    param_scheduler=dict(type='ParamSchedulerHook'),
    # Two, since the toolboxes' own tools remove the oldest before the next is written.
    checkpoint=dict(type='CheckpointHook', interval=1, max_keep_ckpts=2),
    sampler_seed=dict(type='DistSamplerSeedHook'))

env_cfg = dict(
    cudnn_benchmark=False,
    mp_cfg=dict(mp_start_method='fork', opencv_num_threads=0),
    dist_cfg=dict(backend='nccl'))

val_cfg = dict()
test_cfg = dict()

log_level = 'INFO'
load_from = None
resume = False
randomness = dict(seed=0)
