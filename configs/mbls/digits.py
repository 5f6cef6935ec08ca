# Margin-based label smoothing on noisy digits.
_base_ = '../ce/digits.py'

model = dict(
    head=dict(loss=dict(_delete_=True, type='MarginLabelSmoothingLoss', margin=8.0, alpha=0.1)))
