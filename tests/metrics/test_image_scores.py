"""Scores and risks of single images, and how well scores order images: against plain loops."""

import itertools
import math

import numpy as np
import pytest
import references
import torch

from mmcalib.metrics import image_failure_figures, image_risks, image_scores, pairwise_dice


def draw(size=(4, 5), num_classes=4, scale=2.0, seed=0):
    generator = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(num_classes, *size, generator=generator, dtype=torch.float64)
    return logits.softmax(dim=0)


@pytest.mark.parametrize('background', [None, 0, 2])
@pytest.mark.parametrize('seed', range(4))
def test_scores_are_those_of_loops(background, seed):
    probs = draw(seed=seed)
    rows = probs.flatten(1).T.tolist()
    expected = references.image_scores(rows, background)
    assert image_scores(probs, background=background) == pytest.approx(expected, rel=1e-9)
    assert image_scores(probs.numpy(), background=background) == pytest.approx(expected, rel=1e-9)


def test_expectations_are_nearly_those_over_all_label_maps():
    """Of two classes, each of 2^9 label maps with its probability."""
    errors = []
    for seed in range(10):
        probs = draw((9,), 2, scale=2.0, seed=seed)
        p, found = probs[1].tolist(), image_scores(probs, background=0)
        predicted = [x > 0.5 for x in p]
        iou = 0.0
        for labels in itertools.product([False, True], repeat=9):
            chance = math.prod(x if y else 1 - x for x, y in zip(p, labels, strict=True))
            both = sum(a and b for a, b in zip(predicted, labels, strict=True))
            either = sum(a or b for a, b in zip(predicted, labels, strict=True))
            iou += chance * both / either
        errors.append(abs(found['expected_iou'] - iou))
    assert np.mean(errors) < 0.01 and np.max(errors) < 0.05


def test_an_image_without_an_object_has_the_probability_of_its_least_certain_pixel():
    probs = torch.tensor([[0.9, 0.6, 0.8], [0.1, 0.4, 0.2]])
    found = image_scores(probs, background=0)
    for name in ('foreground_confidence', 'soft_dice', 'expected_iou'):
        assert found[name] == pytest.approx(0.6)
    assert found['confidence'] == pytest.approx(2.3 / 3)


def test_certain_predictions_have_the_highest_scores():
    probs = torch.eye(3)[torch.tensor([0, 1, 2, 1])].T
    found = image_scores(probs)
    assert found.pop('entropy') == 0
    assert set(found.values()) == {1.0}


@pytest.mark.parametrize(
    ('probs', 'error', 'message'),
    [
        (np.array([[2.0], [0.5]]), ValueError, r'outside \[0, 1\]'),
        (np.array([[1], [0]]), TypeError, 'probs must be floats'),
    ],
)
def test_what_are_no_probabilities_are_refused(probs, error, message):
    with pytest.raises(error, match=message):
        image_scores(probs)


def test_classes_of_another_size_or_range_are_refused():
    with pytest.raises(ValueError, match='probs must be'):
        image_scores(draw(), np.zeros(3, int))
    with pytest.raises(ValueError, match=r'outside \[0, 4\): 7'):
        image_scores(draw(), np.full((4, 5), 7))


@pytest.mark.parametrize('background', [None, 0])
def test_risks_are_those_of_loops(background):
    rng = np.random.default_rng(0)
    for _ in range(20):
        predicted, labels = rng.integers(0, 4, (2, 3, 4))
        labels[rng.random(labels.shape) < 0.2] = 255
        expected = references.image_risks(
            predicted.flatten().tolist(), labels.flatten().tolist(), background
        )
        assert image_risks(predicted, labels, background=background) == pytest.approx(expected)


def test_risks_at_their_limits():
    nothing, one = np.zeros(4, int), np.array([0, 0, 0, 1])
    assert set(image_risks(nothing, nothing, background=0).values()) == {0}
    for pair in ((nothing, one), (one, nothing)):
        found = image_risks(*pair, background=0)
        assert (found['IoU'], found['Dice'], found['error']) == (1, 1, 0.25)
    assert all(math.isnan(v) for v in image_risks(one, np.full(4, 255)).values())
    assert image_risks(one, np.full(4, 255), ignore_index=None)['error'] == 1


def test_the_dice_of_pairs():
    maps = np.array([[0, 1, 1, 2], [0, 1, 2, 2], [1, 1, 1, 1]])
    expected = []
    for i, j in ((0, 1), (0, 2), (1, 2)):
        of_classes = []
        for k in (1, 2):
            a, b = maps[i] == k, maps[j] == k
            if a.any() or b.any():
                of_classes.append(2 * (a & b).sum() / (a.sum() + b.sum()))
        expected.append(np.mean(of_classes))
    assert pairwise_dice(maps, background=0) == pytest.approx(np.mean(expected))
    assert pairwise_dice(np.zeros((3, 4), int), background=0) == 1
    assert math.isnan(pairwise_dice(maps[:1]))


def scores_and_risks(count, seed, levels=None):
    rng = np.random.default_rng(seed)
    risks = rng.random(count)
    scores = -risks + 0.5 * rng.standard_normal(count)
    if levels:
        scores, risks = (np.round(levels * x) / levels for x in (scores, risks))
    return scores, risks


@pytest.mark.parametrize(('count', 'levels'), [(30, None), (7, 2), (1, None), (6, 1)])
@pytest.mark.parametrize('seed', range(3))
def test_figures_are_those_of_loops(count, levels, seed):
    scores, risks = scores_and_risks(count, seed, levels)
    found = image_failure_figures(scores, risks, failure=0.4)
    expected = references.image_failure_figures(scores.tolist(), risks.tolist(), 0.4)
    assert found == pytest.approx(expected, nan_ok=True)


def test_an_interval_holds_what_the_population_has():
    scores, risks = scores_and_risks(20_000, 0)
    true, rng, held = image_failure_figures(scores, risks), np.random.default_rng(1), []
    for seed in range(60):
        drawn = rng.integers(0, len(scores), 60)
        found = image_failure_figures(
            scores[drawn], risks[drawn], confidence_interval=0.9, num_bootstrap=200, seed=seed
        )
        held.append([found[f'{n}_low'] <= true[n] <= found[f'{n}_high'] for n in true])
    assert (np.mean(held, axis=0) > 0.75).all() and np.mean(held) < 0.98


def test_one_image_has_no_interval_and_no_order():
    found = image_failure_figures(np.array([0.5]), np.array([0.25]), confidence_interval=0.95)
    assert (found['AURC'], found['AUGRC']) == (25, 25)
    assert all(math.isnan(v) for k, v in found.items() if k not in ('AURC', 'AUGRC'))
    empty = image_failure_figures(np.zeros(0), np.zeros(0))
    assert all(math.isnan(v) for v in empty.values())


@pytest.mark.parametrize(
    ('scores', 'risks', 'options', 'message'),
    [
        ([0.1], [0.1, 0.2], {}, r'must be \(N,\), got \(1,\) and \(2,\)'),
        ([math.nan, 0.1], [0.1, 0.2], {}, '1 of 2 scores are NaN or infinite'),
        ([0.1], [30.0], {}, r'risks has 1 of 1 values outside \[0, 1\]'),
        ([0.1], [0.3], {'failure': 2}, r'failure must be in \[0, 1\], got 2'),
        ([0.1], [0.3], {'confidence_interval': 0}, 'confidence_interval must be a share'),
    ],
)
def test_bad_arrays_are_refused(scores, risks, options, message):
    with pytest.raises(ValueError, match=message):
        image_failure_figures(np.array(scores), np.array(risks), **options)
