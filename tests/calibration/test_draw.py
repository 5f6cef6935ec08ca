"""Predictions drawn from maps: each as likely as any other."""

import pytest
import torch

from mmcalib.calibration.draw import draw_predictions
from mmcalib.predictions.image_predictions import ImagePredictions

NUM_PIXELS = [10, 20, 30]
NUM_DRAWS = 2000
NUM_SAMPLES = 12
# 12 of 60 predictions are drawn.
SHARE = 0.2


class SourceInOrder:
    """A source of one process, whose images come in the order of the data."""

    def gather(self, value):
        return [value]

    def image_seeds(self, part):
        return part.images.tolist()


@pytest.fixture(scope='module')
def is_drawn():
    """Whether each of 60 predictions is in each draw, ``(2000, 60)``.

    They are pixels of three images of different sizes; their labels are their numbers.
    """
    maps = []
    for index, numbers in enumerate(torch.arange(60).split(NUM_PIXELS)):
        predictions = ImagePredictions(
            predicted=numbers[None],
            logits=numbers[None, None].double(),
            labels=numbers[None],
            images=torch.tensor([index]),
        )
        maps.append(predictions)
    is_drawn = torch.zeros(NUM_DRAWS, 60)
    for seed in range(NUM_DRAWS):
        draw = draw_predictions(maps, SourceInOrder(), num_samples=NUM_SAMPLES, seed=seed)
        assert torch.equal(draw.labels, draw.labels.sort().values)
        is_drawn[seed, draw.labels] = 1
    return is_drawn


def test_draw_size_equals_num_samples(is_drawn):
    assert (is_drawn.sum(dim=1) == NUM_SAMPLES).all()


def test_draw_each_prediction_is_as_likely(is_drawn):
    actual = is_drawn.mean(dim=0)
    torch.testing.assert_close(actual, torch.full((60,), SHARE), atol=0.04, rtol=0)


def test_draw_image_of_any_size_has_same_share(is_drawn):
    shares = is_drawn.mean(dim=0).split(NUM_PIXELS)
    actual = torch.stack([share.mean() for share in shares])
    torch.testing.assert_close(actual, torch.full((3,), SHARE), atol=0.006, rtol=0)


def test_draw_first_pixels_of_two_images_are_independent(is_drawn):
    both = is_drawn[:, 0] * is_drawn[:, 10]
    assert both.mean() < 0.07
