"""What a user can do wrong: one error each, with the value and what to do."""

from functools import partial

import numpy as np
import pytest
import torch
from samples import as_segmented, classified, segmented
from test_all_metrics import evaluate

from mmcalib.metrics import (
    CalibrationMetric,
    ImageScoreMetric,
    OODMetric,
    image_failure_figures,
    image_scores,
    measure,
)
from mmcalib.metrics import classwise_adaptive_calibration_error as classwise

OPTIONS = [
    (dict(num_bins=0), 'num_bins'),
    (dict(metrics=['ECE', 'MCE!']), r"got 'MCE!'.*MCE"),
    (dict(metrics=['TACE']), 'classwise_adaptive_calibration_error'),
    (dict(metrics=['coverage@risk_5']), "between 0 and 1.*'coverage@risk_5'"),
    (dict(metrics=[]), 'metrics must be some of'),
    (dict(protocol='voc'), "protocol .*'voc'"),
    (dict(confidence_interval=95), 'confidence_interval .* got 95'),
    (dict(metrics=['AECE'], confidence_interval=0.9), 'AECE has no interval'),
    *((dict(ignore_index=value), 'ignore_index') for value in ([0, 255], '255', True, None)),
]


OTHERS = [
    (OODMetric, dict(scores='odin'), 'scores must be one of .*got .odin.'),
    (OODMetric, dict(ood_index=255), 'ood_index and ignore_index are both 255.*such as -1'),
    (ImageScoreMetric, dict(scores='variance'), 'variance is gone since 0.3.0: use mutual'),
    (ImageScoreMetric, dict(failure=50), 'failure must be in'),
    (ImageScoreMetric, dict(out_file='images.json'), r"a \.csv file, got 'images.json'"),
]
OPTIONS = [*((CalibrationMetric, *row) for row in OPTIONS), *OTHERS]


