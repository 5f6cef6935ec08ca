# Cross-entropy on CIFAR-10 with ViT-B/16, fine-tuned. The schedule is ours.
_base_ = [
    '../_base_/classification.py',
    '../_base_/datasets/cifar10_224.py',
    '../_base_/models/vit_b16.py',
    '../_base_/schedules/vit_finetune.py',
]

default_hooks = dict(visualization=dict(type='VisualizationHook', enable=False))
