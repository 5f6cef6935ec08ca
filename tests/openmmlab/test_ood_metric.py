"""Detection of unknown classes, against scikit-learn."""

import math

import numpy as np
import pytest
import torch
from evaluators import evaluate
from samples import as_segmented, segmented
from scipy.special import entr, logsumexp, softmax
from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve
from tiny_models import fcn_head, segmentor

from mmcalib.metrics import scores_of_logits
from mmcalib.metrics.ood_scores import SCORES
from mmcalib.openmmlab.hooks.head_options_hook import set_head_options
from mmcalib.openmmlab.metrics import OODMetric, list_metric

SETS = dict(near=['one'], far=['two', 'three'])
FIGURES = ('AUROC', 'AUPR_in', 'AUPR_out', 'FPR95')


def classified_with_logits(n, labels):
    """A classifier's samples with logits in float64, less confident where the label is negative."""
    torch.manual_seed(0)
    samples = []
    for index in range(n):
        label = labels[index % len(labels)]
        scale = 3 if label >= 0 else 2 + label / 4
        logits = scale * torch.randn(5, dtype=torch.float64)
        samples.append(
            {
                'logits': logits,
                'pred_score': logits.softmax(0),
                'gt_label': torch.tensor([label]),
                'sample_idx': index,
            }
        )
    return samples


def segmented_with_ood(n):
    """Segmented samples in float64 with some pixels of an OOD label, and some of 255."""
    samples = segmented(n, size=(5, 7))
    for index, sample in enumerate(samples):
        sample['seg_logits']['data'] = sample['seg_logits']['data'].double()
        sample['gt_sem_seg']['data'][0, 3 : 5 - index % 2, 1:5] = 7
    return samples


def logits_and_origins(samples):
    """The logits of all valid predictions; 0 if in distribution, else the number of the OOD set."""
    logits = []
    origins = []
    for sample in samples:
        if 'seg_logits' in sample:
            label = sample['gt_sem_seg']['data'].flatten()
            valid = label != 255
            logits += sample['seg_logits']['data'].flatten(1).T[valid].tolist()
            origins += (label == 7)[valid].tolist()
        else:
            logits.append(sample['logits'].tolist())
            origins.append(max(-sample['gt_label'].item(), 0))
    return np.array(logits), np.array(origins)


def expected_figures(samples, score, ood_set):
    """The figures of scikit-learn for the in-distribution samples and one OOD set, in percent."""
    logits, origins = logits_and_origins(samples)
    is_compared = np.isin(origins, (0, ood_set))
    logits = logits[is_compared]
    if score == 'max_probability':
        values = softmax(logits, axis=1).max(axis=1)
    elif score == 'max_logit':
        values = logits.max(axis=1)
    elif score == 'energy':
        values = logsumexp(logits, axis=1)
    else:
        values = -entr(softmax(logits, axis=1)).sum(axis=1)
    is_id = origins[is_compared] == 0
    flagged, recall, _ = roc_curve(~is_id, -values, drop_intermediate=False)
    figures = {
        'AUROC': roc_auc_score(is_id, values),
        'AUPR_in': average_precision_score(is_id, values),
        'AUPR_out': average_precision_score(~is_id, -values),
        'FPR95': flagged[recall >= 0.95][0],
    }
    return {name: 100 * value for name, value in figures.items()}


@pytest.mark.parametrize('score', SCORES)
def test_ood_metric_named_sets_equals_sklearn(score):
    samples = classified_with_logits(60, [0, 4, -1, 2, -2, -3])
    one, two, three = (expected_figures(samples, score, ood_set) for ood_set in (1, 2, 3))
    expected = {}
    for key in FIGURES:
        expected[f'ood/{score}/one/{key}'] = one[key]
        expected[f'ood/{score}/two/{key}'] = two[key]
        expected[f'ood/{score}/three/{key}'] = three[key]
        expected[f'ood/{score}/near/{key}'] = one[key]
        expected[f'ood/{score}/far/{key}'] = (two[key] + three[key]) / 2
    actual = evaluate(samples, OODMetric(score), meta=dict(ood_sets=SETS))
    assert actual == pytest.approx(expected, abs=1e-9)
    if score in ('max_probability', 'entropy'):  # These need no logits.
        for sample in samples:
            del sample['logits']
        without_logits = evaluate(samples, OODMetric(score), meta=dict(ood_sets=SETS))
        assert without_logits == pytest.approx(actual)


@pytest.mark.parametrize('score', SCORES)
def test_ood_metric_ood_pixels_equals_sklearn(score):
    samples = segmented_with_ood(4)
    expected = {}
    for name, value in expected_figures(samples, score, 1).items():
        expected[f'ood/{score}/{name}'] = value
    actual = evaluate(samples, OODMetric(score, ood_index=7))
    assert actual == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize('label', [0, 255])
def test_ood_metric_other_ood_index_same_figures(label):
    samples = segmented_with_ood(3)
    expected = evaluate(samples, OODMetric('entropy', ood_index=7))
    for sample in samples:
        labels = sample['gt_sem_seg']['data']
        labels[labels == 0] = 1  # Then only OOD pixels have the label 0.
        labels[labels == 255] = 9
        labels[labels == 7] = label
    actual = evaluate(samples, OODMetric('entropy', ood_index=label, ignore_index=9))
    assert actual == expected


