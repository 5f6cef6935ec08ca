# An mmsegmentation experiment: mIoU selects the checkpoint, as in the paper.
_base_ = './runtime.py'

default_scope = 'mmseg'
default_hooks = dict(
    checkpoint=dict(save_best='mIoU', rule='greater'),
    reliability_diagram=dict(type='ReliabilityDiagramHook', splits=['test']),
    confidence_map=dict(type='ConfidenceMapHook', interval=200, worst=4))
visualizer = dict(
    type='SegLocalVisualizer', vis_backends=[dict(type='LocalVisBackend')], name='visualizer')

val_evaluator = [
    dict(type='IoUMetric', iou_metrics=['mIoU']),
    dict(type='CalibrationMetric', metrics=['ECE', 'AECE']),
]
test_evaluator = val_evaluator
