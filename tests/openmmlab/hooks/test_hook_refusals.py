"""Options that hooks refuse when they are built."""

import pytest
from mmengine.registry import HOOKS

FLOOR = dict(type='AccuracyFloorCheckpointHook', rule='less', accuracy='accuracy/top1')
ONE_KEY = 'needs one key as save_best'
REFUSED = [
    (dict(type='ReliabilityDiagramHook', splits='train'), "splits must be one of .*got 'train'"),
    (dict(type='ConfidenceMapHook', interval=-1), 'interval must be .* at least 0, got -1'),
    (dict(type='ConfidenceMapHook', max_size=0), 'max_size must be .* at least 1, got 0'),
    (dict(type='LogitDistanceHook', interval=0), 'interval must be an integer .* 1, got 0'),
    (dict(type='LogitDistanceHook', interval=True), 'interval must be an integer .*, got True'),
    (dict(FLOOR, save_best=None), ONE_KEY),
    (dict(FLOOR, save_best=['calibration/ECE', 'accuracy/top1']), ONE_KEY),
    (dict(FLOOR, save_best='calibration/ECE', min_accuracy=98), r'in \[0, 1\], got 98'),
]


@pytest.mark.parametrize(('hook', 'message'), REFUSED)
def test_options(hook, message):
    with pytest.raises((TypeError, ValueError), match=message):
        HOOKS.build(hook)
