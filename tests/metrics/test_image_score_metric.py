"""Scores of images beside their risks, out of data samples of both toolboxes."""

import csv
import math

import numpy as np
import pytest
import references
import torch
from forked import on_ranks
from mmengine.evaluator import Evaluator
from samples import as_segmented, classified, probabilities, segmented

from mmcalib.metrics import ImageScoreMetric
from mmcalib.metrics.image_scores import OF_CLASSIFIERS, OF_SEGMENTORS

NO_INTERVAL = dict(confidence_interval=None)
CLASSES = ('background', *'abcd')


def evaluate(samples, metric, *, size=None, classes=None):
    evaluator = Evaluator([metric])
    if classes:
        evaluator.dataset_meta = {'classes': classes}
    for start in range(0, len(samples), 3):
        evaluator.process(samples[start : start + 3])
    return evaluator.evaluate(len(samples) if size is None else size)


def in_loops(samples, background, risk):
    """Rows of risk and scores of segmented samples, and the figures of each score."""
    rows = []
    for sample in samples:
        probs = sample['seg_logits']['data'].double().softmax(0).flatten(1).T.tolist()
        predicted = sample['pred_sem_seg']['data'].flatten().tolist()
        labels = sample['gt_sem_seg']['data'].flatten().tolist()
        scores = references.image_scores(probs, background)
        rows.append((references.image_risks(predicted, labels, background)[risk], scores))
    found = {'image/risk': 100 * sum(risk for risk, _ in rows) / len(rows)}
    for name in OF_SEGMENTORS:
        values = [scores[name] for _, scores in rows], [risk for risk, _ in rows]
        figures = references.image_failure_figures(*values, 0.5)
        found |= {f'image/{name}/{key}': value for key, value in figures.items()}
    return found


def approx(values):
    return pytest.approx(values, rel=1e-4, nan_ok=True)


@pytest.mark.parametrize(('classes', 'background'), [(None, None), (CLASSES, 0)])
@pytest.mark.parametrize('risk', ['IoU', 'Dice', 'error'])
def test_it_is_the_loops_over_segmented_images(classes, background, risk):
    samples = segmented(9, size=(5, 7))
    metric = ImageScoreMetric(OF_SEGMENTORS, risk=risk, **NO_INTERVAL)
    assert evaluate(samples, metric, classes=classes) == approx(in_loops(samples, background, risk))


def test_a_classifiers_images_are_right_or_wrong():
    samples = classified(40)
    found = evaluate(samples, ImageScoreMetric(OF_CLASSIFIERS, **NO_INTERVAL))
    probs, labels = probabilities(samples)
    wrong = [float(p.index(max(p)) != y) for p, y in zip(probs, labels, strict=True)]
    entropy = [sum(x * math.log(x) for x in p) for p in probs]
    for name, scores in (('confidence', [max(p) for p in probs]), ('entropy', entropy)):
        figures = references.image_failure_figures(scores, wrong, 0.5)
        assert {k: found[f'image/{name}/{k}'] for k in figures} == approx(figures)
    assert found['image/risk'] == pytest.approx(100 * sum(wrong) / 40)


def test_a_binary_head_has_two_classes():
    probs = torch.tensor([[[0.9, 0.2], [0.6, 0.1]]])
    label = torch.tensor([[1, 0], [0, 255]])
    sample = as_segmented(probs, (probs[0] > 0.5).long(), label)
    metric = ImageScoreMetric('soft_dice', background=0, risk='Dice', **NO_INTERVAL)
    found = evaluate([sample, sample], metric)
    assert found['image/risk'] == pytest.approx(100 * (1 - 2 / 3))


def test_an_image_without_a_label_drops_out_and_is_in_the_file(tmp_path):
    samples = segmented(5)
    samples[2]['gt_sem_seg']['data'][:] = 255
    file = tmp_path / 'out/images.csv'
    metric = ImageScoreMetric(('confidence', 'soft_dice'), out_file=str(file), **NO_INTERVAL)
    found = evaluate(samples, metric)
    others = [sample for number, sample in enumerate(samples) if number != 2]
    expected = evaluate(others, ImageScoreMetric(('confidence', 'soft_dice'), **NO_INTERVAL))
    assert found == pytest.approx(expected, nan_ok=True)
    rows = list(csv.DictReader(file.open(encoding='utf-8')))
    assert [row['image'] for row in rows] == [f'image_{n}.jpg' for n in range(5)]
    assert rows[2]['risk'] == 'nan' and 0 < float(rows[2]['soft_dice']) < 1


