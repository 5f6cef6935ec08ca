"""Scores, risks and IoU of images, and failure detection by scores: against plain loops."""

import csv
import itertools
import math

import numpy as np
import pytest
import references
import torch
from evaluators import evaluate
from mmseg.evaluation import IoUMetric
from samples import as_segmented, classified, probabilities, segmented
from sklearn.metrics import jaccard_score

from mmcalib.metrics import image_failure_figures, image_risks, image_scores, pairwise_dice
from mmcalib.metrics.image_scores import CLASSIFIER_SCORES, SEGMENTOR_SCORES
from mmcalib.openmmlab.metrics import ForegroundIoU, ImageScoreMetric

CLASSES = ('background', *'abcd')
MAP_FIELDS = ('pred_sem_seg', 'gt_sem_seg')


def draw(size=(4, 5), num_classes=4, seed=0):
    torch.manual_seed(seed)
    logits = 2 * torch.randn(num_classes, *size, dtype=torch.float64)
    return logits.softmax(dim=0)


CERTAIN = torch.eye(3)[[0, 1, 2, 1]].T
UNSURE = torch.tensor([[0.9, 0.6], [0.1, 0.4]])
PROBABILITIES = [*(draw(seed=seed) for seed in range(4)), CERTAIN, UNSURE, UNSURE[:, :1]]


@pytest.mark.parametrize('background', [None, 0])
@pytest.mark.parametrize('probs', PROBABILITIES)
def test_image_scores_tensor_or_array_equals_loop(probs, background):
    expected = references.image_scores(probs.flatten(1).numpy(), background)
    assert image_scores(probs, background=background) == pytest.approx(expected, rel=1e-6)
    assert image_scores(probs.numpy(), background=background) == pytest.approx(expected, rel=1e-6)


def test_image_risks_no_object_or_no_label_are_at_their_limits():
    no_object = np.zeros(4, int)
    one_object = np.array([0, 0, 0, 1])
    no_label = np.full(4, 255)
    assert set(image_risks(no_object, no_object, background=0).values()) == {0}
    for predicted, labels in ((no_object, one_object), (one_object, no_object)):
        assert list(image_risks(predicted, labels, background=0).values()) == [1, 1, 0.25]
    assert all(math.isnan(risk) for risk in image_risks(one_object, no_label).values())
    assert image_risks(one_object, no_label, ignore_index=None)['error'] == 1


def test_pairwise_dice_no_object_is_1_and_one_prediction_nan():
    assert pairwise_dice(np.zeros((3, 4), int), background=0) == 1
    assert math.isnan(pairwise_dice(np.array([[0, 0, 0, 1]])))


def scores_and_risks(count, seed, levels=None):
    """Return scores that follow the negative risks, both rounded to so many levels, and risks."""
    rng = np.random.default_rng(seed)
    risks = rng.random(count)
    scores = -risks + 0.5 * rng.standard_normal(count)
    if levels:
        scores = np.round(levels * scores) / levels
        risks = np.round(levels * risks) / levels
    return scores, risks


@pytest.mark.parametrize(('count', 'levels'), [(30, None), (7, 2), (1, None), (6, 1)])
@pytest.mark.parametrize('seed', range(3))
def test_image_failure_figures_with_or_without_ties_equal_loop(count, levels, seed):
    scores, risks = scores_and_risks(count, seed, levels)
    actual = image_failure_figures(scores, risks)
    expected = references.image_failure_figures(scores, risks, 0.5)
    assert actual == pytest.approx(expected, nan_ok=True)


def test_image_failure_interval_holds_figures_of_population():
    scores, risks = scores_and_risks(20_000, 0)
    true_figures = image_failure_figures(scores, risks)
    rng = np.random.default_rng(1)
    held = []
    for seed in range(60):
        images = rng.integers(0, len(scores), 60)
        ends = image_failure_figures(
            scores[images], risks[images], confidence_interval=0.9, num_bootstrap=200, seed=seed
        )
        held.append(
            [ends[f'{n}_low'] <= value <= ends[f'{n}_high'] for n, value in true_figures.items()]
        )
    assert (np.mean(held, axis=0) > 0.75).all()
    assert np.mean(held) < 0.98


def test_image_failure_figures_one_image_have_no_interval_and_no_order():
    figures = image_failure_figures(np.array([0.5]), np.array([0.25]), confidence_interval=0.95)
    assert figures.pop('AURC') == 25
    assert figures.pop('AUGRC') == 25
    assert all(math.isnan(value) for value in figures.values())


def test_image_failure_figures_no_image_are_nan():
    figures = image_failure_figures(np.zeros(0), np.zeros(0))
    assert all(math.isnan(value) for value in figures.values())
    figures = evaluate([], ImageScoreMetric())
    assert all(math.isnan(value) for value in figures.values())


def score_metric(scores, **options):
    return ImageScoreMetric(scores, confidence_interval=None, **options)


def flat_map(sample, key):
    return sample[key]['data'].flatten().numpy()


def reference_figures(name, scores, risks):
    figures = references.image_failure_figures(np.array(scores), np.array(risks), 0.5)
    return {f'image/{name}/{key}': value for key, value in figures.items()}


