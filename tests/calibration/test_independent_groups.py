"""Which images are independent, as far as their errors tell."""

import numpy as np
import pytest
import torch
from drawn import draw_of_arrays
from overconfident import draw_labels

from mmcalib.calibration.groups import independent_groups, neighbours_alike

SEEDS = range(10)


class SourceInOrder:
    """A source whose images come in the order of the data."""

    in_order = True

    def image_numbers(self, rows):
        return None


def make_draw(content, error, *, pixels=50, seed=0):
    """Return pixels of n images whose logits are wrong.

    Args:
        content: Logits that tell what an image shows, ``(n, K)``.
        error: Error of the logits of an image, ``(n, K)``.
        pixels: Number of pixels of an image.
        seed: Seed of the pixels.
    """
    rng = np.random.default_rng(seed)
    image_index = np.arange(len(content)).repeat(pixels)
    true_logits = content[image_index] + rng.normal(size=(len(image_index), content.shape[1]))
    labels = draw_labels(true_logits, rng)
    return draw_of_arrays(true_logits + error[image_index], labels, image_index)


def random_walk(rng):
    """Return a walk from frame to frame, ``(60, 4)``."""
    walk = rng.normal(size=(60, 4)).cumsum(axis=0)
    return walk / walk.std()


@pytest.mark.parametrize('seed', SEEDS)
def test_independent_groups_video_are_runs_of_frames(seed):
    rng = np.random.default_rng(seed)
    draw = make_draw(random_walk(rng), random_walk(rng), seed=seed)
    groups = independent_groups(draw, SourceInOrder(), None)
    assert groups.of_image.tolist() == [index // 12 for index in range(60)]
    assert groups.are_runs
    assert groups.count == 5


@pytest.mark.parametrize('seed', SEEDS)
def test_independent_groups_shuffled_video_are_images(seed):
    rng = np.random.default_rng(seed)
    content = random_walk(rng)
    error = random_walk(rng)
    order = rng.permutation(60)
    draw = make_draw(content[order], error[order], seed=seed)
    groups = independent_groups(draw, SourceInOrder(), None)
    assert groups.of_image.tolist() == list(range(60))
    assert not groups.are_runs


@pytest.mark.parametrize('seed', SEEDS)
def test_neighbours_alike_images_in_order_of_labels_are_not(seed):
    """Each class has an error of its own, which is no sign of a video."""
    content = np.random.default_rng(seed).normal(size=(200, 4))
    labels = np.arange(200) * 4 // 200
    draw = make_draw(content, 2 * np.eye(4)[labels], pixels=1, seed=seed)
    draw.labels[:] = torch.as_tensor(labels)
    assert not neighbours_alike(draw, draw.rows.images)


@pytest.mark.parametrize('seed', SEEDS)
def test_neighbours_alike_maps_in_order_of_content_are_not(seed):
    rng = np.random.default_rng(seed)
    content = rng.normal(size=(200, 4))
    order = content.argmax(axis=1).argsort(kind='stable')
    draw = make_draw(content[order], rng.normal(size=(200, 4)), seed=seed)
    assert not neighbours_alike(draw, draw.rows.images)
