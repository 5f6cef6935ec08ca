# Cross-entropy on noisy digits: over-confident, the baseline to compare with.
_base_ = [
    '../_base_/classification.py',
    '../_base_/datasets/digits.py',
    '../_base_/models/resnet_digits.py',
    '../_base_/schedules/digits.py',
]
