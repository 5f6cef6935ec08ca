"""The numpy user's door, against plain loops and against itself by way of confidences."""

import doctest
import math

import numpy as np
import pytest
import references
import torch

from mmcalib import metrics
from mmcalib.metrics.functional import calibration_error
from mmcalib.posthoc import TemperatureScaler

OF_BOTH = {
    'expected_calibration_error': references.expected_calibration_error,
    'adaptive_calibration_error': references.adaptive_calibration_error,
    'maximum_calibration_error': references.maximum_calibration_error,
    'root_mean_square_calibration_error': references.root_mean_square_calibration_error,
    'overconfidence_error': references.overconfidence_error,
    'debiased_calibration_error': references.debiased_calibration_error,
    'average_calibration_error': references.average_calibration_error,
    'confidence_reliability': lambda *args: references.brier_parts(*args)[0],
    'confidence_resolution': lambda *args: references.brier_parts(*args)[1],
}
FUNCTIONS = [
    *OF_BOTH,
    'smooth_calibration_error',
    'confidence_uncertainty',
    'classwise_calibration_error',
    'classwise_adaptive_calibration_error',
    'thresholded_adaptive_calibration_error',
    'negative_log_likelihood',
    'brier_score',
]
FUNCTIONS += ['confidence_gap', 'accuracy', 'mean_confidence']
SELECTIVE = {
    'area_under_risk_coverage': {},
    'area_under_generalized_risk_coverage': {},
    'failure_auroc': {},
    'failure_fpr95': {},
    'risk_at_coverage': {'coverage': 0.7},
    'coverage_at_risk': {'risk': 0.3},
}


def draw(n=300, num_classes=5, seed=0):
    rng = np.random.default_rng(seed)
    probs = np.exp(3 * rng.standard_normal((n, num_classes)))
    probs /= probs.sum(axis=1, keepdims=True)
    labels = np.array([rng.choice(num_classes, p=np.sqrt(p) / np.sqrt(p).sum()) for p in probs])
    return probs, labels


@pytest.mark.parametrize('ignore_index', [[254, 255], '255', True])
def test_one_label_is_ignored(ignore_index):
    with pytest.raises(TypeError, match=r'ignore_index must be an integer, such as 255, got'):
        metrics.expected_calibration_error([[0.2, 0.8]], [1], ignore_index=ignore_index)
    with pytest.raises(TypeError, match=r'ignore_index must be an integer, such as 255, got'):
        TemperatureScaler().fit([[0.2, 0.8]], [1], ignore_index=ignore_index)


@pytest.mark.parametrize('name', [*FUNCTIONS, *SELECTIVE, 'predicted_class_calibration'])
def test_examples(name):
    function = getattr(metrics, name)
    (test,) = doctest.DocTestFinder().find(function, globs=dict(function.__globals__))
    assert test.examples and doctest.DocTestRunner().run(test).failed == 0


@pytest.mark.parametrize('name', OF_BOTH)
@pytest.mark.parametrize('num_bins', [1, 15])
def test_errors_equal_plain_loops(name, num_bins):
    probs, labels = draw()
    conf, correct = probs.max(1), probs.argmax(1) == labels
    expected = pytest.approx(OF_BOTH[name](conf, correct, num_bins), abs=1e-9)
    function = getattr(metrics, name)
    assert function(probs, labels, num_bins=num_bins) == expected
    assert function(conf=conf, correct=correct, num_bins=num_bins) == expected


@pytest.mark.parametrize('name', SELECTIVE)
def test_the_order_of_arrays_does_not_matter(name):
    probs, labels = draw()
    probs = probs.round(1)
    probs /= probs.sum(axis=1, keepdims=True)
    function, options = getattr(metrics, name), SELECTIVE[name]
    expected = function(probs, labels, **options)
    order = np.random.default_rng(0).permutation(len(labels))
    assert function(probs[order], labels[order], **options) == pytest.approx(expected, abs=1e-9)
    conf, correct = probs.max(1)[order], (probs.argmax(1) == labels)[order]
    assert function(conf=conf, correct=correct, **options) == pytest.approx(expected, abs=1e-9)
    assert math.isnan(function(conf=conf[:0], correct=correct[:0], **options))


def test_a_level_outside_of_0_to_1_is_refused():
    conf, correct = np.array([0.5]), np.array([True])
    for level in (0, 1, -0.1, 5, math.nan):
        with pytest.raises(ValueError, match='needs a level between 0 and 1'):
            metrics.risk_at_coverage(conf=conf, correct=correct, coverage=level)


