# Cross-entropy on VOC people and animals with DeepLabV3+ and EfficientNet-Lite0, 40 epochs.
_base_ = [
    '../_base_/segmentation.py',
    '../_base_/datasets/voc_people_animals_128.py',
    '../_base_/models/deeplabv3plus_efflite0.py',
    '../_base_/schedules/photos_long.py',
]

custom_imports = dict(imports=['mmcalib', 'mmpretrain.models'])

model = dict(data_preprocessor=dict(size=(128, 128)))

test_evaluator = [
    dict(type='IoUMetric', iou_metrics=['mIoU']),
    dict(
        type='CalibrationMetric',
        metrics=['ECE', 'AECE', 'ClasswiseECE', 'NLL', 'Brier', 'AUGRC', 'accuracy', 'confidence'],
        confidence_interval=0.95),
]