@pytest.mark.parametrize(('kind', 'options', 'message'), OPTIONS)
def test_options(kind, options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        kind(**options)


@pytest.mark.parametrize(
    'options', [dict(protocol='image'), dict(per_distance=True), dict(per_object=True)]
)
def test_what_is_not_for_a_classifier(options):
    with pytest.raises(ValueError, match=f'{next(iter(options))}.* for segmentation'):
        evaluate(classified(2), CalibrationMetric(**options))


def binary(n):
    logits = torch.linspace(0, 1, 20).view(1, 4, 5)
    predicted = (logits[0] > 0.5).long()
    return [as_segmented(logits, predicted, predicted)] * n


def with_nan(values):
    return values.where(values < values.max(), torch.nan)


def masked(values):
    return values.where(torch.arange(len(values)).view(-1, 1, 1) == 0, -torch.inf)


NOT_A_SOFTMAX = r'outside \[0, 1\], such as 1.00001: take the softmax first'
# A field, what becomes of it, or None where it is missing, and what is said.
BROKEN = [
    (segmented, 'seg_logits', with_nan, 'seg_logits of image_0.jpg has 1 NaN .* out of 1020'),
    (segmented, 'seg_logits', masked, 'seg_logits of .* has 816 values of -inf .*masked.* -1e4'),
    (segmented, 'gt_sem_seg', lambda y: y[:, :6, :8], r'\(12, 17\), .* \(6, 8\).*after Resize'),
    (segmented, 'seg_logits', lambda z: z[:, :6], r'\(6, 17\), gt_sem_seg \(12, 17\)'),
    (segmented, 'gt_sem_seg', lambda y: y * 0 + 5, r'204 labels outside \[0, 5\): 5\. check the'),
    (segmented, 'pred_sem_seg', lambda k: (k + 1) % 5, 'argmax of its seg_logits at 204 pixels'),
    (segmented, 'gt_sem_seg', None, 'LoadAnnotations'),
    (binary, 'seg_logits', lambda z: 5 * z, 'of one class, has .* values outside'),
    (classified, 'pred_score', with_nan, 'pred_score of sample 0 has 1 NaN'),
    (classified, 'pred_score', lambda p: p * 0 + 0.4, 'do not sum to 1, such as 2.8'),
    (classified, 'pred_score', lambda p: torch.eye(7)[0] * 1.00001, NOT_A_SOFTMAX),
    (classified, 'pred_score', None, 'pred_score'),
    (classified, 'gt_label', lambda y: y * 0 + 7, r'outside \[0, 7\): 7\. check'),
    (classified, 'gt_label', lambda y: torch.tensor([1, 2]), r'needs one gt_label; got \[1, 2\]'),
]


@pytest.mark.parametrize(('samples', 'key', 'change', 'message'), BROKEN)
def test_samples(samples, key, change, message):
    (broken,) = samples(1)
    value = broken.pop(key)
    if change is not None:
        is_map = isinstance(value, dict)
        broken[key] = {'data': change(value['data'])} if is_map else change(value)
    with pytest.raises(ValueError, match=message):
        evaluate([*samples(2), broken], batch=3)


HALF = [[0.5, 0.5]]
ARRAYS = [
    (dict(probs=[[3.0, -1.0]], labels=[0]), r'2 of 2 values .* such as 3: take the softmax'),
    (dict(probs=[[0.4, 0.4]], labels=[0]), '1 of 1 rows that do not sum to 1, such as 0.8'),
    (dict(probs=[[np.nan, 1.0]], labels=[0]), 'such as nan: leave out what has no prediction'),
    (dict(probs=HALF, labels=[0, 1]), r'\(1, 2\) and \(2,\)'),
    (dict(probs=HALF, labels=[[0, 1]]), r'one-hot labels, give labels.argmax\(1\)'),
    (dict(probs=[0.5], labels=[True]), 'must be integers, got bool .* give conf=… and correct=…'),
    (dict(probs=[0.5, 0.5], labels=[0, 2]), '2. To leave out a label .* ignore_index'),
    (dict(probs=np.full((2, 5, 4, 3), 1 / 3), labels=np.zeros((2, 5, 4), int)), 'the second axis'),
    (dict(probs=[[1, 0]], labels=[0]), 'probs must be floats, got int64'),
    (dict(probs=[['a', 'b']], labels=[0]), 'probs must be an array, .* got <U1'),
    (dict(), 'give probs and labels, or'),
    (dict(conf=[0.5], correct=[True], ignore_index=255), 'is a label: it goes'),
    (dict(probs=[[0.5, 0.5], [1.0]], labels=[0, 0]), 'must be rows of one length'),
    (dict(conf=np.ones(2), correct=np.ones(1)), r'\(2,\) and \(1,\)'),
    (dict(conf=np.ones(1), correct=np.array([3])), 'correct must be booleans'),
    (dict(conf=np.array([1.5]), correct=np.ones(1)), 'conf has 1 of 1 values'),
    (dict(conf=np.ones(1), correct=np.ones(1), metrics='NLL'), 'NLL needs probs and labels'),
]


@pytest.mark.parametrize(('arrays', 'message'), ARRAYS)
def test_arrays(arrays, message):
    with pytest.raises((TypeError, ValueError), match=message):
        measure(**dict(metrics='ECE') | arrays)


IMAGES = [
    (image_scores, ([[2.0], [0.5]],), r'outside \[0, 1\]'),
    (image_scores, ([[0.5], [0.5]], [7]), r'outside \[0, 2\): 7'),
    (image_failure_figures, ([0.1], [0.1, 0.2]), r'must be \(N,\), got \(1,\) and \(2,\)'),
    (image_failure_figures, ([np.nan, 0.1], [0.1, 0.2]), '1 of 2 scores are NaN or infinite'),
    (image_failure_figures, ([0.1], [30.0]), r'risks has 1 of 1 values outside \[0, 1\]'),
    (partial(image_failure_figures, failure=2), ([0.1], [0.3]), r'failure must be in \[0, 1\]'),
    (partial(classwise, threshold=2), (HALF, [0]), 'threshold'),
]


@pytest.mark.parametrize(('function', 'arrays', 'message'), IMAGES)
def test_arrays_of_other_functions(function, arrays, message):
    with pytest.raises((TypeError, ValueError), match=message):
        function(*map(np.asarray, arrays))
