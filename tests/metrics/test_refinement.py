"""The NLL after a cross-validated temperature, against loops and the scaler that is fitted."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import references
import torch
from commands import ROOT
from metrics.test_calibration_metric import OF_FOLDS, evaluate
from samples import as_segmented, classified
from torch.nn.functional import cross_entropy

from mmcalib.metrics import (
    CalibrationMetric,
    calibration_metric,
    calibration_nll,
    optimal_temperature,
    refinement_nll,
)
from mmcalib.metrics.refinement import folds_of_places
from mmcalib.posthoc import TemperatureScaler
from mmcalib.runs.config import load_config, set_loader_defaults
from mmcalib.runs.runner import train_and_test
from mmcalib.samples.nll_curve import BETAS, nll_curve

NLL_AND_PARTS = ('NLL', *OF_FOLDS)


def draw(n=200, num_classes=5, scale=2.0, seed=0):
    """Logits of which some three quarters have the true class highest."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(num_classes, (n,), generator=generator)
    logits = torch.randn(n, num_classes, generator=generator)
    logits[torch.arange(n), labels] += 2
    return scale * logits, labels


def as_classified(logits, labels, dtype=torch.float32):
    rows = logits.softmax(dim=1).to(dtype)
    return [{'pred_score': row, 'gt_label': y[None]} for row, y in zip(rows, labels, strict=True)]


def of_metric(samples, **options):
    values = evaluate(samples, CalibrationMetric(NLL_AND_PARTS, **options))
    return {name: values[f'calibration/{name}'] for name in NLL_AND_PARTS}


def of_arrays(logits, labels, **options):
    return {
        'refinement_NLL': refinement_nll(logits, labels, **options),
        'calibration_NLL': calibration_nll(logits, labels, **options),
        'temperature': optimal_temperature(logits, labels),
    }


@pytest.mark.parametrize('num_classes', [2, 10, 100])
@pytest.mark.parametrize('scale', [0.3, 1.0, 2.7, 12.0])
def test_it_is_the_nll_of_scalers_that_are_fitted_without_the_fold(num_classes, scale):
    logits, labels = draw(300, num_classes, scale)
    fold, after = folds_of_places(range(300)), 0.0
    for k in range(5):
        temperature = TemperatureScaler().fit(logits[fold != k], labels[fold != k]).temperature_
        own = logits[fold == k].double() / float(temperature)
        after += cross_entropy(own, labels[fold == k], reduction='sum').item()
    found = of_arrays(logits, labels)
    assert found['refinement_NLL'] == pytest.approx(after / 300, rel=1e-5)
    nll = cross_entropy(logits.double(), labels).item()
    assert found['calibration_NLL'] == pytest.approx(nll - after / 300, abs=1e-5 * nll)
    scaler = TemperatureScaler().fit(logits, labels)
    assert found['temperature'] == pytest.approx(float(scaler.temperature_), rel=1e-4)


def test_a_curve_has_the_values_and_derivatives_of_each_row():
    logits, labels = draw(7, scale=4.0)
    logits, curve = logits.double(), nll_curve(logits.double().T, labels)
    for row, label, own in zip(logits, labels, curve, strict=True):
        for beta, found in zip(BETAS, own.unbind(1), strict=True):
            b = torch.tensor(beta, dtype=torch.float64, requires_grad=True)
            value = (b * row).logsumexp(0) - b * row[label]
            (slope,) = torch.autograd.grad(value, b, create_graph=True)
            (curvature,) = torch.autograd.grad(slope, b)
            expected = torch.stack([value, slope, curvature]).detach()
            torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize('factor', [0.5, 3.0])
def test_scaled_logits_have_the_same_refinement_and_a_scaled_temperature(factor):
    logits, labels = draw()
    ours, scaled = of_arrays(logits, labels), of_arrays(factor * logits, labels)
    assert scaled['refinement_NLL'] == pytest.approx(ours['refinement_NLL'], rel=1e-5)
    assert scaled['temperature'] == pytest.approx(factor * ours['temperature'], rel=1e-4)
    assert scaled['calibration_NLL'] != pytest.approx(ours['calibration_NLL'], rel=0.1)


