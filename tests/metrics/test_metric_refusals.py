"""What a user can do wrong: one error each, with the value and what to do."""

import numpy as np
import pytest
import torch
from samples import as_segmented, classified, segmented
from test_all_metrics import evaluate

from mmcalib.metrics import CalibrationMetric, classwise_adaptive_calibration_error, measure

OPTIONS = [
    (dict(num_bins=0), 'num_bins'),
    (dict(num_bins=True), 'num_bins'),
    (dict(metrics=['ECE', 'MCE!']), r"got 'MCE!'.*MCE"),
    (dict(metrics=['TACE']), 'classwise_adaptive_calibration_error'),
    (dict(metrics=['risk@coverage']), r'as in risk@coverage_0\.8'),
    (dict(metrics=['coverage@risk_5']), "between 0 and 1.*'coverage@risk_5'"),
    (dict(metrics=[]), 'metrics must be some of'),
    (dict(protocol='voc'), "protocol .*'voc'"),
    (dict(boundary_width=0), 'boundary_width'),
    (dict(confidence_interval=95), 'confidence_interval .* got 95'),
    (dict(metrics=['AECE'], confidence_interval=0.9), 'AECE has no interval'),
    *((dict(ignore_index=value), 'ignore_index') for value in ([0, 255], '255', True, None)),
]


