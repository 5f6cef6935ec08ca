"""Errors of the metrics: one line each, with the value and the remedy."""

from functools import partial

import numpy as np
import pytest
import torch
from evaluators import evaluate
from samples import as_segmented, classified, image_confidences, image_narrow_bins, segmented
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import mmcalib
from mmcalib.metrics import (
    StreamingMetrics,
    classwise_adaptive_calibration_error as classwise,
    image_failure_figures,
    image_scores,
    measure,
)
from mmcalib.metrics.expected_accuracy import ExpectedAccuracy
from mmcalib.metrics.risk_threshold import threshold_at_risk
from mmcalib.openmmlab.metrics import CalibrationMetric, ImageScoreMetric, OODMetric
from mmcalib.openmmlab.samples import read_sample


def binary_samples(n):
    logits = torch.linspace(0, 1, 20).view(1, 4, 5)
    predicted = (logits[0] > 0.5).long()
    return [as_segmented(logits, predicted, predicted)] * n


def set_nan(values):
    return values.where(values < values.max(), torch.nan)


def mask_labels(values):
    """Mask all classes but the predicted one."""
    return values.where(values == values.amax(dim=0), -torch.inf)


class Classifier:
    """A model of another library."""

    def predict_proba(self, inputs):
        return inputs


class Holder:
    """A result that holds a model, as that of `calibrate` does."""

    model = nn.Linear(2, 2)


class Parts:
    """A tensor in parts on several processes."""

    def full_tensor(self):
        return torch.zeros(1, 2)


def evaluate_broken(samples, key, change, metric=CalibrationMetric, good=2, **options):
    """Evaluate good samples and one of which a field is changed, or missing without a change."""
    (sample,) = samples(1)
    value = sample.pop(key, None)
    if change is not None:
        if isinstance(value, dict):
            sample[key] = {'data': change(value['data'])}
        else:
            sample[key] = change(value)
    evaluate([*samples(good), sample], metric(**options), batch=3)


def call_with_arrays(function, *arguments, **options):
    function(*map(np.asarray, arguments), **options)


def read_unlabelled(sample):
    read_sample(sample, 'x', labelled=False)


def unchanged(value):
    return value


