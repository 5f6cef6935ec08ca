# Cross-entropy on VOC people and animals with DeepLabV3+ and EfficientNet-Lite0, 40 epochs.
_base_ = [
    '../_base_/segmentation.py',
    '../_base_/datasets/voc_people_animals.py',
    '../_base_/models/deeplabv3plus_efflite0.py',
]

# Crops are smaller than in the short training, which takes 160x160.
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations'),
    dict(type='RandomResize', scale=(224, 224), ratio_range=(0.8, 1.25), keep_ratio=True),
    dict(type='RandomCrop', crop_size=(128, 128), cat_max_ratio=0.9),
    dict(type='RandomFlip', prob=0.5),
    dict(type='PackSegInputs'),
]
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))

# After 40 epochs cross-entropy has learnt its 800 photographs by heart. The new head learns ten
# times as fast as the encoder.
optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=5e-4, weight_decay=0.01),
    paramwise_cfg=dict(custom_keys=dict(decode_head=dict(lr_mult=10.0))))
param_scheduler = dict(
    type='PolyLR', power=0.9, by_epoch=True, begin=0, end=40, convert_to_iter_based=True)
train_cfg = dict(by_epoch=True, max_epochs=40, val_interval=5)
auto_scale_lr = dict(base_batch_size=8, enable=False)

custom_imports = dict(
    imports=['mmcalib', 'mmcalib.paper.efficientnet_lite', 'mmpretrain.models'])

model = dict(data_preprocessor=dict(size=(128, 128)))

test_evaluator = [
    dict(type='IoUMetric', iou_metrics=['mIoU']),
    dict(
        type='CalibrationMetric',
        metrics=['ECE', 'AECE', 'ClasswiseECE', 'NLL', 'Brier', 'AUGRC', 'accuracy', 'confidence'],
        confidence_interval=0.95),
]
