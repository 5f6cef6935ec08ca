# Max suppression (MaxSup) on noisy digits.
# alpha is not tuned; choose it on validation data.
_base_ = '../ce/digits.py'

model = dict(
    head=dict(loss=dict(_delete_=True, type='MarginLabelSmoothingLoss', margin=0.0, alpha=0.1)))
