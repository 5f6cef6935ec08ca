"""Pictures of predictions without labels: what is where, in which colour."""

import numpy as np
import pytest
from PIL import Image

from mmcalib.commands.predict.picture import (
    LINE_HEIGHT,
    PICTURE_GAP,
    draw_classification,
    draw_segmentation,
)
from mmcalib.visualization.confidence_maps import confidence_colours

PALETTE = np.array([(10, 20, 30), (200, 0, 0), (0, 120, 0)])
TOP = PICTURE_GAP // 2 + LINE_HEIGHT


def panel(picture, number, size):
    x = PICTURE_GAP + number * ((picture.width - 2 * PICTURE_GAP) // 4)
    return np.asarray(picture.crop((x, TOP, x + size[0], TOP + size[1])))


@pytest.mark.parametrize(('shape', 'size'), [((8, 16), (160, 80)), ((300, 200), (200, 300))])
def test_draw_segmentation_panels_have_their_pixels(shape, size):
    rng = np.random.default_rng(0)
    image = rng.integers(0, 256, (*shape, 3), dtype=np.uint8)
    predicted = np.zeros(shape, int)
    predicted[:, shape[1] // 2 :] = 2
    confidence = np.full(shape, 0.5, np.float32)
    confidence[: shape[0] // 2] = 0.75
    picture = draw_segmentation(
        image,
        predicted,
        confidence,
        threshold=0.5,
        classes=['a', 'b', 'c'],
        palette=PALETTE,
        captions=['a line'],
        objects=np.zeros(shape, int),
        scores={1: (2, '51 %')},
    )
    shown, classes, trust, kept = (panel(picture, number, size) for number in range(4))
    np.testing.assert_array_equal(shown, Image.fromarray(image).resize(size, Image.Resampling.BOX))
    left, right = np.split(classes, 2, axis=1)
    assert (left == PALETTE[0]).all() and (right == PALETTE[2]).all()
    for half, share in zip(np.split(trust, 2), (191, 128), strict=True):
        assert (half == confidence_colours(np.array([share / 255]))).all()
    upper, lower = np.split(kept, 2)
    assert (upper == classes[: size[1] // 2]).all() and (lower == 255).all()  # 0.5 is not above it
    below = np.asarray(picture)[TOP + size[1] + LINE_HEIGHT :]
    assert (below == PALETTE[2]).all(axis=2).any() and not (below == PALETTE[1]).all(axis=2).any()


def test_draw_segmentation_objects_outlined_in_class_colours():
    predicted = np.zeros((200, 300), int)
    predicted[20:60, 30:90] = 1
    predicted[100:180, 200:290] = 2
    picture = draw_segmentation(
        np.full((200, 300, 3), 77, np.uint8),
        predicted,
        np.ones((200, 300), np.float32),
        threshold=0.5,
        classes=['a', 'b', 'c'],
        palette=PALETTE,
        captions=(),
        objects=np.where(predicted > 0, 3 - predicted, 0),
        scores={1: (2, '51 %')},
    )
    pixels = panel(picture, 0, (300, 200))
    for k, (top, bottom, left, right) in ((1, (20, 60, 30, 90)), (2, (100, 180, 200, 290))):
        outline = np.zeros((200, 300), bool)
        outline[top:bottom, left:right] = True
        outline[top + 1 : bottom - 1, left + 1 : right - 1] = False
        np.testing.assert_array_equal((pixels == PALETTE[k]).all(axis=2), outline)
    number_pixels = (pixels == 255).all(axis=2)
    assert number_pixels[100:180, 200:290].any() and not number_pixels[20:60, 30:90].any()
    assert (pixels[:20] == 77).all()


def test_draw_classification_colours_are_probabilities():
    names = [f'class {k}' for k in range(7)]
    probabilities = np.array([0.05, 0.5, 0.02, 0.25, 0.1, 0.07, 0.01], np.float32)
    image = np.zeros((40, 40, 3), np.uint8)
    drawn = draw_classification(image, probabilities, classes=names, captions=())
    picture = np.asarray(drawn)
    colours = confidence_colours(np.sort(probabilities)[:1:-1])
    first_pixels = [np.argwhere((picture == colour).all(axis=2))[0].tolist() for colour in colours]
    assert len(first_pixels) == 5 and first_pixels == sorted(first_pixels)
    assert (picture[TOP : TOP + 160, PICTURE_GAP : PICTURE_GAP + 160] == 0).all()


@pytest.mark.parametrize('shape', [(96, 128), (128, 40)])
@pytest.mark.parametrize('captions', [['short'], ['a long line ' * 20]])
def test_picture_small_image_no_text_cut(shape, captions):
    picture = draw_segmentation(
        np.zeros((*shape, 3), np.uint8),
        np.zeros(shape, int),
        np.full(shape, 0.5),
        threshold=0.912345,
        classes=['a class with a long name, and more words'],
        palette=PALETTE,
        captions=captions,
        objects=np.zeros(shape, int),
        scores={1: (0, '100.0 %, mean confidence 50.0 %')},
    )
    assert (np.asarray(picture)[:, -2:] == 255).all()
