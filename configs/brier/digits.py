# Brier loss on noisy digits.
_base_ = '../ce/digits.py'

model = dict(
    head=dict(loss=dict(_delete_=True, type='BrierLoss')))