ece = partial(measure, metrics='ECE')
evaluate_ood = partial(evaluate_broken, metric=OODMetric, good=0)
evaluate_scores = partial(
    evaluate_broken, metric=ImageScoreMetric, good=0, key='sample_idx', change=None
)
ROWS = torch.tensor([[0.9, 0.1], [0.2, 0.8]])
LABELS = torch.tensor([0, 1])
evaluate_rows = partial(mmcalib.evaluate, ROWS, LABELS)
SHUFFLED = DataLoader(TensorDataset(3 * ROWS, LABELS), shuffle=True)
evaluate_model = partial(mmcalib.evaluate, nn.Identity(), SHUFFLED)
HALF = [[0.5, 0.5]]
INT8 = torch.zeros(1, 2, dtype=torch.int8)
QUANTIZED = torch.quantize_per_tensor(torch.zeros(1, 2), 0.1, 0, torch.qint8)
ONES = np.ones(1)
IMAGE_BINS = image_narrow_bins(*image_confidences(2))
WITHOUT_LABELS = IMAGE_BINS * torch.tensor([1, 0], dtype=torch.int32)[:, None, None]
NOT_A_SOFTMAX = r'outside \[0, 1\], such as 1.00001: take the softmax first'
REFUSED = [
    # Options.
    (CalibrationMetric, dict(num_bins=0), 'num_bins'),
    (CalibrationMetric, dict(metrics=['ECE', 'MCE!']), r"got 'MCE!'.*MCE"),
    (CalibrationMetric, dict(metrics=['coverage@risk_5']), "between 0 and 1.*'coverage@risk_5'"),
    (CalibrationMetric, dict(metrics=[]), 'metrics must be some of'),
    (CalibrationMetric, dict(protocol='voc'), "protocol .*'voc'"),
    (CalibrationMetric, dict(confidence_interval=95), 'confidence_interval .* got 95'),
    (CalibrationMetric, dict(metrics=['AECE'], confidence_interval=0.9), 'AECE has no interval'),
    (CalibrationMetric, dict(ignore_index=[0, 255]), 'ignore_index'),
    (CalibrationMetric, dict(ignore_index=True), 'ignore_index'),
    (OODMetric, dict(scores='odin'), 'scores must be one of .*got .odin.'),
    (OODMetric, dict(ood_index=255), 'ood_index and ignore_index are both 255.*such as -1'),
    (ImageScoreMetric, dict(scores='soft_dise'), 'did you mean soft_dice'),
    (ImageScoreMetric, dict(failure=50), 'failure must be in'),
    (ImageScoreMetric, dict(out_file='images.json'), r"a \.csv file, got 'images.json'"),
    # Samples: a field, and what becomes of it.
    (
        evaluate_broken,
        (segmented, 'seg_logits', set_nan),
        'seg_logits of image_0.jpg has 1 NaN .* of 1020',
    ),
    (
        evaluate_broken,
        (segmented, 'seg_logits', mask_labels),
        r'seg_logits of image_0.jpg is -inf for \d+ of \d+ labels: mask no class that is a label',
    ),
    (
        evaluate_broken,
        (segmented, 'gt_sem_seg', lambda y: y[:, :6, :8]),
        r'7\), .* \(6, 8\).*after Resize',
    ),
    (
        evaluate_broken,
        (segmented, 'seg_logits', lambda z: z[:, :6]),
        r'\(6, 17\), gt_sem_seg \(12, 17\)',
    ),
    (
        evaluate_broken,
        (segmented, 'gt_sem_seg', lambda y: y * 0 + 5),
        r'204 labels outside \[0, 5\): 5\.',
    ),
    (
        evaluate_broken,
        (segmented, 'pred_sem_seg', lambda k: (k + 1) % 5),
        'argmax of its .* at 204 pixels',
    ),
    (evaluate_broken, (segmented, 'gt_sem_seg', None), 'LoadAnnotations'),
    (
        evaluate_broken,
        (binary_samples, 'seg_logits', lambda z: 5 * z),
        'of one class, has .* values outside',
    ),
    (evaluate_broken, (classified, 'pred_score', set_nan), 'pred_score of sample 0 has 1 NaN'),
    (
        evaluate_broken,
        (classified, 'pred_score', lambda p: p * 0 + 0.4),
        'do not sum to 1, such as 2.8',
    ),
    (
        evaluate_broken,
        (classified, 'pred_score', lambda p: torch.eye(7)[0] * 1.00001),
        NOT_A_SOFTMAX,
    ),
    (evaluate_broken, (classified, 'pred_score', None), 'has no pred_score, only'),
    (
        evaluate_broken,
        (classified, 'gt_label', lambda y: y * 0 + 7),
        r'outside \[0, 7\): 7\. Check',
    ),
    (
        evaluate_broken,
        (classified, 'gt_label', lambda y: torch.tensor([1, 2])),
        r'one gt_label.*got \[1, 2',
    ),
    *(
        (
            partial(evaluate_broken, **{option: value}),
            (classified, 'gt_label', unchanged),
            'for segmentation',
        )
        for option, value in dict(protocol='image', per_distance=True, per_object=True).items()
    ),
    (
        partial(evaluate_ood, scores='energy'),
        (classified, 'gt_label', unchanged),
        'logits, but.*KeepLogits',
    ),
    (
        evaluate_ood,
        (segmented, 'gt_sem_seg', unchanged),
        'image_0.jpg is a segmentation: give ood_index',
    ),
    (
        partial(evaluate_ood, ood_index=9),
        (segmented, 'gt_sem_seg', lambda y: y * 0 + 7),
        r'labels outside \[0, 5\): 7.*ood_index',
    ),
    (
        partial(evaluate_ood, ood_index=7),
        (segmented, 'pred_sem_seg', lambda k: (k + 1) % 5),
        'not the a',
    ),
    (evaluate_ood, (classified, 'gt_label', lambda y: y * 0 + 7), r'outside \[0, 7\): 7'),
    (evaluate_ood, (classified, 'logits', lambda _: torch.zeros(7)), 'are not the softmax of'),
    (evaluate_ood, (classified, 'logits', lambda _: torch.full((7,), torch.nan)), '7 NaN'),
    (
        evaluate_scores,
        dict(samples=segmented, scores='pairwise_dice'),
        'image_0.jpg has no pairwise_dice',
    ),
    (
        evaluate_scores,
        dict(samples=classified, scores='soft_dice'),
        'only confidence, entropy: segment',
    ),
    (read_unlabelled, ({'pred_score': torch.tensor([0.9, 0.8])},), 'sum to 1'),
    (
        read_unlabelled,
        ({'seg_logits': ROWS * torch.nan, 'pred_sem_seg': LABELS[None]},),
        'of x has 4 NaN',
    ),
    (read_unlabelled, ({'boxes': 1},), r"no pred_score, only \['boxes'\]"),
    # Arrays.
    (ece, ([[3.0, -1.0]], [0]), r'2 of 2 values .* such as 3: take the softmax'),
    (ece, ([[0.4, 0.4]], [0]), '1 of 1 rows that do not sum to 1, such as 0.8'),
    (ece, ([0.5], [True]), 'be integers, got bool: .* conf=… and correct=…'),
    (ece, ([[1, 0]], [0]), 'must be floats, got int64: give probabilities, as'),
    (ece, ([[True, False]], [0]), 'got bool: give probabilities, as'),
    (ece, ([['a', 'b']], [0]), 'probs must be an array, .* got list of <U1'),
    (ece, (HALF, torch.tensor([1.0])), r'labels\.long\(\)'),
    (ece, dict(probs=np.ones((3, 2)) / 2, labels=[0, 1]), '2 labels for 3 predictions'),
    (ece, (nn.Linear(2, 2), [0]), r'Linear .*evaluate\(model, loader\)'),
    (measure, dict(probs=HALF, labels=[0], metrics='acc'), 'did you mean accuracy'),
    (measure, dict(probs=HALF, labels=[0], metrics=None), 'metrics must be .* got None'),
    (
        measure,
        dict(probs=HALF, labels=[0], metrics='ECE', interval=0.9, groups=[[1, 2]]),
        'one name for each image',
    ),
    (mmcalib.compare, (nn.Linear(2, 2), nn.Linear(2, 2), [0]), r'evaluate\(model, loader\)'),
    (mmcalib.evaluate, ('resnet18', []), 'got str'),
    # Other things than arrays, and arrays in another order.
    (ece, ('p.npy', [0]), "got the text 'p.npy': load its file"),
    (
        ece,
        dict(probs=Classifier(), labels=[0]),
        'Classifier of object: give what its predict_proba',
    ),
    (mmcalib.evaluate, (Classifier(), []), 'give what its predict_proba'),
    (mmcalib.compare, (Holder(), Holder(), [0]), r'its \.model, to evaluate\(model, loader\)'),
    (mmcalib.threshold, (Holder(), [True]), r'its \.model, to evaluate\(model, loader\)'),
    (ece, ([0], [0.5]), 'got int64, and labels are float64: probs come first'),
    (
        mmcalib.compare,
        ([0.5], [0], [0.5]),
        'labels must be integers, got float64 such as 0.5: give',
    ),
    (mmcalib.threshold, ([True], [0.5]), 'got bool, and correct are float64: conf come first'),
    (mmcalib.threshold, ([1.0], [0.5]), r'got values such as \[0.5\]: confidences come first'),
    (mmcalib.threshold, (HALF, [0]), r'probs.max\(1\).values and probs.argmax\(1\) == labels'),
    (
        StreamingMetrics().update,
        ([0], HALF),
        'got int64, and labels are float64: logits come first',
    ),
    (
        StreamingMetrics().update,
        (INT8, [0]),
        r'got int8: .*scale \* \(logits.float\(\) - zero_point',
    ),
    (StreamingMetrics().update, (QUANTIZED, [0]), r'got qint8: give logits\.dequantize\(\)'),
    (StreamingMetrics().update, (Parts(), [0]), r'is a DTensor.*give logits\.full_tensor\(\)'),
    (
        measure,
        dict(probs=HALF, labels=[0], metrics='ECE', interval=0.9, groups='a'),
        "got the text 'a'",
    ),
    (StreamingMetrics, dict(num_bins=0), 'num_bins'),
    (StreamingMetrics, dict(metrics='AECE', interval=0.9), 'AECE'),
    (StreamingMetrics(protocol='image').update, (3 * ROWS, LABELS), 'is for maps'),
    # Arguments that do not exist.
    *(
        (partial(function, n_bins=5), (), r"keyword argument 'n_bins'; did you mean num_bins\?$")
        for function in (measure, ece, mmcalib.compare, mmcalib.evaluate, StreamingMetrics)
    ),
    (partial(mmcalib.reliability_diagram, n_bins=5), (HALF, [0]), 'did you mean num_bins'),
    (partial(mmcalib.threshold, n_bins=5), (), "'n_bins'; there are conf, correct, groups, prob"),
    (partial(mmcalib.calibrate, ignore=5), (), "'ignore'; did you mean ignore_index"),
    (mmcalib.evaluate, (nn.Linear(2, 2).state_dict(), []), 'got OrderedDict'),
    (ece, dict(), 'give probs and labels, or'),
    (ece, dict(conf=[0.5], correct=[True], ignore_index=255), 'is a label: it goes'),
    (ece, ([[0.5, 0.5], [1.0]], [0, 0]), 'must be rows of one length'),
    (ece, dict(conf=np.ones(2), correct=ONES), r'\(2,\) and \(1,\)'),
    (ece, dict(conf=ONES, correct=np.array([3])), 'correct must be booleans'),
    (ece, dict(conf=np.array([1.5]), correct=ONES), 'conf has 1 of 1 values'),
    (measure, dict(conf=ONES, correct=ONES, metrics='NLL'), 'NLL needs probs and labels'),
    (evaluate_rows, dict(groups=[0, 0]), 'interval=0.95'),
    (evaluate_rows, dict(groups=[0], interval=0.9), 'each of 2 images, got 1'),
    (evaluate_rows, dict(device='cpu'), 'go with a model'),
    (evaluate_rows, dict(protocol='image'), 'go with a model'),
    (evaluate_model, dict(protocol='image'), 'for rows'),
    (evaluate_model, dict(protocol='image', interval=0.9, groups=[0]), 'groups of its own'),
    (evaluate_model, dict(interval=0.9, groups=range(2)), 'shuffle=False'),
    (call_with_arrays, (image_scores, [[2.0], [0.5]]), r'outside \[0, 1\]'),
    (call_with_arrays, (image_scores, [[0.5], [0.5]], [7]), r'outside \[0, 2\): 7'),
    (
        call_with_arrays,
        (image_failure_figures, [0.1], [0.1, 0.2]),
        r'be \(N,\), got \(1,\) and \(2,\)',
    ),
    (
        call_with_arrays,
        (image_failure_figures, [np.nan, 0.1], [0.1, 0.2]),
        '1 of 2 scores are NaN or inf',
    ),
    (
        call_with_arrays,
        (image_failure_figures, [0.1], [30.0]),
        r'risks has 1 of 1 values outside \[0, 1',
    ),
    (partial(image_failure_figures, failure=2), (ONES, ONES), r'failure must be in \[0, 1\]'),
    (partial(classwise, threshold=2), (HALF, [0]), 'threshold'),
    # Statistics of a validation.
    *(
        (ExpectedAccuracy, (x,), 'at least two')
        for x in (IMAGE_BINS[:1], IMAGE_BINS[:0], WITHOUT_LABELS)
    ),
    *((threshold_at_risk, (IMAGE_BINS, value), 'risk must be') for value in (0, 1, -0.1, 5)),
    (partial(threshold_at_risk, probability=5), (IMAGE_BINS, 0.05), 'probability must be'),
    # Thresholds of arrays.
    (mmcalib.threshold, ([0.5, 1.5], [True, False]), r'1 of 2 values outside \[0, 1\]'),
    (mmcalib.threshold, ([0.5, 0.6], [0, 2]), 'correct must be booleans.*predicted == labels'),
    (mmcalib.threshold, ([0.5, 0.6], [True]), 'must have one shape'),
    (mmcalib.threshold, ([1, 0], [True, False]), 'conf must be floats'),
    (mmcalib.threshold, (np.zeros(0), np.zeros(0, bool)), 'no valid prediction: give at least one'),
    (partial(mmcalib.threshold, groups=[1]), ([0.5, 0.6], [True, False]), '2 images, got 1'),
    (partial(mmcalib.threshold, risk=5), ([0.5], [True]), 'risk must be'),
    (partial(mmcalib.threshold, probability=1), ([0.5], [True]), 'probability must be'),
]


@pytest.mark.parametrize(('function', 'arguments', 'message'), REFUSED)
def test_metric_invalid_input_raises_one_line_with_remedy(function, arguments, message):
    with pytest.raises((TypeError, ValueError), match=message) as error:
        if isinstance(arguments, dict):
            function(**arguments)
        else:
            function(*arguments)
    assert '\n' not in str(error.value)
