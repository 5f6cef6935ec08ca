"""A loss has one colour in all figures, which no other loss has."""

from itertools import combinations

import cv2
import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from mmcalib.choices import SHORT_NAMES
from mmcalib.errors import UserError
from mmcalib.visualization.pixels import save_figure
from mmcalib.visualization.style import COLOURS, LOSS_COLOURS, run_looks


def test_loss_colours_differ_from_each_other():
    assert set(LOSS_COLOURS) == set(SHORT_NAMES.values())
    colours = np.array([[to_rgb(colour) for colour in LOSS_COLOURS.values()]], dtype=np.float32)
    lab = cv2.cvtColor(colours, cv2.COLOR_RGB2LAB)[0]
    least = min(np.linalg.norm(one - other) for one, other in combinations(lab, 2))
    assert least > 15  # two such are told apart at a glance; 2.3 is just noticeable


def test_run_looks_loss_has_its_colour_others_another():
    losses = ['CE', 'MbLS m=6 α=0.1', 'MbLS m=8 × 5 + TTA (2) + temperature', 'mbls/digits, test']
    others = ['run 1', 'MbLSX', 'MbLS-like', '', 'run 1 + temperature']
    looks = run_looks([*losses, *others])
    colours = [look.colour for look in looks]
    assert colours[:4] == [LOSS_COLOURS['CE'], *[LOSS_COLOURS['MbLS']] * 3]
    assert len({*colours[4:8]}) == 4 and not {*colours[4:]} & {*colours[:4]}
    assert colours[8] == colours[4]
    many = run_looks([f'CE, seed {i}' for i in range(8)] + [f'run {i}' for i in range(40)])
    all_losses = run_looks([*LOSS_COLOURS])
    for figure_looks in (looks, many, all_losses):
        assert len({(look.colour, look.line) for look in figure_looks}) == len(figure_looks)
    assert {look.line for look in all_losses[:8]} == {'-'}
    assert len({(look.colour, look.marker) for look in many[8:28]}) == 20
    without_colours = {(look.line, look.marker) for look in all_losses}
    assert len(without_colours) == len(all_losses)


@pytest.mark.parametrize('loss', ['CE', 'MbLS m=6', 'ours'])
def test_run_looks_one_loss_alone_distinct_colours(loss):
    names = [loss, f'{loss} + temperature', f'{loss} + vector', f'{loss} + TTA (2) + vector']
    for some in (names, names[::-1]):
        colours = [look.colour for look in run_looks(some)]
        assert len({*colours}) == 4 and colours[0] == LOSS_COLOURS.get(loss.split()[0], COLOURS[0])
    many = run_looks([f'{loss}, seed={seed}' for seed in range(30)])
    assert len({(look.colour, look.line) for look in many}) == 30
    # Beside another loss, they have the colour of theirs.
    assert len({look.colour for look in run_looks([*names, 'LS'])}) == 2


def test_save_figure_unknown_format_raises(tmp_path):
    with pytest.raises(UserError, match=r"the format of .*a\.xyz must be one of .*got 'xyz'"):
        save_figure(Figure(), tmp_path / 'a.xyz')
    assert not list(tmp_path.iterdir())
