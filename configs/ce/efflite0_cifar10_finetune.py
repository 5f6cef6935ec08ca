# Cross-entropy on a fifth of CIFAR-10 with EfficientNet-Lite0, fine-tuned.
_base_ = [
    '../_base_/classification.py',
    '../_base_/datasets/cifar10_folder_96.py',
    '../_base_/models/efflite0.py',
    '../_base_/schedules/finetune.py',
]
