# ViT-B/16 at 224×224 from ImageNet-21k, with a new linear head (the paper only says ViT).
# These weights are mmpretrain's, converted from Google's; classic mmpretrain keeps the same file at
# https://download.openmmlab.com/mmclassification/v0/vit/pretrain/
pretrained = 'https://mmassets.onedl.ai/mmclassification/v0/vit/pretrain/vit-base-p16_3rdparty_pt-64xb64_in1k-224_20210928-02284250.pth'

model = dict(
    type='ImageClassifier',
    backbone=dict(
        type='VisionTransformer',
        arch='b',
        img_size=224,
        patch_size=16,
        init_cfg=dict(type='Pretrained', checkpoint=pretrained, prefix='backbone')),
    neck=None,
    head=dict(
        type='VisionTransformerClsHead',
        num_classes=10,
        in_channels=768,
        loss=dict(type='CrossEntropyLoss', loss_weight=1.0)))
