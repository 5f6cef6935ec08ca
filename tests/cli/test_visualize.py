"""Command lines of ``visualize``: the options of each kind of figure."""

import inspect
from functools import partial

import pytest

from mmcalib.cli.visualize import KIND_DESCRIPTIONS, VisualizeOptions
from mmcalib.reports.figures.from_files import FIGURE_KINDS

DRAWING = {
    'reliability': dict(
        overlay=False, num_bins=None, equal_mass=False, zoom=None, scale='linear', of_class=None
    ),
    'risk': dict(overlay=False),
    'maps': dict(images=None),
    'worst': dict(images=None),
    'robustness': dict(figure='boxes', only=None),
}


@pytest.mark.parametrize('kind', KIND_DESCRIPTIONS)
def test_parse_defaults_are_those_of_the_drawing_function(kind):
    parser = VisualizeOptions.build_parser()
    actual = VisualizeOptions.parse(parser, [kind, 'a', 'b', '--out', 'c.png'])
    expected = VisualizeOptions(
        kind=kind, paths=['a', 'b'], out='c.png', drawing=DRAWING.get(kind, {})
    )
    assert actual == expected
    draw = FIGURE_KINDS[kind].draw
    parameters = inspect.signature(draw.func if isinstance(draw, partial) else draw).parameters
    assert {name: parameters[name].default for name in actual.drawing} == actual.drawing


def test_parse_every_kind_but_sweeps_has_a_figure():
    # tools/sweep.py --plot draws those.
    assert {*KIND_DESCRIPTIONS} == {*FIGURE_KINDS} - {'sweep'}
