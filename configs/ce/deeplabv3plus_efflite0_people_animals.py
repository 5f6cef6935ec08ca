# Cross-entropy on VOC people and animals with DeepLabV3+ and EfficientNet-Lite0.
_base_ = [
    '../_base_/segmentation.py',
    '../_base_/datasets/voc_people_animals.py',
    '../_base_/models/deeplabv3plus_efflite0.py',
    '../_base_/schedules/photos_short.py',
]

# mmsegmentation finds the backbone of mmpretrain once it is imported.
custom_imports = dict(imports=['mmcalib', 'mmpretrain.models'])

test_evaluator = [
    dict(type='IoUMetric', iou_metrics=['mIoU']),
    dict(
        type='CalibrationMetric',
        metrics=['ECE', 'AECE', 'ClasswiseECE', 'NLL', 'Brier', 'AUGRC', 'accuracy', 'confidence'],
        confidence_interval=0.95),
]
