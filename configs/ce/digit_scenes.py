# Cross-entropy on segmented digit scenes.
_base_ = [
    '../_base_/segmentation.py',
    '../_base_/datasets/digit_scenes.py',
    '../_base_/models/unet_digit_scenes.py',
    '../_base_/schedules/digit_scenes.py',
]