def approx(values):
    return pytest.approx(values, rel=1e-4, nan_ok=True)


@pytest.mark.parametrize(('classes', 'background'), [(None, None), (CLASSES, 0)])
@pytest.mark.parametrize('risk', ['IoU', 'Dice', 'error'])
def test_image_score_metric_segmentations_equals_loop(classes, background, risk):
    samples = segmented(9, size=(5, 7))
    scores = []
    risks = []
    for sample in samples:
        probs = sample['seg_logits']['data'].double().softmax(0).flatten(1).numpy()
        scores.append(references.image_scores(probs, background))
        predicted, labels = (flat_map(sample, key) for key in MAP_FIELDS)
        risks.append(references.image_risks(predicted, labels, background)[risk])
    expected = {'image/risk': 100 * np.mean(risks)}
    for name in SEGMENTOR_SCORES:
        expected |= reference_figures(name, [values[name] for values in scores], risks)
    metric = score_metric(SEGMENTOR_SCORES, risk=risk)
    assert evaluate(samples, metric, meta=dict(classes=classes)) == approx(expected)


def test_image_score_metric_classifier_risk_is_error():
    samples = classified(40)
    probs, labels = map(np.array, probabilities(samples))
    is_wrong = (probs.argmax(axis=1) != labels).astype(float)
    expected = {'image/risk': 100 * is_wrong.mean()}
    expected |= reference_figures('entropy', (probs * np.log(probs)).sum(axis=1), is_wrong)
    expected |= reference_figures('confidence', probs.max(axis=1), is_wrong)
    assert evaluate(samples, score_metric(CLASSIFIER_SCORES)) == approx(expected)


def test_image_score_metric_binary_head_has_two_classes():
    probs = torch.tensor([[[0.9, 0.2], [0.6, 0.1]]])
    sample = as_segmented(probs, (probs[0] > 0.5).long(), torch.tensor([[1, 0], [0, 255]]))
    values = evaluate([sample, sample], score_metric('soft_dice', background=0, risk='Dice'))
    assert values['image/risk'] == pytest.approx(100 * (1 - 2 / 3))


def test_image_score_metric_image_without_label_is_only_in_the_file(tmp_path):
    samples = segmented(5)
    samples[2]['gt_sem_seg']['data'][:] = 255
    scores = ('confidence', 'soft_dice')
    file = tmp_path / 'out/images.csv'
    actual = evaluate(samples, score_metric(scores, out_file=str(file)))
    labelled = [*samples[:2], *samples[3:]]
    assert actual == approx(evaluate(labelled, score_metric(scores)))
    rows = list(csv.DictReader(file.open(encoding='utf-8')))
    assert [row['image'] for row in rows] == [f'image_{n}.jpg' for n in range(5)]
    assert rows[2]['risk'] == 'nan'
    assert 0 < float(rows[2]['soft_dice']) < 1


def test_image_score_metric_scores_of_members_equal_loop():
    samples = segmented(6)
    torch.manual_seed(0)
    risks = []
    scores = {'pairwise_dice': [], 'mutual_information': []}
    for sample in samples:
        maps = torch.randint(5, (3, 12, 17)).short()
        information = torch.rand(1, 12, 17)
        sample['disagreement'] = dict(predictions=maps, mutual_information=information)
        pairs = itertools.combinations(maps.flatten(1).numpy(), 2)
        dice = [1 - references.image_risks(*pair, None)['Dice'] for pair in pairs]
        scores['pairwise_dice'].append(np.mean(dice))
        scores['mutual_information'].append(information.mean().item())
        predicted, labels = (flat_map(sample, key) for key in MAP_FIELDS)
        risks.append(references.image_risks(predicted, labels, None)['IoU'])
    expected = {'image/risk': 100 * np.mean(risks)}
    for name, values in scores.items():
        expected[f'image/{name}'] = np.mean(values)
        # An image with less mutual information is to be trusted more.
        sign = -1 if name == 'mutual_information' else 1
        expected |= reference_figures(name, [sign * value for value in values], risks)
    assert evaluate(samples, score_metric(tuple(scores))) == approx(expected)


def test_foreground_iou_leaves_background_out_of_that_of_mmseg():
    samples = segmented(3)
    predicted = np.concatenate([flat_map(sample, 'pred_sem_seg') for sample in samples])
    labels = np.concatenate([flat_map(sample, 'gt_sem_seg') for sample in samples])
    is_valid = labels != 255
    ious = jaccard_score(labels[is_valid], predicted[is_valid], average=None)
    assert evaluate(samples, ForegroundIoU())['mIoU'] == pytest.approx(100 * ious[1:].mean())
    mmseg_iou = evaluate(samples, IoUMetric(), meta={'classes': list('abcde')})['mIoU']
    assert mmseg_iou == pytest.approx(100 * ious.mean(), abs=0.01)


def test_foreground_iou_only_background_or_no_sample_is_nan():
    samples = segmented(2)
    for sample in samples:
        for key in MAP_FIELDS:
            sample[key]['data'].fill_(0)
    assert math.isnan(evaluate(samples, ForegroundIoU())['mIoU'])
    assert math.isnan(evaluate([], ForegroundIoU())['mIoU'])
