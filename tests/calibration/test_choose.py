"""The choice of a method where the true scaling is known."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from drawn import draw_of_arrays, held_out
from overconfident import draw_labels

from mmcalib.calibration.choose import NONE, choose_method, methods_for
from mmcalib.calibration.cross_fit import fit_folds
from mmcalib.calibration.held_out import HeldOut
from mmcalib.calibration.independent_groups import Groups
from mmcalib.posthoc import SCALERS

TRUE_SCALES = np.array([0.2, 1.5, 0.7, 1.0])
TRUE_SHIFTS = np.array([2.0, -1.0, 0.0, 0.0])


def make_draw(true_scaling, *, n=6000, num_classes=4, rows_per_image=1):
    """Return logits with labels that are as likely as scaled logits say."""
    rng = np.random.default_rng(0)
    logits = 2 * rng.normal(size=(n, num_classes))
    labels = draw_labels(true_scaling(logits), rng)
    return draw_of_arrays(logits, labels, torch.arange(n) // rows_per_image)


def choose(draw):
    """Return the chosen method, and the candidates by method."""
    methods = methods_for(draw.logits.shape[1], num_groups=draw.num_images, pixels=draw.pixels)
    chosen, candidates = choose_method(held_out(draw), methods)
    by_method = {candidate['method']: candidate for candidate in candidates}
    assert list(by_method) == [NONE, *methods]
    return chosen, by_method


@pytest.mark.parametrize(
    ('true_scaling', 'num_classes', 'expected'),
    [
        (lambda logits: logits, 4, [NONE]),
        (lambda logits: logits / 2.5, 4, ['temperature']),
        (lambda logits: logits * TRUE_SCALES + TRUE_SHIFTS, 4, ['vector']),
        # With one logit, both are a scale and a shift.
        (lambda logits: 0.3 * logits - 1, 1, ['platt', 'vector']),
    ],
)
def test_choose_known_scaling_is_chosen(true_scaling, num_classes, expected):
    chosen, candidates = choose(make_draw(true_scaling, num_classes=num_classes))
    assert chosen in expected
    assert candidates['temperature']['accuracy'] == candidates[NONE]['accuracy']


def test_choose_overconfident_temperature_has_lower_nll():
    _, candidates = choose(make_draw(lambda logits: logits / 2.5))
    assert candidates[NONE]['nll'] > candidates['temperature']['nll'] + 0.1


def test_choose_difference_to_best_equals_loop():
    draw = make_draw(lambda logits: logits / 2, n=300, rows_per_image=10)
    _, candidates = choose(draw)
    best = min(candidates.values(), key=lambda candidate: candidate['nll'])['method']
    data = held_out(draw)
    scalers = fit_folds(SCALERS[best](), data)
    excess = []
    for logits, label, image in zip(draw.logits, draw.labels, draw.rows.images, strict=True):
        scaled = scalers[data.folds[image]].transform(logits[None])[0]
        loss = logits.logsumexp(dim=0) - logits[label]
        scaled_loss = scaled.logsumexp(dim=0) - scaled[label]
        excess.append((loss - scaled_loss).item())
    mean = sum(excess) / len(excess)
    sum_of_squares = 0.0
    for image in range(30):
        image_excess = excess[10 * image : 10 * image + 10]
        sum_of_squares += sum(value - mean for value in image_excess) ** 2
    assert candidates[NONE]['above_best'] == pytest.approx(mean)
    assert candidates[NONE]['standard_error'] == pytest.approx(sum_of_squares**0.5 / 300)
    assert candidates['temperature']['above_best'] < candidates[NONE]['above_best']


def test_choose_pixels_miou_equals_loop():
    draw = make_draw(lambda logits: logits / 2, n=300, rows_per_image=10)
    _, candidates = choose(replace(draw, pixels=True))
    predicted = draw.logits.argmax(dim=1)
    ious = []
    for label in range(4):
        is_predicted = predicted == label
        is_label = draw.labels == label
        intersection = (is_predicted & is_label).sum()
        union = (is_predicted | is_label).sum()
        ious.append((intersection / union).item())
    assert candidates[NONE]['miou'] == pytest.approx(100 * sum(ious) / 4)


def test_choose_method_that_cannot_be_fitted_has_problem():
    draw = make_draw(lambda logits: logits, n=50)
    draw.labels[:] = 2
    chosen, candidates = choose(draw)
    assert 'all labels have class 2' in candidates['vector']['problem']
    assert chosen not in ('vector', 'matrix')


def folds_of(num_images):
    return HeldOut(None, Groups(torch.arange(num_images), num_images)).folds


def test_folds_sizes_are_nearly_equal():
    sizes = folds_of(42).bincount()
    assert len(sizes) == 5
    assert sizes.max() - sizes.min() <= 1


def test_folds_few_groups_have_one_each():
    assert folds_of(3).sort().values.tolist() == [0, 1, 2]
