# DeepLabV3 with output stride 8 and a plain ResNet-50 encoder from ImageNet, as in the paper, which
# has no auxiliary head. Its library, segmentation_models.pytorch, has 256 channels as here, where
# mmseg's own configs have 512. What differs from it: there, a 1x1 convolution with dropout of 0.5
# follows the pyramid, ahead of the 3x3 one; mmseg's head has the 3x3 one alone, and then dropout
# of 0.1.
norm_cfg = dict(type='SyncBN', requires_grad=True)

model = dict(
    type='EncoderDecoder',
    data_preprocessor=dict(
        type='SegDataPreProcessor',
        mean=[123.675, 116.28, 103.53],
        std=[58.395, 57.12, 57.375],
        bgr_to_rgb=True,
        size=(512, 512),
        pad_val=0,
        seg_pad_val=255),
    backbone=dict(
        type='ResNet',
        depth=50,
        num_stages=4,
        out_indices=(0, 1, 2, 3),
        dilations=(1, 1, 2, 4),
        strides=(1, 2, 1, 1),
        norm_cfg=norm_cfg,
        norm_eval=False,
        style='pytorch',
        contract_dilation=True,
        init_cfg=dict(type='Pretrained', checkpoint='torchvision://resnet50')),
    decode_head=dict(
        type='ASPPHead',
        in_channels=2048,
        in_index=3,
        channels=256,
        dilations=(1, 12, 24, 36),
        dropout_ratio=0.1,
        num_classes=21,
        norm_cfg=norm_cfg,
        align_corners=False,
        # mmseg averages over ignored pixels unless told not to.
        loss_decode=dict(type='CrossEntropyLoss', avg_non_ignore=True)),
    train_cfg=dict(),
    test_cfg=dict(mode='whole'))
