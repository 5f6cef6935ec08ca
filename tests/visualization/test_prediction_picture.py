"""Pictures of predictions without labels: what is where, in which colour."""

import numpy as np
import pytest
from PIL import Image

from mmcalib.visualization import draw_classification, draw_segmentation
from mmcalib.visualization.confidence_maps import confidence_colours
from mmcalib.visualization.prediction_picture import GAP, LINE, SMALLEST

PALETTE = [(10, 20, 30), (200, 0, 0), (0, 120, 0)]
TOP = GAP // 2 + LINE


def panel(picture, number, size):
    x = GAP + number * ((picture.width - 2 * GAP) // 4)
    return np.asarray(picture.crop((x, TOP, x + size[0], TOP + size[1])))


@pytest.mark.parametrize(('shape', 'size'), [((8, 16), (160, 80)), ((300, 200), (200, 300))])
def test_the_panels_of_a_segmentation(shape, size):
    rng = np.random.default_rng(0)
    image = rng.integers(0, 256, (*shape, 3), dtype=np.uint8)
    predicted = np.zeros(shape, int)
    predicted[:, shape[1] // 2 :] = 2
    confidence = np.full(shape, 0.5, np.float32)
    confidence[: shape[0] // 2] = 0.75
    picture = draw_segmentation(
        image, predicted, confidence, threshold=0.5, classes=['a', 'b', 'c'], palette=PALETTE,
        captions=['a line'], scores=[(2, '51 %')],
    )  # fmt: skip
    assert size[0] == SMALLEST or size == shape[::-1]
    expected = np.asarray(Image.fromarray(image).resize(size, Image.Resampling.BOX))
    assert np.array_equal(panel(picture, 0, size), expected)
    left, right = np.split(panel(picture, 1, size), 2, axis=1)
    assert (left == PALETTE[0]).all() and (right == PALETTE[2]).all()
    upper, lower = np.split(panel(picture, 2, size), 2)
    for half, share in ((upper, 191), (lower, 128)):
        assert (half == confidence_colours(np.array(share / 255))).all()
    upper, lower = np.split(panel(picture, 3, size), 2)
    assert (lower == 255).all()  # 0.5 is not above 0.5
    assert np.array_equal(upper, panel(picture, 1, size)[: size[1] // 2])
    below = np.asarray(picture)[TOP + size[1] + LINE :]
    assert (below == PALETTE[2]).all(axis=2).any() and not (below == PALETTE[1]).all(axis=2).any()


def test_objects_are_outlined_in_the_colours_of_their_classes():
    predicted = np.zeros((200, 300), int)
    predicted[20:60, 30:90], predicted[100:180, 200:290] = 1, 2
    objects = np.where(predicted == 2, 1, 0) + 2 * (predicted == 1)
    picture = draw_segmentation(
        np.full((200, 300, 3), 77, np.uint8), predicted, np.ones((200, 300), np.float32),
        threshold=0.5, classes=['a', 'b', 'c'], palette=PALETTE, objects=objects,
        scores=[(2, '51 %')], numbers=[1],
    )  # fmt: skip
    found = panel(picture, 0, (300, 200))
    for k, box in ((1, (20, 59, 30, 89)), (2, (100, 179, 200, 289))):
        edge = (found == PALETTE[k]).all(axis=2)
        top, bottom, left, right = box
        line = np.zeros_like(edge)
        line[top : bottom + 1, left : right + 1] = True
        line[top + 1 : bottom, left + 1 : right] = False
        np.testing.assert_array_equal(edge, line)
    written = (found == 255).all(axis=2)
    assert written[100:180, 200:290].any() and not written[20:60, 30:90].any()
    assert (found[:20] == 77).all()


def test_the_classes_of_a_classification_have_the_colours_of_their_probabilities():
    image = np.zeros((40, 40, 3), np.uint8)
    names = [f'class {k}' for k in range(7)]
    probabilities = np.array([0.05, 0.5, 0.02, 0.25, 0.1, 0.07, 0.01], np.float32)
    drawn = draw_classification(image, probabilities, classes=names)
    picture = np.asarray(drawn)
    places = []
    for share in sorted(probabilities, reverse=True)[:5]:
        colour = confidence_colours(np.array(float(share)))
        places.append(np.argwhere((picture == colour).all(axis=2))[0].tolist())
    assert places == sorted(places)
    assert (picture[TOP : TOP + SMALLEST, GAP : GAP + SMALLEST] == 0).all()
    wide = draw_classification(image, probabilities, classes=names, captions=['a long line ' * 20])
    assert wide.width > drawn.width


@pytest.mark.parametrize('shape', [(96, 128), (128, 40)])
def test_no_word_runs_out_of_the_picture_of_a_small_image(shape):
    picture = draw_segmentation(
        np.zeros((*shape, 3), np.uint8), np.zeros(shape, int), np.full(shape, 0.5),
        threshold=0.912345, classes=['a class with a long name, and more words'], palette=PALETTE,
        captions=['short'], scores=[(0, '100.0 %, mean confidence 50.0 %')],
    )  # fmt: skip
    edge = np.asarray(picture)[:, -2:]
    assert (edge == 255).all()
