"""What a model has never seen, against scikit-learn."""

import math

import numpy as np
import pytest
import torch
from samples import as_segmented, segmented
from scipy.special import entr, logsumexp, softmax
from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve
from test_all_metrics import evaluate

from mmcalib.metrics import scores_of_logits
from mmcalib.metrics.ood_scores import SCORES
from mmcalib.openmmlab.metrics import OODMetric, list_metric

SETS = dict(near=['one'], far=['two', 'three'])
FIGURES = ('AUROC', 'AUPR_in', 'AUPR_out', 'FPR95')


def with_logits(n, labels, seed=0):
    """A classifier's samples with their logits, those of negative labels less sure, in float64."""
    generator = torch.Generator().manual_seed(seed)
    samples = []
    for number in range(n):
        label = labels[number % len(labels)]
        scale = 3 if label >= 0 else 2 + label / 4
        logits = scale * torch.randn(5, generator=generator, dtype=torch.float64)
        samples.append({'logits': logits, 'pred_score': logits.softmax(0),
                        'gt_label': torch.tensor([label]), 'sample_idx': number})  # fmt: skip
    return samples


def with_pixels(n, ood=7, seed=0):
    """Segmented samples of which some pixels are of an OOD label and some of 255, in float64."""
    samples = segmented(n, size=(5, 7), seed=seed)
    for number, sample in enumerate(samples):
        sample['seg_logits']['data'] = sample['seg_logits']['data'].double()
        sample['gt_sem_seg']['data'][0, 3 : 5 - number % 2, 1:5] = ood
    return samples


def rows_of(samples, ood=7):
    """The logits of all valid predictions, and 0 for the seen, else the number of the OOD set."""
    rows, kinds = [], []
    for sample in samples:
        if 'seg_logits' in sample:
            label = sample['gt_sem_seg']['data'].flatten()
            rows += sample['seg_logits']['data'].flatten(1).T[label != 255].tolist()
            kinds += (label == ood)[label != 255].tolist()
        else:
            rows.append(sample['logits'].tolist())
            kinds.append(max(-sample['gt_label'].item(), 0))
    return np.array(rows), np.array(kinds)


def figures_of(samples, score, number):
    """The figures of the seen and one OOD set."""
    logits, kinds = rows_of(samples)
    values = {
        'max_probability': softmax(logits, axis=1).max(axis=1),
        'max_logit': logits.max(axis=1),
        'energy': logsumexp(logits, axis=1),
        'entropy': -entr(softmax(logits, axis=1)).sum(axis=1),
    }[score][np.isin(kinds, (0, number))]
    seen = kinds[np.isin(kinds, (0, number))] == 0
    flagged, recall, _ = roc_curve(~seen, -values, drop_intermediate=False)
    found = {
        'AUROC': roc_auc_score(seen, values),
        'AUPR_in': average_precision_score(seen, values),
        'AUPR_out': average_precision_score(~seen, -values),
        'FPR95': flagged[recall >= 0.95][0],
    }
    return {name: 100 * value for name, value in found.items()}


@pytest.mark.parametrize('score', SCORES)
def test_a_classifier_against_named_sets(score):
    samples = with_logits(60, [0, 4, -1, 2, -2, -3])
    found = evaluate(samples, OODMetric(score), meta=dict(ood_sets=SETS))
    of_sets = [figures_of(samples, score, number) for number in (1, 2, 3)]
    expected = {}
    for name, figures in zip(['one', 'two', 'three'], of_sets, strict=True):
        expected |= {f'ood/{score}/{name}/{key}': value for key, value in figures.items()}
    for key in FIGURES:
        expected[f'ood/{score}/near/{key}'] = of_sets[0][key]
        expected[f'ood/{score}/far/{key}'] = (of_sets[1][key] + of_sets[2][key]) / 2
    assert found == pytest.approx(expected, abs=1e-9)
    if score in ('max_probability', 'entropy'):  # which probabilities alone tell too
        alone = [{key: s[key] for key in s if key != 'logits'} for s in samples]
        assert evaluate(alone, OODMetric(score), meta=dict(ood_sets=SETS)) == pytest.approx(found)


@pytest.mark.parametrize('score', SCORES)
def test_pixels_of_a_label(score):
    samples = with_pixels(4)
    expected = figures_of(samples, score, 1)
    found = evaluate(samples, OODMetric(score, ood_index=7))
    assert found == pytest.approx({f'ood/{score}/{k}': v for k, v in expected.items()}, abs=1e-9)