def test_ood_metric_saturated_confidences_are_distinct():
    samples = classified_with_logits(60, [0, -1])
    for sample in samples:
        sample['logits'] = (20 * sample['logits']).float()
        sample['pred_score'] = sample['logits'].softmax(0)
    actual = evaluate(samples, OODMetric(SCORES))
    logits = torch.stack([sample['logits'] for sample in samples], dim=1)
    conf = [sample['pred_score'].max().item() for sample in samples]
    assert conf.count(1.0) > 20
    is_id = [sample['gt_label'].item() == 0 for sample in samples]
    others = logits.double().softmax(0).sort(dim=0).values[:-1].sum(dim=0)
    expected = 100 * roc_auc_score(is_id, -others.numpy())
    assert actual['ood/max_probability/AUROC'] == pytest.approx(expected)
    # Entropies are distinct down to where e^-x is 0 in float32.
    entropies = scores_of_logits(logits, SCORES)['entropy']
    assert len(entropies.unique()) > sum(value < 1 for value in conf) + 10
    assert entropies.max() <= 0
    assert actual['ood/entropy/AUROC'] > 0
    for sample in samples:  # The softmax in float32 still has what is required.
        del sample['logits']
    actual = evaluate(samples, OODMetric('max_probability'))
    assert actual['ood/max_probability/AUROC'] == pytest.approx(expected)


@pytest.mark.parametrize('mask', [-1e9, -torch.inf])
def test_ood_metric_masked_class_equals_without_it(mask):
    logits = torch.randn(4, 30, generator=torch.Generator().manual_seed(0))
    masked = torch.cat([logits, torch.full((1, 30), mask)])
    torch.testing.assert_close(scores_of_logits(masked, SCORES), scores_of_logits(logits, SCORES))


def test_ood_metric_binary_head_equals_two_logits():
    torch.manual_seed(0)
    logit = 3 * torch.randn(6, 8, dtype=torch.float64)
    predicted = (logit > 0).long()
    label = torch.randint(3, (6, 8))  # 2 is OOD.
    one_score = as_segmented(logit.sigmoid()[None], predicted, label)
    two_logits = as_segmented(torch.stack([torch.zeros_like(logit), logit]), predicted, label)
    scores = ('max_probability', 'entropy')
    expected = evaluate([two_logits], OODMetric(scores, ood_index=2))
    actual = evaluate([one_score], OODMetric(scores, ood_index=2))
    assert actual == pytest.approx(expected, abs=1e-9)
    with pytest.raises(ValueError, match=r'energy require logits.*two channels, or take max_prob'):
        evaluate([one_score], OODMetric('energy', ood_index=2))


@pytest.mark.parametrize(
    ('labels', 'sets', 'absent', 'num_nan'),
    [([0, 2], {}, 'OOD', 4), ([-1], {}, 'ID', 4), ([0, -1, -2], SETS, 'three', 8)],
)
def test_ood_metric_absent_set_is_nan_with_a_warning(labels, sets, absent, num_nan, monkeypatch):
    lines = []
    monkeypatch.setattr(list_metric, 'print_log', lambda line, **options: lines.append(line))
    samples = classified_with_logits(9, labels)
    actual = evaluate(samples, OODMetric(), meta=dict(ood_sets=sets))
    nan_keys = {key for key, value in actual.items() if math.isnan(value)}
    assert f'no prediction of {absent}' in lines[-1]
    assert len(nan_keys) == num_nan
    if sets:
        assert {key.split('/')[2] for key in nan_keys} == {'far', 'three'}


def test_ood_metric_label_of_no_named_set_raises():
    with pytest.raises(ValueError, match='the label -4, and the data set names only 3 OOD sets'):
        evaluate(classified_with_logits(2, [0, -4]), OODMetric(), meta=dict(ood_sets=SETS))


def test_ood_metric_class_as_ood_equals_negative_labels():
    samples = classified_with_logits(30, [0, -1])
    expected = evaluate(samples, OODMetric())
    for sample in samples[1::4]:
        sample['gt_label'] *= 2
    # OOD sets without names count as one.
    assert evaluate(samples, OODMetric()) == expected
    for sample in samples:
        sample['gt_label'] = sample['gt_label'].where(sample['gt_label'] >= 0, torch.tensor(4))
    actual = evaluate(samples, OODMetric(ood_index=4, prefix='unseen'))
    assert actual == {key.replace('ood', 'unseen'): value for key, value in expected.items()}


def test_set_head_options_ood_index_that_the_head_ignores_raises():
    """Pixels that do not count cannot be out of distribution too."""
    model = segmentor(fcn_head(ignore_index=0))
    with pytest.raises(ValueError, match='ood_index and ignore_index are both 0'):
        set_head_options(model, [OODMetric(ood_index=0)])
    assert set_head_options(model, [OODMetric(ood_index=0, ignore_index=-1)]) == 0
