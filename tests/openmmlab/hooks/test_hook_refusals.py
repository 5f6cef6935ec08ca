"""Options that hooks refuse when they are built."""

import pytest
from mmengine.registry import HOOKS

REFUSED = [
    (dict(type='ReliabilityDiagramHook', splits='train'), "splits must be one of .*got 'train'"),
    (dict(type='ConfidenceMapHook', interval=-1), 'interval must be .* at least 0, got -1'),
    (dict(type='ConfidenceMapHook', max_size=0), 'max_size must be .* at least 1, got 0'),
    (dict(type='LogitDistanceHook', interval=0), 'interval must be an integer .* 1, got 0'),
    (dict(type='LogitDistanceHook', interval=True), 'interval must be an integer .*, got True'),
]


@pytest.mark.parametrize(('config', 'message'), REFUSED)
def test_hook_invalid_option_raises(config, message):
    with pytest.raises((TypeError, ValueError), match=message):
        HOOKS.build(config)