@pytest.mark.parametrize('label', [0, 255])
def test_the_label_of_unseen_pixels_may_be_that_of_a_class_or_any_that_is_not_ignored(label):
    samples = with_pixels(3)
    expected = evaluate(samples, OODMetric('entropy', ood_index=7))
    for sample in samples:
        labels = sample['gt_sem_seg']['data']
        labels[labels == 0] = 1  # so that only the unseen are of label 0
        labels[labels == 255] = 9
        labels[labels == 7] = label
    found = evaluate(samples, OODMetric('entropy', ood_index=label, ignore_index=9))
    assert found == expected


def test_saturated_predictions_are_told_apart():
    samples = with_logits(60, [0, -1])
    for sample in samples:
        sample['logits'] = (20 * sample['logits']).float()
        sample['pred_score'] = sample['logits'].softmax(0)
    found = evaluate(samples, OODMetric(SCORES))
    conf = [s['pred_score'].max().item() for s in samples]
    seen = [s['gt_label'].item() == 0 for s in samples]
    assert conf.count(1.0) > 20
    others = [s['logits'].double().softmax(0).sort().values[:-1].sum().item() for s in samples]
    expected = 100 * roc_auc_score(seen, np.negative(others))
    assert found['ood/max_probability/AUROC'] == pytest.approx(expected)
    # Down to where e^-x is 0 in float32.
    entropies = scores_of_logits(torch.stack([s['logits'] for s in samples], 1), SCORES)['entropy']
    assert len(entropies.unique()) > sum(c < 1 for c in conf) + 10
    assert entropies.max() <= 0 and found['ood/entropy/AUROC'] > 0
    for sample in samples:  # what a softmax in float32 leaves of it suffices
        del sample['logits']
    assert evaluate(samples, OODMetric('max_probability'))[
        'ood/max_probability/AUROC'
    ] == pytest.approx(expected)


def test_a_binary_head():
    generator = torch.Generator().manual_seed(0)
    logit = 3 * torch.randn(6, 8, generator=generator, dtype=torch.float64)
    label = torch.randint(3, (6, 8), generator=generator)  # 2 is unseen
    sample = as_segmented(logit.sigmoid()[None], (logit > 0).long(), label)
    pair = torch.stack([torch.zeros_like(logit), logit])
    both = as_segmented(pair, (logit > 0).long(), label)
    scores = ('max_probability', 'entropy')
    found, expected = (evaluate([s], OODMetric(scores, ood_index=2)) for s in (sample, both))
    assert found == pytest.approx(expected, abs=1e-9)
    with pytest.raises(ValueError, match=r'energy require logits.*two channels, or take max_prob'):
        evaluate([sample], OODMetric('energy', ood_index=2))


@pytest.mark.parametrize(
    ('labels', 'sets', 'missing', 'nan'),
    [([0, 2], {}, 'OOD', 4), ([-1], {}, 'ID', 4), ([0, -1, -2], SETS, 'three', 8)],
)
def test_what_is_absent_is_nan_with_a_warning(labels, sets, missing, nan, monkeypatch):
    said = []
    monkeypatch.setattr(list_metric, 'print_log', lambda text, **options: said.append(text))
    found = evaluate(with_logits(9, labels), OODMetric(), meta=dict(ood_sets=sets))
    without = {key for key, value in found.items() if math.isnan(value)}
    assert f'no prediction of {missing}' in said[-1] and len(without) == nan
    assert not sets or {key.split('/')[2] for key in without} == {'far', 'three'}


def test_a_label_of_no_named_set_is_refused():
    with pytest.raises(ValueError, match='the label -4, and the data set names only 3 OOD sets'):
        evaluate(with_logits(2, [0, -4]), OODMetric(), meta=dict(ood_sets=SETS))


def test_a_class_that_was_left_out_of_a_training():
    samples = with_logits(30, [0, -1])
    expected = evaluate(samples, OODMetric())
    for sample in samples[1::4]:
        sample['gt_label'] *= 2
    assert evaluate(samples, OODMetric()) == expected  # sets without names are one
    for sample in samples:
        sample['gt_label'] = sample['gt_label'].where(sample['gt_label'] >= 0, torch.tensor(4))
    found = evaluate(samples, OODMetric(ood_index=4, prefix='unseen'))
    assert found == {key.replace('ood', 'unseen'): value for key, value in expected.items()}
