# Cross-entropy on VOC people and animals with DeepLabV3+ and EfficientNet-Lite0.
_base_ = [
    '../_base_/segmentation.py',
    '../_base_/datasets/voc_people_animals.py',
    '../_base_/models/deeplabv3plus_efflite0.py',
]

# Eight epochs are few enough for a CPU. The new head learns ten times as fast as the encoder.
optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=2e-4, weight_decay=0.01),
    paramwise_cfg=dict(custom_keys=dict(decode_head=dict(lr_mult=10.0))))
param_scheduler = dict(
    type='PolyLR', power=0.9, by_epoch=True, begin=0, end=8, convert_to_iter_based=True)
train_cfg = dict(by_epoch=True, max_epochs=8, val_interval=4)
auto_scale_lr = dict(base_batch_size=8, enable=False)

# mmsegmentation finds the backbone of mmpretrain once it is imported.
custom_imports = dict(
    imports=['mmcalib', 'mmcalib.paper.efficientnet_lite', 'mmpretrain.models'])

test_evaluator = [
    dict(type='IoUMetric', iou_metrics=['mIoU']),
    dict(
        type='CalibrationMetric',
        metrics=['ECE', 'AECE', 'ClasswiseECE', 'NLL', 'Brier', 'AUGRC', 'accuracy', 'confidence'],
        confidence_interval=0.95),
]
