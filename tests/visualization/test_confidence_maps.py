import numpy as np
import pytest
from drawings import view, words

from mmcalib.visualization import ConfidenceMaps, draw_confidence_maps, to_rgb
from mmcalib.visualization.confidence_maps import (
    IGNORED_COLOUR,
    RIGHT_COLOUR,
    WRONG_COLOUR,
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
    assert text.count('reliability (%)') == 1
    alone = draw_confidence_maps([view(3)], classes=CLASSES, diagrams=False)
    assert 'reliability (%)' not in words(alone)


def panels(figure):
    """The pixels of each panel, of axes that have some."""
    return [axes.images[0].get_array() for axes in figure.axes if axes.images]


def test_panels_show_the_pixels():
    one = view(size=(20, 20))
    image, label, predicted, conf, errors = panels(
        draw_confidence_maps([one], classes=CLASSES, palette=PALETTE)
    )
    np.testing.assert_array_equal(image, one.image)
    np.testing.assert_array_equal(label[one.valid], np.array(PALETTE)[one.label[one.valid]])
    assert (label[~one.valid] == IGNORED_COLOUR).all()
    np.testing.assert_array_equal(predicted, np.array(PALETTE)[one.predicted])
    right = one.valid & (one.label == one.predicted)
    assert (errors[right] == RIGHT_COLOUR).all() and (errors[~one.valid] == IGNORED_COLOUR).all()
    assert (errors[one.valid & ~right] == WRONG_COLOUR).all()
    order = np.argsort(one.conf, axis=None)
    brightness = conf.reshape(-1, 3).sum(axis=1)[order].astype(int)
    assert brightness[0] > brightness[len(order) // 2] > brightness[-1]  # dark where sure


def test_an_image_that_follows_itself_is_not_repeated():
    assert len(panels(draw_confidence_maps([view(), view()], classes=CLASSES))) == 5 + 3


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
