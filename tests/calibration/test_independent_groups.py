"""Runs of neighbouring images that are independent, as far as their errors tell."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from drawn import draw_of_arrays
from overconfident import draw_labels
from scipy.special import softmax

from mmcalib.calibration import independent_groups as groups_module
from mmcalib.calibration.held_out import HeldOut
from mmcalib.calibration.independent_groups import (
    independent_groups,
    neighbour_products,
    neighbours_alike,
)

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
    draw = draw_of_arrays(true_logits + error[image_index], labels, image_index)
    return replace(draw, pixels=pixels > 1)


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


def test_independent_groups_named_blocks_of_a_video_are_mostly_runs():
    """Eleven blocks of five frames are not independent: their ends are neighbours."""
    are_runs = []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        draw = make_draw(random_walk(rng)[:55], random_walk(rng)[:55], seed=seed)
        groups = independent_groups(draw, SourceInOrder(), torch.arange(55) // 5)
        are_runs.append(groups.are_runs)
        assert groups.count == (5 if groups.are_runs else 11)
    assert np.mean(are_runs) >= 0.8


def test_independent_groups_of_independent_videos_mostly_stay():
    """The limit of few neighbours is of one in fifteen data sets by chance."""
    are_runs = []
    for seed in range(40):
        rng = np.random.default_rng(seed)
        content, error = rng.normal(size=(2, 11, 4)).repeat(5, axis=1)
        draw = make_draw(content, error, seed=seed)
        groups = independent_groups(draw, SourceInOrder(), torch.arange(55) // 5)
        are_runs.append(groups.are_runs)
        assert groups.are_runs or groups.count == 11
    assert np.mean(are_runs) < 0.2


@pytest.mark.parametrize(('num_images', 'num_runs'), [(7, 5), (59, 5), (130, 10), (400, 30)])
def test_independent_groups_folds_of_maps_are_runs_of_their_order(num_images, num_runs):
    """Images at the ends of runs alone have a neighbour in another fold."""
    rng = np.random.default_rng(0)
    draw = make_draw(*rng.normal(size=(2, num_images, 4)), pixels=20)
    groups = independent_groups(draw, SourceInOrder(), None)
    assert not groups.are_runs
    folds = HeldOut(draw, groups).folds
    assert int((folds[1:] != folds[:-1]).sum()) == num_runs - 1
    sizes = folds.bincount()
    assert len(sizes) == 5
    assert sizes.max() - sizes.min() <= num_runs // 5


def test_independent_groups_rows_have_no_runs():
    rng = np.random.default_rng(0)
    draw = make_draw(*rng.normal(size=(2, 60, 4)), pixels=1)
    assert independent_groups(draw, SourceInOrder(), None).run_of_group is None


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
    assert not neighbours_alike(draw, torch.arange(draw.num_images))


@pytest.mark.parametrize('seed', SEEDS)
def test_neighbours_alike_maps_in_order_of_content_are_not(seed):
    rng = np.random.default_rng(seed)
    content = rng.normal(size=(200, 4))
    order = content.argmax(axis=1).argsort(kind='stable')
    draw = make_draw(content[order], rng.normal(size=(200, 4)), seed=seed)
    assert not neighbours_alike(draw, torch.arange(draw.num_images))


@pytest.mark.parametrize('training', [1e-4, 1e-2, 1])
@pytest.mark.parametrize('pixels', [1, 30])
@pytest.mark.parametrize('seed', range(4))
def test_neighbours_alike_hardly_trained_network_in_order_of_classes_is_not(training, pixels, seed):
    """Its probabilities are nearly the same for all images, so their errors are the labels'."""
    rng = np.random.default_rng(seed)
    classes = np.arange(80) * 4 // 80
    content = 4 * np.eye(4)[classes]
    draw = make_draw(content, rng.normal(size=(80, 4)), pixels=pixels, seed=seed)
    draw.logits.copy_(training * draw.logits)
    assert not neighbours_alike(draw, torch.arange(draw.num_images))


def expected_products(draw):
    """Return the products of neighbours' residual errors, with one prediction of each image."""
    logits = draw.logits.double().numpy()
    if logits.shape[1] == 1:
        logits = np.concatenate([np.zeros_like(logits), logits], axis=1)
    is_class = np.eye(logits.shape[1])[draw.labels.numpy()]
    order = np.argsort(draw.rows.images.numpy())
    probs = softmax(logits, axis=1)[order]
    probs -= probs.mean(axis=0)
    frequencies = is_class[order] - is_class.mean(axis=0)
    error = probs - frequencies * (probs * frequencies).sum() / (frequencies**2).sum()
    gram = frequencies.T @ frequencies + 0.1 * np.eye(frequencies.shape[1])
    residual = error - frequencies @ np.linalg.solve(gram, frequencies.T @ error)
    return (residual[1:] * residual[:-1]).sum(axis=1)


@pytest.mark.parametrize('column_values', [200, 1 << 21])
@pytest.mark.parametrize('num_logits', [1, 2, 4, 90])
def test_neighbour_products_classified_images_equal_ridge_regression(
    num_logits, column_values, monkeypatch
):
    monkeypatch.setattr(groups_module, 'COLUMN_VALUES', column_values)
    rng = np.random.default_rng(0)
    logits = 2 * rng.normal(size=(70, num_logits))
    labels = rng.integers(max(num_logits, 2), size=70)
    draw = draw_of_arrays(logits, labels, rng.permutation(70))
    actual = neighbour_products(draw, draw.rows.images)
    np.testing.assert_allclose(actual, expected_products(draw), atol=1e-12)


def test_neighbour_products_one_more_pixel_of_image_is_continuous():
    """An image that has the same prediction twice takes the way of maps, with the same result."""
    rng = np.random.default_rng(0)
    logits = 2 * rng.normal(size=(70, 5))
    labels = rng.integers(5, size=70)
    images = np.arange(70)
    classified = draw_of_arrays(logits, labels, images)
    twice = draw_of_arrays(logits[[0, *images]], labels[[0, *images]], images[[0, *images]])
    actual = neighbour_products(twice, twice.rows.images)
    np.testing.assert_allclose(actual, neighbour_products(classified, classified.rows.images))


def test_neighbour_products_more_classes_than_images_equal_fewer():
    """Classes that no image has, with hardly any probability, change nothing."""
    rng = np.random.default_rng(0)
    logits = 2 * rng.normal(size=(40, 5))
    labels = rng.integers(5, size=40)
    images = np.arange(40) // 4
    few = draw_of_arrays(logits, labels, images)
    rare = np.full((40, 30), -60.0)
    many = draw_of_arrays(np.concatenate([logits, rare], axis=1), labels, images)
    actual = neighbour_products(many, many.rows.images)
    np.testing.assert_allclose(actual, neighbour_products(few, few.rows.images), atol=1e-12)