def test_what_needs_all_classes(monkeypatch):
    probs, labels = draw()
    rows, correct = range(len(labels)), probs.argmax(1) == labels
    expected = {
        'classwise_calibration_error': references.classwise_calibration_error(probs, labels),
        'classwise_adaptive_calibration_error': references.classwise_adaptive_error(probs, labels),
        'thresholded_adaptive_calibration_error': references.classwise_adaptive_error(
            probs, labels, threshold=0.01
        ),
        'confidence_uncertainty': references.brier_parts(probs.max(1), probs.argmax(1) == labels)[
            2
        ],
        'negative_log_likelihood': -np.log(probs[rows, labels]).mean(),
        'brier_score': np.square(probs - np.eye(5)[labels]).sum(1).mean(),
        'accuracy': 100 * correct.mean(),
        'confidence_gap': 100 * (probs.max(1).mean() - correct.mean()),
    }
    for piece in (calibration_error.PIECE, 50):  # all together, or 10 at a time
        monkeypatch.setattr(calibration_error, 'PIECE', piece)
        for name, value in expected.items():
            assert getattr(metrics, name)(probs, labels) == pytest.approx(value, abs=1e-9), name
        assert metrics.mean_confidence(probs) == pytest.approx(100 * probs.max(1).mean())


def test_thresholds_and_ties_of_classes():
    probs = np.array([[0.5, 0.3, 0.2], [0.5, 0.3, 0.2], [1.0, 0.0, 0.0], [0.5, 0.5, 0.0]])
    labels = np.array([0, 1, 0, 1])
    for threshold in (0.0, 0.25, 0.5):
        value = metrics.thresholded_adaptive_calibration_error(probs, labels, threshold=threshold)
        expected = references.classwise_adaptive_error(probs, labels, threshold=threshold)
        assert value == pytest.approx(expected)
    assert math.isnan(metrics.thresholded_adaptive_calibration_error(probs, labels, threshold=1.0))
    with pytest.raises(ValueError, match=r'threshold must be in \[0, 1\], got 5'):
        metrics.thresholded_adaptive_calibration_error(probs, labels, threshold=5)
    reordered = [2, 0, 3, 1]
    assert metrics.classwise_adaptive_calibration_error(probs, labels) == pytest.approx(
        metrics.classwise_adaptive_calibration_error(probs[reordered], labels[reordered])
    )


def test_predicted_classes_of_arrays_are_those_of_the_metric():
    probs, labels = draw(60)
    probs[:, 3] = 0  # which is never predicted
    probs /= probs.sum(axis=1, keepdims=True)
    found = metrics.predicted_class_calibration(probs, labels, num_bins=10)
    predicted, conf = probs.argmax(1), probs.max(1)
    for k in range(5):
        own = predicted == k
        assert found['count'][k] == own.sum()
        assert found['accuracy'][k] == pytest.approx(
            100 * (labels == k)[own].mean() if own.any() else math.nan, nan_ok=True
        )
        if own.any():
            expected = references.expected_calibration_error(conf[own], (labels == k)[own], 10)
            assert found['ECE'][k] == pytest.approx(expected)
    assert math.isnan(found['ECE'][3]) and math.isnan(found['confidence'][3])


@pytest.mark.parametrize(
    'convert',
    [
        torch.from_numpy,
        lambda x: torch.from_numpy(x).requires_grad_(x.dtype.kind == 'f'),
        lambda x: x.astype('>f8' if x.dtype.kind == 'f' else '>i8'),
        lambda x: x.astype(np.longdouble if x.dtype.kind == 'f' else np.uint16),
        lambda x: x.astype(np.float32 if x.dtype.kind == 'f' else np.uint8),
        lambda x: np.stack([x, x])[1, ::-1][::-1],
    ],
    ids=['torch', 'with a gradient', 'big endian', 'long', 'short', 'strides'],
)
def test_any_kind_of_array(convert):
    probs, labels = draw()
    for name in ('expected_calibration_error', 'brier_score'):
        function = getattr(metrics, name)
        value = function(convert(probs), convert(labels))
        assert isinstance(value, float)
        assert value == pytest.approx(function(probs, labels), abs=1e-4)


def as_maps(rows, labels, size=(3, 5, 4)):
    """Return 60 rows as 3 maps of 5 x 4 pixels, some of them ignored, and which rows are not."""
    maps = np.moveaxis(rows[:60].reshape(*size, -1), -1, 1)
    inside = np.ones(size, bool)
    inside[:, 0] = inside[:, :, 0] = False
    return maps, np.where(inside, labels[:60].reshape(size), 255), inside.flatten()


OF_PROBABILITIES = {name: {} for name in FUNCTIONS if name != 'mean_confidence'} | SELECTIVE