def test_the_metric_of_probabilities_is_the_function_of_logits():
    logits, labels = draw()
    logits[:, 3] -= 5  # a class that hardly is predicted, and never true
    labels[labels == 3] = 0
    found = of_metric(as_classified(logits, labels))
    assert found['NLL'] == pytest.approx(found['refinement_NLL'] + found['calibration_NLL'])
    for name, value in of_arrays(logits, labels).items():
        assert found[name] == pytest.approx(value, abs=1e-5)
        assert of_arrays(logits.numpy(), labels.numpy())[name] == value
    for dtype, tolerance in ((torch.float16, 2e-3), (torch.bfloat16, 2e-2)):
        half = of_metric(as_classified(logits, labels, dtype))
        assert half == pytest.approx(found, rel=tolerance, abs=tolerance)
        assert of_arrays(logits.to(dtype), labels) == pytest.approx(
            of_arrays(logits, labels), rel=tolerance, abs=tolerance
        )


@pytest.mark.parametrize('num_classes', [1, 4])
def test_pixels_are_in_the_fold_of_their_image_and_ignored_ones_in_none(num_classes):
    samples, rows, labels, images = [], [], [], []
    for place in range(9):
        logits, label = draw(60, max(num_classes, 2), seed=place)
        logits = logits[:, 1:] - logits[:, :1] if num_classes == 1 else logits
        label[:place] = 255
        plane, predicted = logits.T.reshape(-1, 6, 10), logits.argmax(dim=1)
        if num_classes == 1:
            plane, predicted = plane.sigmoid(), (logits[:, 0] > 0).long()
        samples.append(as_segmented(plane, predicted.view(6, 10), label.view(6, 10)))
        rows.append(logits[place:])
        labels.append(label[place:])
        images += [place] * (60 - place)
    rows, labels, images = torch.cat(rows), torch.cat(labels), torch.tensor(images)
    found = of_metric(samples)
    own = of_arrays(rows, labels, images=images)
    own['temperature'] = optimal_temperature(rows, labels)
    for name in OF_FOLDS:
        assert found[name] == pytest.approx(own[name], abs=1e-5)
    both = torch.cat([torch.zeros_like(rows), rows], dim=1) if num_classes == 1 else rows
    nll, refined, temperature = references.refinement(
        both.tolist(), labels.tolist(), images.tolist()
    )
    assert found['NLL'] == pytest.approx(nll, rel=1e-5)
    assert found['refinement_NLL'] == pytest.approx(refined, rel=1e-5)
    assert found['temperature'] == pytest.approx(temperature, rel=1e-4)
    assert refinement_nll(rows, labels) != own['refinement_NLL']


def test_folds_are_even_and_meet_no_period():
    for period in range(1, 21):
        counts = folds_of_places(range(0, 1000 * period, period)).bincount(minlength=5)
        assert counts.min() > 190 and counts.max() < 210
    assert len(set(folds_of_places(range(3)).tolist())) == 3


def said_of(monkeypatch, samples, **options):
    said = []
    monkeypatch.setattr(calibration_metric, 'print_log', lambda text, **_: said.append(text))
    return of_metric(samples, **options), ' '.join(said)


def test_all_right_is_a_temperature_at_its_bound(monkeypatch):
    logits, _ = draw()
    found, said = said_of(monkeypatch, as_classified(logits, logits.argmax(dim=1)))
    assert found['temperature'] == pytest.approx(1 / 16)
    assert 0 <= found['refinement_NLL'] < found['NLL'] / 10
    assert 'at its bound, 0.0625: all predictions are correct' in said


def test_all_wrong_is_a_temperature_at_the_other(monkeypatch):
    logits, _ = draw()
    found, said = said_of(monkeypatch, as_classified(logits, logits.argmin(dim=1)))
    assert found['temperature'] == pytest.approx(16)
    assert math.log(5) < found['refinement_NLL'] < found['NLL']
    assert 'at its bound, 16: the predictions carry almost no information' in said


def test_a_network_that_says_nothing_has_no_worse_nll():
    samples = as_classified(torch.zeros(50, 4), torch.arange(50) % 4)
    found = of_metric(samples)
    assert found['refinement_NLL'] == pytest.approx(math.log(4)) == found['NLL']


def test_one_error_does_not_cost_what_the_others_know_nothing_of():
    """Where all others are right, their temperature would make the one error cost any price."""
    logits, _ = draw(scale=4.0)
    labels = logits.argmax(dim=1)
    labels[7] = logits[7].topk(2).indices[1]
    rows = [row.tolist() for row in logits.double().log_softmax(dim=1)]
    _, expected, _ = references.refinement(rows, labels.tolist(), range(200))
    assert refinement_nll(logits, labels) == pytest.approx(expected, rel=1e-4)
    gap = (logits[7].max() - logits[7, labels[7]]).item()
    assert refinement_nll(logits, labels) < 16 * gap / 200 / 3


