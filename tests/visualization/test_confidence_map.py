import numpy as np
import pytest
from drawings import view, words

from mmcalib.visualization import ConfidenceMaps, draw_confidence_maps, to_rgb
from mmcalib.visualization.confidence_map import (
    IGNORED_COLOUR,
    RIGHT_COLOUR,
    WRONG_COLOUR,
    _strip,
    class_colours,
)

CLASSES = ['sky', 'road', 'car']
PALETTE = [[0, 0, 0], [0, 114, 178], [230, 159, 0]]


def test_rows_have_their_numbers_and_classes():
    figure = draw_confidence_maps([view(3), view(5, seed=1)], classes=CLASSES, palette=PALETTE)
    text = words(figure)
    for part in (
        f'image 3: ECE {view(3).error:.2f} %', 'image 5: ECE', '500 pixels', 'ground truth',
        'confidence (%)', 'sky', 'car', 'wrong', 'ignored',
    ):  # fmt: skip
        assert part in text
    assert len(figure.axes) == 2  # a reliability diagram each
    assert not draw_confidence_maps([view(3)], classes=CLASSES, diagrams=False).axes


def test_panels_show_the_pixels():
    one = view(size=(200, 200))
    pixels = _strip(one, class_colours(CLASSES, PALETTE), 1.0, False)
    step = (pixels.shape[1] - 5 * 200) // 4 + 200
    panels = [pixels[:, i * step : i * step + 200] for i in range(5)]
    np.testing.assert_array_equal(panels[0], one.image)
    np.testing.assert_array_equal(panels[1][one.valid], np.array(PALETTE)[one.label[one.valid]])
    assert (panels[1][~one.valid] == IGNORED_COLOUR).all()
    np.testing.assert_array_equal(panels[2], np.array(PALETTE)[one.predicted])
    right = one.valid & (one.label == one.predicted)
    assert (panels[4][right] == RIGHT_COLOUR).all() and (
        panels[4][~one.valid] == IGNORED_COLOUR
    ).all()
    assert (panels[4][one.valid & ~right] == WRONG_COLOUR).all()
    order = np.argsort(one.conf, axis=None)
    brightness = panels[3].reshape(-1, 3).sum(axis=1)[order].astype(int)
    assert brightness[0] > brightness[len(order) // 2] > brightness[-1]  # dark where sure


def test_an_image_that_follows_itself_is_not_repeated():
    colours = class_colours(CLASSES, PALETTE)
    again = _strip(view(size=(200, 200)), colours, 1.0, True)
    assert (again[:, :400] == 255).all() and not (again[:, -200:] == 255).all()


@pytest.mark.parametrize('size', [(1, 1), (40, 40), (30, 200), (512, 100)])
def test_any_size_is_drawn_at_a_bounded_one(size):
    pixels = to_rgb(draw_confidence_maps([view(size=size), view(1)], classes=CLASSES))
    assert pixels.shape[0] < 800 and pixels.shape[1] < 1300


def test_an_image_without_valid_pixels():
    one = view()
    one.valid[:] = False
    one.table[:] = 0
    assert np.isnan(one.error)  # as of the metric
    assert 'no valid pixel' in words(draw_confidence_maps([one], classes=CLASSES))


def test_saved_and_loaded(tmp_path):
    path = tmp_path / 'maps.npz'
    maps = ConfidenceMaps([view(0), view(7, size=(3, 4))], [view(9)], CLASSES, PALETTE)
    maps.save(path)
    loaded = ConfidenceMaps.load(path)
    assert (loaded.classes, loaded.palette) == (CLASSES, PALETTE)
    for mine, theirs in zip(
        [*maps.views, *maps.worst], [*loaded.views, *loaded.worst], strict=True
    ):
        for key, value in vars(mine).items():
            np.testing.assert_array_equal(getattr(theirs, key), value)
            assert isinstance(getattr(theirs, key), type(value))


def test_what_cannot_be_drawn_is_said(tmp_path):
    with pytest.raises(ValueError, match='no image'):
        draw_confidence_maps([], classes=CLASSES)
    with pytest.raises(ValueError, match='3 classes need as many colours, got 1'):
        draw_confidence_maps([view()], classes=CLASSES, palette=[[0, 0, 0]])
    np.savez(tmp_path / 'other.npz', x=1)
    with pytest.raises(ValueError, match=r'other\.npz does not hold confidence maps'):
        ConfidenceMaps.load(tmp_path / 'other.npz')
