"""Scores, risks and IoU of images, and how well scores order them: against plain loops."""

import csv
import itertools
import math

import numpy as np
import pytest
import references
import torch
from mmseg.evaluation import IoUMetric
from samples import as_segmented, classified, probabilities, segmented
from sklearn.metrics import jaccard_score
from test_all_metrics import evaluate

from mmcalib.metrics import image_failure_figures, image_risks, image_scores, pairwise_dice
from mmcalib.metrics.image_scores import CLASSIFIER_SCORES, SEGMENTOR_SCORES
from mmcalib.openmmlab.metrics import ForegroundIoU, ImageScoreMetric

CLASSES, PLANES = ('background', *'abcd'), ('pred_sem_seg', 'gt_sem_seg')


def draw(size=(4, 5), num_classes=4, seed=0):
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(num_classes, *size, generator=generator, dtype=torch.float64)
    return logits.softmax(dim=0)


@pytest.mark.parametrize('background', [None, 0])
def test_scores_are_those_of_loops(background):
    certain, unsure = torch.eye(3)[[0, 1, 2, 1]].T, torch.tensor([[0.9, 0.6], [0.1, 0.4]])
    for probs in (*(draw(seed=seed) for seed in range(4)), certain, unsure, unsure[:, :1]):
        expected = references.image_scores(probs.flatten(1).numpy(), background)
        for given in (probs, probs.numpy()):
            found = image_scores(given, background=background)
            assert found == pytest.approx(expected, rel=1e-6)


def test_risks_at_their_limits():
    nothing, one = np.zeros(4, int), np.array([0, 0, 0, 1])
    assert set(image_risks(nothing, nothing, background=0).values()) == {0}
    for pair in ((nothing, one), (one, nothing)):
        assert list(image_risks(*pair, background=0).values()) == [1, 1, 0.25]
    assert all(math.isnan(v) for v in image_risks(one, np.full(4, 255)).values())
    assert image_risks(one, np.full(4, 255), ignore_index=None)['error'] == 1
    assert pairwise_dice(np.zeros((3, 4), int), background=0) == 1
    assert math.isnan(pairwise_dice(one[None]))


def scores_and_risks(count, seed, levels=None):
    rng = np.random.default_rng(seed)
    risks = rng.random(count)
    scores = -risks + 0.5 * rng.standard_normal(count)
    if levels:
        scores, risks = (np.round(levels * x) / levels for x in (scores, risks))
    return scores, risks


@pytest.mark.parametrize(('count', 'levels'), [(30, None), (7, 2), (1, None), (6, 1)])
def test_figures_are_those_of_loops(count, levels):
    for seed in range(3):
        scores, risks = scores_and_risks(count, seed, levels)
        found = image_failure_figures(scores, risks)
        expected = references.image_failure_figures(scores, risks, 0.5)
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


def test_one_image_has_no_interval_and_no_order_and_none_has_nothing():
    found = image_failure_figures(np.array([0.5]), np.array([0.25]), confidence_interval=0.95)
    assert (found.pop('AURC'), found.pop('AUGRC')) == (25, 25)
    empty = image_failure_figures(np.zeros(0), np.zeros(0)), evaluate([], ImageScoreMetric())
    assert all(math.isnan(v) for values in (found, *empty) for v in values.values())


def metric_of(scores, **options):
    return ImageScoreMetric(scores, confidence_interval=None, **options)


def flat(sample, key):
    return sample[key]['data'].flatten().numpy()


def figures_of(name, scores, risks):
    found = references.image_failure_figures(np.array(scores), np.array(risks), 0.5)
    return {f'image/{name}/{key}': value for key, value in found.items()}


def approx(values):
    return pytest.approx(values, rel=1e-4, nan_ok=True)


@pytest.mark.parametrize(('classes', 'background'), [(None, None), (CLASSES, 0)])
@pytest.mark.parametrize('risk', ['IoU', 'Dice', 'error'])
def test_segmented_images(classes, background, risk):
    samples, scores, risks = segmented(9, size=(5, 7)), [], []
    for sample in samples:
        probs = sample['seg_logits']['data'].double().softmax(0).flatten(1).numpy()
        scores.append(references.image_scores(probs, background))
        maps = [flat(sample, key) for key in PLANES]
        risks.append(references.image_risks(*maps, background)[risk])
    expected = {'image/risk': 100 * np.mean(risks)}
    for name in SEGMENTOR_SCORES:
        expected |= figures_of(name, [each[name] for each in scores], risks)
    found = evaluate(samples, metric_of(SEGMENTOR_SCORES, risk=risk), meta=dict(classes=classes))
    assert found == approx(expected)