@pytest.mark.parametrize(('options', 'message'), OPTIONS)
def test_options(options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        CalibrationMetric(**options)


@pytest.mark.parametrize(
    'options', [dict(protocol='image'), dict(per_distance=True), dict(per_object=True)]
)
def test_what_is_not_for_a_classifier(options):
    with pytest.raises(ValueError, match=f'{next(iter(options))}.* for segmentation'):
        evaluate(classified(2), CalibrationMetric(**options))


def _broken(kind):
    sample = (segmented(1) if kind in OF_PIXELS else classified(1))[0] | {'img_path': 'image.jpg'}
    logits = sample.get('seg_logits', {}).get('data')
    if kind == 'nan':
        logits[1, 0, :3] = float('nan')
    elif kind == 'inf':
        logits[0, 5, 5] = float('inf')
    elif kind == 'size':
        sample['gt_sem_seg']['data'] = torch.zeros(1, 6, 8, dtype=int)
    elif kind == 'size of logits':
        sample['seg_logits']['data'] = logits[:, :6]
    elif kind == 'label':
        sample['gt_sem_seg']['data'][0, 0, :2] = 5
    elif kind == 'tta':
        sample['pred_sem_seg']['data'] = (sample['pred_sem_seg']['data'] + 1) % 5
    elif kind == 'no ground truth':
        del sample['gt_sem_seg']
    elif kind == 'no prediction':
        del sample['pred_sem_seg']
    elif kind == 'binary logits':
        sample = as_segmented(logits[:1] * 5, (logits[0] > 0).float(), logits[0].long() * 0)
    elif kind == 'binary nan':
        sample = as_segmented(logits[:1] * torch.nan, logits[0].long() * 0, logits[0].long() * 0)
    elif kind == 'nan score':
        sample['pred_score'][2] = float('nan')
    elif kind == 'sigmoid scores':
        sample['pred_score'] = torch.full((7,), 0.4)
    elif kind == 'above one':
        sample['pred_score'] = torch.tensor([1.00001, 0, 0, 0, 0, 0, 0])
    elif kind == 'class':
        sample['gt_label'] = torch.tensor([7])
    elif kind == 'multi-label':
        sample['gt_label'] = torch.tensor([1, 2])
    elif kind == 'labels only':
        del sample['pred_score']
    return sample


OF_PIXELS = {
    'nan': 'seg_logits of image.jpg has 3 NaN or infinite values out of 1020',
    'inf': 'has 1 NaN or infinite',
    'size': r'\(12, 17\), gt_sem_seg \(6, 8\).*LoadAnnotations must come after Resize',
    'size of logits': r'\(6, 17\), gt_sem_seg \(12, 17\)',
    'label': r'2 labels outside \[0, 5\): 5\. check the dataset',
    'tta': 'not the argmax of its seg_logits at 204 pixels',
    'no ground truth': 'LoadAnnotations',
    'no prediction': 'image.jpg has no pred_sem_seg, only ',
    'binary logits': 'of one class, has .* values outside',
    'binary nan': 'NaN',
}
OF_SCORES = {
    'nan score': 'pred_score of image.jpg has 1 NaN',
    'sigmoid scores': 'do not sum to 1, such as 2.8',
    'above one': r'outside \[0, 1\], such as 1.00001: take the softmax first',
    'class': r'outside \[0, 7\): 7\. check',
    'multi-label': r'needs one gt_label; got \[1, 2\]',
    'labels only': 'pred_score',
}


@pytest.mark.parametrize(('kind', 'message'), [*OF_PIXELS.items(), *OF_SCORES.items()])
def test_samples(kind, message):
    whole = segmented(2, seed=1) if kind in OF_PIXELS else classified(2)
    with pytest.raises(ValueError, match=message):
        evaluate([*whole, _broken(kind)], batch=3)


HALF = [[0.5, 0.5]]
ARRAYS = [
    (dict(probs=[[3.0, -1.0]], labels=[0]), r'2 of 2 values .* such as 3: take the softmax'),
    (dict(probs=[[0.4, 0.4]], labels=[0]), '1 of 1 rows that do not sum to 1, such as 0.8'),
    (dict(probs=[[np.nan, 1.0]], labels=[0]), 'such as nan: leave out what has no prediction'),
    (dict(probs=[[60.0, 40.0]], labels=[0]), 'such as 60: .*divide percentages by 100'),
    (dict(probs=HALF, labels=[2]), r'labels has 1 labels outside \[0, 2\): 2'),
    (dict(probs=HALF, labels=[0, 1]), r'\(1, 2\) and \(2,\)'),
    (dict(probs=HALF, labels=[[0, 1]]), r'one-hot labels, give labels.argmax\(1\)'),
    (dict(probs=HALF, labels=[0.0]), 'labels must be integers, got float64'),
    (
        dict(probs=[0.5, 0.5], labels=[True, False]),
        'labels must be integers, got bool .* give conf=… and correct=…',
    ),
    (dict(probs=[0.5, 0.5], labels=[0, 2]), '2. To leave out a label .* ignore_index'),
    (dict(probs=[1.5, 0.5], labels=[0, 1]), 'probs has 1 of 2 values outside'),
    (dict(probs=np.full((2, 5, 4, 3), 1 / 3), labels=np.zeros((2, 5, 4), int)), 'the second axis'),
    (dict(probs=[[1, 0]], labels=[0]), 'probs must be floats, got int64'),
    (dict(probs=[['a', 'b']], labels=[0]), 'probs must be an array, .* got <U1'),
    (dict(probs=HALF, labels=[0], ignore_index=True), 'ignore_index'),
    (dict(), 'give probs and labels, or'),
    (dict(probs=np.ones((1, 1)), conf=np.ones(1)), 'give probs and labels, or'),
    (dict(conf='0.5', correct=[True]), 'conf must be an array'),
    (dict(conf=[0.5], correct=[True], ignore_index=255), 'is a label: it goes'),
    (dict(probs=[[0.5, 0.5], [1.0]], labels=[0, 0]), 'must be rows of one length'),
    (dict(conf=np.ones(2), correct=np.ones(1)), r'\(2,\) and \(1,\)'),
    (dict(conf=np.ones(1), correct=np.array([3])), 'correct must be booleans'),
    (dict(conf=np.array([1.5]), correct=np.ones(1)), 'conf has 1 of 1 values'),
    (dict(conf=np.ones(1), correct=np.ones(1), num_bins=0), 'num_bins must be'),
    (dict(conf=np.ones(1), correct=np.ones(1), metrics='NLL'), 'NLL needs probs and labels'),
    (dict(conf=np.ones(1), correct=np.ones(1), metrics='ECX'), "got 'ECX'"),
]


@pytest.mark.parametrize(('arrays', 'message'), ARRAYS)
def test_arrays(arrays, message):
    with pytest.raises((TypeError, ValueError), match=message):
        measure(**dict(metrics='ECE') | arrays)


def test_a_threshold_is_a_share():
    with pytest.raises(ValueError, match='threshold'):
        classwise_adaptive_calibration_error(HALF, [0], threshold=2)
