# Cross-entropy on a fifth of CIFAR-10 with a small ResNet: half an hour on a CPU core.
_base_ = [
    '../_base_/classification.py',
    '../_base_/datasets/cifar10_folder.py',
    '../_base_/models/resnet14_cifar.py',
    '../_base_/schedules/cifar10_short.py',
]
