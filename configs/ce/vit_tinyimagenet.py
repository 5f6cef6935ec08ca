# Cross-entropy on Tiny-ImageNet with ViT-B/16, fine-tuned. The schedule is ours.
_base_ = [
    '../_base_/classification.py',
    '../_base_/datasets/tinyimagenet_224.py',
    '../_base_/models/vit_b16.py',
    '../_base_/schedules/vit_finetune.py',
]

model = dict(head=dict(num_classes=200))
default_hooks = dict(visualization=dict(type='VisualizationHook', enable=False))