@pytest.mark.parametrize('name', OF_PROBABILITIES)
def test_maps_with_ignored_pixels_are_rows_without_them(name):
    probs, labels = draw()
    maps, targets, inside = as_maps(probs, labels)
    function, options = getattr(metrics, name), OF_PROBABILITIES[name]
    expected = function(probs[:60][inside], labels[:60][inside], **options)
    maps[:, :, 0] = np.nan  # what is ignored need not be probabilities
    assert function(maps, targets, ignore_index=255, **options) == expected
    flat = np.moveaxis(maps, 1, -1).reshape(60, -1)
    assert function(flat, targets.flatten(), ignore_index=255, **options) == expected
    narrow = torch.from_numpy(targets.astype(np.uint8))  # 255 as mmseg's PNG files have it
    assert function(torch.from_numpy(maps), narrow, ignore_index=255, **options) == expected
    with pytest.raises(ValueError, match=r'24 labels outside .* They are not ignore_index=0'):
        function(np.nan_to_num(maps, nan=0.2), np.where(inside.reshape(3, 5, 4), 1, 255),
                 ignore_index=0, **options)  # fmt: skip


def test_confidence_of_maps():
    probs, labels = draw()
    assert metrics.mean_confidence(as_maps(probs, labels)[0]) == pytest.approx(
        100 * probs[:60].max(1).mean()
    )


def test_predicted_classes_of_maps():
    probs, labels = draw()
    maps, targets, inside = as_maps(probs, labels)
    found = metrics.predicted_class_calibration(maps, targets, ignore_index=255)
    expected = metrics.predicted_class_calibration(probs[:60][inside], labels[:60][inside])
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values)


@pytest.mark.parametrize('name', [*OF_PROBABILITIES, 'mean_confidence'])
def test_lists_arrays_and_tensors_have_one_value(name):
    probs, labels = draw(50)
    function, options = getattr(metrics, name), OF_PROBABILITIES.get(name, {})
    given = (probs,) if name == 'mean_confidence' else (probs, labels)
    expected = function(*given, **options)
    for convert in (np.ndarray.tolist, lambda x: tuple(map(tuple, x)) if x.ndim == 2 else tuple(x)):
        assert function(*map(convert, given), **options) == expected
    assert function(*map(torch.from_numpy, given), **options) == expected
    assert function(*(list(torch.from_numpy(x)) for x in given), **options) == expected
    for dtype in (torch.bfloat16, torch.float16):
        half = torch.from_numpy(probs).to(dtype)
        assert function(half, *given[1:], **options) == pytest.approx(
            function(half.float(), *given[1:], **options), rel=1e-6
        )


@pytest.mark.parametrize('name', OF_PROBABILITIES)
def test_probabilities_of_class_1_are_those_of_two_classes(name):
    probs, labels = draw(100, num_classes=2)
    function, options = getattr(metrics, name), OF_PROBABILITIES[name]
    expected = pytest.approx(function(probs, labels, **options), abs=1e-9)
    assert function(probs[:, 1], labels, **options) == expected
    assert function(probs[:, 1:], labels, **options) == expected
    maps = probs[:, 1].reshape(4, 1, 5, 5)
    assert function(maps, labels.reshape(4, 5, 5), **options) == expected


def test_an_ece_of_two_classes_equals_plain_loops():
    probs, labels = draw(100, num_classes=2)
    prob = probs[:, 1]
    expected = references.expected_calibration_error(
        np.maximum(prob, 1 - prob), (prob > 0.5) == labels, 15
    )
    assert metrics.expected_calibration_error(prob, labels) == pytest.approx(expected, abs=1e-9)


def test_maps_of_confidences():
    rng = np.random.default_rng(0)
    conf, correct = rng.random((2, 3, 4)), rng.random((2, 3, 4)) < 0.5
    expected = references.expected_calibration_error(conf.flatten(), correct.flatten(), 15)
    found = metrics.expected_calibration_error(conf=conf.tolist(), correct=correct.tolist())
    assert found == pytest.approx(expected, abs=1e-9)


def test_half_precision_counts_what_it_rounds_to_nothing_as_little():
    probs = np.array([[1, 1e-9], [0.5, 0.5]])
    labels = np.array([1, 0])
    value = metrics.negative_log_likelihood(probs.astype(np.float16), labels)
    assert value == pytest.approx((25 * math.log(2) + math.log(2)) / 2)
    probs = torch.tensor(probs, dtype=torch.bfloat16)
    assert metrics.negative_log_likelihood(probs, labels) == pytest.approx(10.7, abs=0.1)


