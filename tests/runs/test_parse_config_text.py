"""A checkpoint's config, read and not run."""

import pytest
from commands import ROOT
from mmengine.config import Config

from mmcalib.runs.config import load_config
from mmcalib.runs.config_tree import parse_config
from mmcalib.runs.model import facts_of


@pytest.mark.parametrize('name', ['mbls/digits', 'flsd/digit_scenes', 'ce/deeplabv3_r50_voc'])
def test_what_mmengine_writes_is_read(name):
    text = load_config(str(ROOT / f'configs/{name}.py')).pretty_text
    assert parse_config(text) == Config.fromstring(text, '.py').to_dict()


def test_all_that_a_config_may_hold_is_read():
    cfg = Config(
        dict(
            a={'x.y': -1.5, 'z': float('inf'), 'type': 'Config'},
            b=[(1, 'two'), {'n': None, '2': True}, []],
        )
    )
    assert parse_config(cfg.pretty_text) == cfg.to_dict()
    assert parse_config("x = dict(**{'a b': 1}, c={2})") == {'x': {'a b': 1, 'c': {2}}}
    # Of classes mmengine 0.10.7 writes what is no Python, and later ones this.
    text = 'a = dict(type=mmengine.config.config.Config)\nb = [int]'
    assert parse_config(text) == dict(a=dict(type='mmengine.config.config.Config'), b=['int'])


@pytest.mark.parametrize(
    'text',
    [
        'import os',
        "open('{path}', 'w')",
        "x = open('{path}', 'w')",
        "x = dict(a=[open('{path}', 'w')])",
        "x = {{**open('{path}', 'w')}}",
        "x = dict(**open('{path}', 'w'))",
        "x = dict(open('{path}', 'w'))",
        "x = [open('{path}', 'w') for _ in 'a']",
        "x = (lambda: open('{path}', 'w'))()",
        "x = f'{{open({path!r}, 1)}}'",
        "dict = open\nx = dict('{path}', 'w')",
        "x = -open('{path}', 'w')",
        "x = '{path}'.upper",
        "for x in [open('{path}', 'w')]: pass",
        'x: int = 1',
        'x = y = 1',
        'x = 1 +',
        'x = ' + '(' * 10_000,
        "x = {{open('{path}', 'w'): 1}}",
    ],
)
def test_nothing_of_it_is_executed(text, tmp_path):
    path = tmp_path / 'written'
    with pytest.raises(ValueError, match=r'is code|not a config'):
        parse_config(text.format(path=path))
    assert facts_of({'cfg': text.format(path=path)}) is None
    assert not path.exists()
