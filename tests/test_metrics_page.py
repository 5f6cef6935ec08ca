"""The catalogue of metrics names every metric, and its examples are what the code computes."""

import inspect
import re

import pytest
from commands import ROOT
from mmengine.evaluator import BaseMetric
from mmengine.registry import METRICS

from mmcalib import metrics
from mmcalib.metrics import PROTOCOLS, CalibrationMetric
from mmcalib.metrics.definitions import METRICS as OURS
from mmcalib.metrics.definitions import WITH_LEVEL, metric_of
from mmcalib.metrics.keys import base_name, is_percentage

PAGE = (ROOT / 'docs/reference/metrics.md').read_text('utf-8')

UNSOURCED = ('accuracy', 'confidence', 'gap', 'gap_size')


def rows_under(heading):
    """Return the cells of each row of the first table below a heading."""
    table = re.search(rf'^{re.escape(heading)}.*\n\|[-:|]+\|\n((?:\|.*\n)+)', PAGE, re.MULTILINE)
    return [[c.strip() for c in row.strip('|\n').split(' |')] for row in table[1].splitlines()]


ROWS = {
    row[0].strip('`'): [cell.strip('| ') for cell in row[1:]]
    for part in re.findall(r'^\| key .*\n.*\n((?:\|.*\n)+)', PAGE, re.MULTILINE)
    for row in ([c.strip(' |') for c in line.split(' | ')] for line in part.splitlines())
}


def test_every_metric_has_a_row():
    assert {re.sub(r'_0\.\d+$', '', key) for key in ROWS} == {*OURS, *WITH_LEVEL}


def test_rows_hold_what_is_computed():
    scope = {}
    exec(re.search(r'```python\n(import numpy.*?)```', PAGE, re.DOTALL)[1], scope)
    for key, (name, formula, unit, example, extra) in ROWS.items():
        value = metrics.measure(scope['probs'], scope['labels'], key)
        assert float(example) == pytest.approx(value, abs=0.00051), key
        assert unit.startswith('%') == is_percentage(key), key
        assert unit.startswith('nats') == (base_name(key).upper().endswith('NLL')), key
        assert formula and (
            '](https://' in name or key in ('accuracy', 'confidence', 'gap', 'gap_size')
        ), key
        assert extra == ('interval' if metric_of(key).of_rows else ''), key


def test_every_option_is_in_the_example():
    example = re.search(
        r"^dict\(\n    type='CalibrationMetric',\n.*?^\)", PAGE, re.MULTILINE | re.DOTALL
    )
    (_, *own, _), (_, *base) = (
        inspect.signature(kind.__init__).parameters.values()
        for kind in (CalibrationMetric, BaseMetric)
    )
    defaults = {p.name: p.default for p in [*own, *base]}
    assert eval(example[0]) == dict(type='CalibrationMetric', **defaults)


def test_every_protocol_has_a_row():
    assert [row[0] for row in rows_under('| `protocol` |')] == [f'`{name!r}`' for name in PROTOCOLS]


def test_every_registered_metric_is_named():
    ours = {
        name for name, kind in METRICS.module_dict.items() if 'mmcalib.metrics' in kind.__module__
    }
    assert {name for name in ours if f'`{name}`' in PAGE or f"type='{name}'" in PAGE} == ours
