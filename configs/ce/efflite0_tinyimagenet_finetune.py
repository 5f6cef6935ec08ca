# Cross-entropy on folders of Tiny-ImageNet with EfficientNet-Lite0, fine-tuned.
_base_ = [
    '../_base_/classification.py',
    '../_base_/datasets/tinyimagenet_folder.py',
    '../_base_/models/efflite0.py',
    '../_base_/schedules/finetune_10_epochs.py',
]

model = dict(head=dict(num_classes=200))

test_evaluator = [
    dict(type='Accuracy'),
    dict(
        type='CalibrationMetric',
        metrics=[
            'ECE', 'AECE', 'ClasswiseECE', 'smECE', 'NLL', 'Brier', 'AUGRC', 'AURC', 'accuracy',
            'confidence'
        ]),
]