def test_without_images_all_is_nan():
    assert all(math.isnan(v) for v in evaluate([], ImageScoreMetric()).values())


def test_one_image_has_a_risk_and_no_order():
    found = evaluate(segmented(1), ImageScoreMetric())
    assert 0 < found['image/risk'] == pytest.approx(found['image/confidence/AURC'])
    assert math.isnan(found['image/confidence/Spearman'])
    assert math.isnan(found['image/confidence/AURC_low'])


def of_a_mean(samples):
    generator = torch.Generator().manual_seed(0)
    for sample in samples:
        shape = sample['seg_logits']['data'].shape[1:]
        maps = {'mutual_information': torch.rand(1, *shape, generator=generator)}
        maps['predictions'] = torch.randint(5, (3, *shape), generator=generator).short()
        sample['disagreement'] = maps
    return samples


def test_scores_of_members(tmp_path):
    samples = of_a_mean(segmented(6))
    names = ('pairwise_dice', 'mutual_information')
    metric = ImageScoreMetric(names, **NO_INTERVAL, out_file=str(tmp_path / 'a.csv'))
    found = evaluate(samples, metric)
    risks = [
        references.image_risks(
            s['pred_sem_seg']['data'].flatten().tolist(),
            s['gt_sem_seg']['data'].flatten().tolist(),
            None,
        )['IoU']
        for s in samples
    ]
    dice = [
        np.mean([
            1 - references.image_risks(a.tolist(), b.tolist(), None)['Dice']
            for a, b in ((m[0], m[1]), (m[0], m[2]), (m[1], m[2]))
        ])
        for m in (s['disagreement']['predictions'].flatten(1) for s in samples)
    ]  # fmt: skip
    information = [s['disagreement']['mutual_information'].mean().item() for s in samples]
    rows = list(csv.DictReader((tmp_path / 'a.csv').open()))
    for name, scores in (('pairwise_dice', dice), ('mutual_information', information)):
        assert [float(row[name]) for row in rows] == pytest.approx(scores)
        assert found[f'image/{name}'] == pytest.approx(np.mean(scores))
        sign = -1 if name == 'mutual_information' else 1  # in nats, and ranked by less
        figures = references.image_failure_figures([sign * s for s in scores], risks, 0.5)
        assert {k: found[f'image/{name}/{k}'] for k in figures} == approx(figures)


@pytest.mark.parametrize(
    ('samples', 'score', 'text'),
    [
        (
            segmented,
            'pairwise_dice',
            'image_0.jpg has no pairwise_dice, only confidence, .* a mean',
        ),
        (classified, 'mutual_information', 'sample 0 has no mutual_information, only'),
        (classified, 'soft_dice', 'no soft_dice, only confidence, entropy: segmentations'),
        (classified, 'pairwise_dice', 'no pairwise_dice, only confidence, entropy: segmentations'),
    ],
)
def test_scores_that_a_sample_does_not_have_are_named(samples, score, text):
    with pytest.raises(ValueError, match=text):
        ImageScoreMetric(score).process(None, samples(1))


@pytest.mark.parametrize(
    ('options', 'text'),
    [
        (dict(scores=[]), 'got none'),
        (dict(scores='dice'), "scores must be one of .*, got 'dice'"),
        (dict(scores='variance'), 'variance is gone since 0.3.0: use mutual_information'),
        (dict(risk='mIoU'), "risk must be one of .*, got 'mIoU'"),
        (dict(failure=50), 'failure must be in'),
        (dict(out_file='images.json'), r"must be a \.csv file, got 'images.json'"),
    ],
)
def test_bad_options_are_refused(options, text):
    with pytest.raises(ValueError, match=text):
        ImageScoreMetric(**options)


def _two_ranks(rank, samples, expected):
    padded = [*samples, samples[0]]  # as mmengine's sampler does for an odd number of images
    found = evaluate(padded[rank::2], ImageScoreMetric(('confidence', 'soft_dice')), size=7)
    assert found == pytest.approx(expected, nan_ok=True)


def test_two_ranks_give_the_numbers_of_one():
    samples = segmented(7)
    expected = evaluate(samples, ImageScoreMetric(('confidence', 'soft_dice')))
    on_ranks(_two_ranks, 2, samples, expected)
