"""The page of config keys holds every registered class, as its signature and docstring are."""

import inspect

import config_keys
import pytest
from commands import ROOT
from mmengine.registry import HOOKS, MODELS

from mmcalib.losses import BatchLoss, MDCALoss, NACLLoss

PAGE = (ROOT / 'docs/reference/config_keys.md').read_text('utf-8')
FOUND = config_keys.registered()
COMMON = inspect.signature(BatchLoss).parameters.keys() - {'loss_name'}


def test_the_page_is_what_the_code_says():
    assert config_keys.page() == PAGE, 'run tools/maintenance/write_config_keys.py'


@pytest.mark.parametrize('place', FOUND)
def test_every_class_is_there_with_all_its_keys(place):
    assert FOUND[place]
    for name, kind in FOUND[place].items():
        section = PAGE.split(f'\n### {name}\n')[1].split('\n### ')[0]
        own = getattr(kind, '__signature__', None) is None and inspect.isclass(kind)
        function = kind.__init__ if own else kind
        for key, p in inspect.signature(function).parameters.items():
            if key not in ('self', *COMMON) and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL):
                assert f'\n| `{key}` | ' in section, (name, key)
        keys, _ = config_keys.keys_of(kind)
        assert [key.name for key in keys if not key.meaning] == [], name


def test_whose_keys_a_class_takes():
    def names(kind):
        return [key.name for key in config_keys.keys_of(kind)[0]]

    assert names(NACLLoss) == ['alpha', 'kernel_size', 'loss_name']
    assert config_keys.keys_of(NACLLoss)[1] == 'CalibrationLoss'
    assert config_keys.keys_of(MDCALoss)[1] == 'BatchLoss'
    hook = HOOKS.get('AccuracyFloorCheckpointHook')
    assert config_keys.keys_of(hook)[1] == 'CheckpointHook'
    assert names(MODELS.get('CalibratedModel')) == ['calibrates', 'calibration']


def test_docstrings_in_markdown():
    text = 'The :func:`~a.b.brier` of ``p``, :math:`\\alpha` |p|::'
    assert config_keys.markdown(text) == 'The `brier` of `p`, $\\alpha$ \\|p\\|:'