def test_few_images(monkeypatch):
    found, said = said_of(monkeypatch, classified(1))
    assert math.isnan(found['refinement_NLL']) and math.isnan(found['calibration_NLL'])
    assert found['NLL'] > 0 and found['temperature'] > 0
    assert 'images from at least two of its five folds' in said
    found, said = said_of(monkeypatch, classified(3))  # fewer than folds
    assert found['refinement_NLL'] > 0 and 'fifths' not in said
    found, said = said_of(monkeypatch, [])
    assert all(math.isnan(value) for value in found.values())
    assert 'no valid prediction' in said and 'fifths' not in said
    values = of_arrays(np.zeros((0, 3)), np.zeros(0, dtype=int))
    assert all(math.isnan(value) for value in values.values())


def test_huge_logits_and_constants():
    logits, labels = draw()
    shifted = of_arrays(logits.double() + 1e9, labels)
    assert shifted == pytest.approx(of_arrays(logits.double(), labels), abs=1e-5)
    huge = torch.tensor([[3e38, -3e38]] * 10)
    assert refinement_nll(huge, torch.zeros(10, dtype=torch.int64)) == 0
    assert math.isfinite(refinement_nll(huge, torch.ones(10, dtype=torch.int64)))


@pytest.mark.parametrize(
    ('logits', 'labels', 'error', 'message'),
    [
        ([[0.3, 0.7]], [0], ValueError, 'sum to 1, as probabilities do: give raw logits'),
        ([[0.3, np.nan]], [0], ValueError, 'NaN or infinite'),
        ([[3.0, 1.0]], [2], ValueError, r'outside \[0, 2\): 2'),
        ([[3.0, 1.0]], [0.0], TypeError, 'labels must be integers'),
        ([[3, 1]], [0], TypeError, 'logits must be floats'),
        ([[[3.0, 1.0]]], [0], ValueError, r'logits must be \(N, K\)'),
    ],
)
def test_bad_arrays_are_refused(logits, labels, error, message):
    with pytest.raises(error, match=message):
        refinement_nll(np.array(logits), np.array(labels))


def test_images_must_be_those_of_the_rows():
    logits, labels = draw()
    with pytest.raises(ValueError, match=r'images must be \(200,\), .* got \(3,\)'):
        refinement_nll(logits, labels, images=np.arange(3))


def test_maps_of_logits_are_rows_of_images():
    logits, labels = draw()
    images = torch.arange(200) // 20
    maps = logits.view(10, 4, 5, -1).movedim(-1, 1)
    targets = labels.view(10, 4, 5).clone()
    targets[:, 0] = 255
    kept = targets.flatten() != 255
    expected = refinement_nll(logits[kept], labels[kept], images=images[kept])
    assert refinement_nll(maps, targets, ignore_index=255) == expected
    assert refinement_nll(maps.tolist(), targets.tolist(), ignore_index=255) == pytest.approx(
        expected, rel=1e-5
    )
    assert optimal_temperature(maps, targets, ignore_index=255) == optimal_temperature(
        logits[kept], labels[kept]
    )
    binary = logits[:, 0]
    assert refinement_nll(binary, labels % 2) == refinement_nll(binary[:, None], labels % 2)


def test_a_checkpoint_is_kept_by_its_refinement(tmp_path):
    """In a training: the epoch that is kept is the one of the least value in the log."""
    key = 'calibration/refinement_NLL'
    evaluator = [dict(type='CalibrationMetric', metrics=[*NLL_AND_PARTS, 'ECE'])]
    options = {
        'train_cfg.max_epochs': 3,
        'train_cfg.val_interval': 1,
        'train_dataloader.dataset.indices': 300,
        'test_dataloader.dataset.indices': 50,
        'default_hooks.checkpoint.save_best': key,
        'default_hooks.checkpoint.rule': 'less',
        'val_evaluator': evaluator,
    }
    cfg = load_config(str(ROOT / 'configs/ce/digits.py'), options)
    cfg.work_dir, cfg.launcher, cfg.experiment_name = str(tmp_path), 'none', tmp_path.name
    set_loader_defaults(cfg)
    train_and_test(cfg)
    (log,) = tmp_path.glob('*/vis_data/scalars.json')
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    validations = [line for line in lines if key in line]
    assert len(validations) == 3
    for line in validations:
        parts = line[key] + line['calibration/calibration_NLL']
        assert line['calibration/NLL'] == pytest.approx(parts, rel=1e-4)
        assert line['calibration/temperature'] > 0
    best = 1 + min(range(3), key=lambda number: validations[number][key])
    (kept,) = Path(tmp_path).glob('best_*')
    assert kept.name == f'best_calibration_refinement_NLL_epoch_{best}.pth'
