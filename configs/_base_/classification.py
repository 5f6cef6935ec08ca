# An mmpretrain experiment: top-1 selects the checkpoint, as in the paper.
_base_ = './runtime.py'

default_scope = 'mmpretrain'
default_hooks = dict(
    checkpoint=dict(save_best='accuracy/top1', rule='greater'),
    reliability_diagram=dict(type='ReliabilityDiagramHook', splits=['test']))
visualizer = dict(type='UniversalVisualizer', vis_backends=[dict(type='LocalVisBackend')])

val_evaluator = [dict(type='Accuracy'), dict(type='CalibrationMetric', metrics=['ECE', 'AECE'])]
test_evaluator = val_evaluator
