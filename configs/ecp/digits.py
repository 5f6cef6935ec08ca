# Explicit confidence penalty on noisy digits.
_base_ = '../ce/digits.py'

model = dict(
    head=dict(loss=dict(_delete_=True, type='ConfidencePenaltyLoss', alpha=0.1)))