def test_a_classifiers_images_are_right_or_wrong():
    samples = classified(40)
    probs, labels = map(np.array, probabilities(samples))
    wrong = (probs.argmax(axis=1) != labels).astype(float)
    expected = {'image/risk': 100 * wrong.mean()}
    expected |= figures_of('entropy', (probs * np.log(probs)).sum(axis=1), wrong)
    expected |= figures_of('confidence', probs.max(axis=1), wrong)
    assert evaluate(samples, metric_of(CLASSIFIER_SCORES)) == approx(expected)


def test_a_binary_head_has_two_classes():
    probs = torch.tensor([[[0.9, 0.2], [0.6, 0.1]]])
    sample = as_segmented(probs, (probs[0] > 0.5).long(), torch.tensor([[1, 0], [0, 255]]))
    found = evaluate([sample, sample], metric_of('soft_dice', background=0, risk='Dice'))
    assert found['image/risk'] == pytest.approx(100 * (1 - 2 / 3))


def test_an_image_without_a_label_drops_out_and_is_in_the_file(tmp_path):
    samples, scores = segmented(5), ('confidence', 'soft_dice')
    samples[2]['gt_sem_seg']['data'][:] = 255
    file = tmp_path / 'out/images.csv'
    found = evaluate(samples, metric_of(scores, out_file=str(file)))
    assert found == approx(evaluate([*samples[:2], *samples[3:]], metric_of(scores)))
    rows = list(csv.DictReader(file.open(encoding='utf-8')))
    assert [row['image'] for row in rows] == [f'image_{n}.jpg' for n in range(5)]
    assert rows[2]['risk'] == 'nan' and 0 < float(rows[2]['soft_dice']) < 1


def test_scores_of_members():
    samples, generator = segmented(6), torch.Generator().manual_seed(0)
    names, risks = ('pairwise_dice', 'mutual_information'), []
    scores = {name: [] for name in names}
    for sample in samples:
        maps = torch.randint(5, (3, 12, 17), generator=generator).short()
        information = torch.rand(1, 12, 17, generator=generator)
        sample['disagreement'] = dict(predictions=maps, mutual_information=information)
        pairs = itertools.combinations(maps.flatten(1).numpy(), 2)
        dice = [1 - references.image_risks(*pair, None)['Dice'] for pair in pairs]
        scores['pairwise_dice'].append(np.mean(dice))
        scores['mutual_information'].append(information.mean().item())
        maps = [flat(sample, key) for key in PLANES]
        risks.append(references.image_risks(*maps, None)['IoU'])
    expected = {'image/risk': 100 * np.mean(risks)}
    for name, values in scores.items():
        expected[f'image/{name}'] = np.mean(values)
        sign = -1 if name == 'mutual_information' else 1  # in nats, and ranked by less
        expected |= figures_of(name, [sign * s for s in values], risks)
    assert evaluate(samples, metric_of(names)) == approx(expected)


def test_foreground_iou_is_mmsegs_but_for_the_background():
    samples = segmented(3)
    predicted, label = (np.concatenate([flat(s, key) for s in samples]) for key in PLANES)
    known = label != 255
    ious = jaccard_score(label[known], predicted[known], average=None)
    assert evaluate(samples, ForegroundIoU())['mIoU'] == pytest.approx(100 * ious[1:].mean())
    theirs = evaluate(samples, IoUMetric(), meta={'classes': list('abcde')})['mIoU']
    assert theirs == pytest.approx(100 * ious.mean(), abs=0.01)


def test_nothing_but_background_has_no_iou():
    samples = segmented(2)
    for sample in samples:
        for key in PLANES:
            sample[key]['data'].fill_(0)
    for found in (samples, []):
        assert math.isnan(evaluate(found, ForegroundIoU())['mIoU'])
