# Ten epochs of fine-tuning: long enough for cross-entropy to become over-confident.
_base_ = './finetune.py'

optim_wrapper = dict(optimizer=dict(lr=1e-3))
param_scheduler = dict(end=10)
train_cfg = dict(max_epochs=10)