def test_aece_is_exact_beyond_a_million(monkeypatch):
    monkeypatch.setattr('mmcalib.metrics.bins.narrow_bins.EXACT_LIMIT', 100)
    probs, labels = draw()
    conf, correct = probs.max(1), probs.argmax(1) == labels
    expected = references.adaptive_calibration_error(conf, correct)
    assert metrics.adaptive_calibration_error(probs, labels) == pytest.approx(expected, abs=1e-9)


def test_of_nothing_is_nan():
    assert math.isnan(metrics.expected_calibration_error([], []))
    everything_ignored = dict(labels=[255, 255], ignore_index=255)
    assert math.isnan(metrics.brier_score([[0.5, 0.5], [0.5, 0.5]], **everything_ignored))
    probs, labels = np.zeros((0, 3)), np.zeros(0, dtype=int)
    for name in FUNCTIONS[:-1]:
        assert math.isnan(getattr(metrics, name)(probs, labels))
    assert math.isnan(metrics.mean_confidence(probs))
    nothing = dict(conf=np.zeros(0), correct=np.zeros(0, dtype=bool))
    assert math.isnan(metrics.adaptive_calibration_error(**nothing))


@pytest.mark.parametrize(
    ('probs', 'labels', 'error', 'message'),
    [
        (
            [[3.0, -1.0]],
            [0],
            ValueError,
            r'2 of 2 values outside \[0, 1\], such as 3: take the softmax first if they are logits',
        ),
        ([[0.4, 0.4]], [0], ValueError, '1 of 1 rows that do not sum to 1, such as 0.8'),
        ([[np.nan, 1.0]], [0], ValueError, 'such as nan'),
        ([[0.5, 0.5]], [2], ValueError, r'labels has 1 labels outside \[0, 2\): 2'),
        ([[0.5, 0.5]], [0, 1], ValueError, r'\(1, 2\) and \(2,\)'),
        ([0.5, 0.5], [True, False], TypeError, 'give conf=… and correct=…, or integer labels'),
        (
            [0.5, 0.5],
            [0, 2],
            ValueError,
            '2. To leave out a label .* ignore_index',
        ),
        ([1.5, 0.5], [0, 1], ValueError, 'probs has 1 of 2 values outside'),
        (np.full((2, 5, 4, 3), 1 / 3), np.zeros((2, 5, 4), int), ValueError, 'are the second axis'),
        ([[0.5, 0.5]], [[0, 1]], ValueError, r'one-hot labels, give labels.argmax\(1\)'),
        ([[0.5, 0.5]], [0.0], TypeError, 'labels must be integers, got float64'),
        ([[0.5, 0.5]], [True], TypeError, 'labels must be integers, got bool'),
        ([[1, 0]], [0], TypeError, 'probs must be floats, got int64'),
        ([[60.0, 40.0]], [0], ValueError, 'such as 60: divide percentages by 100'),
        ([[float('nan'), 1.0]], [0], ValueError, 'such as nan: leave out what has no prediction'),
        ([['a', 'b']], [0], TypeError, 'probs must be an array or tensor of numbers, got <U1'),
    ],
)
def test_bad_arrays_are_refused(probs, labels, error, message):
    with pytest.raises(error, match=message):
        metrics.expected_calibration_error(np.array(probs), np.array(labels))


@pytest.mark.parametrize(
    ('options', 'error', 'message'),
    [
        (dict(), TypeError, 'give probs and labels, or'),
        (dict(probs=np.ones((1, 1)), conf=np.ones(1)), TypeError, 'give probs and labels, or'),
        (dict(conf='0.5', correct=[True]), TypeError, 'conf must be an array, .* got str'),
        (
            dict(conf=[0.5], correct=[True], ignore_index=255),
            TypeError,
            'is a label: it goes',
        ),
        (dict(probs=[[0.5, 0.5], [1.0]], labels=[0, 0]), ValueError, 'must be rows of one length'),
        (dict(conf=np.ones(2), correct=np.ones(1)), ValueError, r'\(2,\) and \(1,\)'),
        (dict(conf=np.ones(1), correct=np.array([3])), ValueError, 'correct must be booleans'),
        (dict(conf=np.array([1.5]), correct=np.ones(1)), ValueError, 'conf has 1 of 1 values'),
        (dict(conf=np.ones(1), correct=np.ones(1), num_bins=0), ValueError, 'num_bins must be'),
        (dict(conf=np.ones(1), correct=np.ones(1), num_bins=True), TypeError, 'num_bins must be'),
    ],
)
def test_bad_confidences_are_refused(options, error, message):
    with pytest.raises(error, match=message):
        metrics.expected_calibration_error(**options)
