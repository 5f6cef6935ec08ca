"""``evaluate`` and ``measure`` with intervals: any model, maps, volumes, several labels, groups."""

import resource
import subprocess
import sys

import numpy as np
import pytest
import torch
from doors import draw_logits, probabilities, registered_values
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from mmcalib import evaluate, measure
from mmcalib.metrics import PROTOCOLS
from mmcalib.metrics.intervals import intervals

NAMES = ['ECE', 'AECE', 'ClasswiseECE', 'NLL', 'Brier', 'accuracy', 'gap', 'AURC', 'temperature']
INTERVAL_NAMES = ['ECE', 'NLL', 'Brier', 'accuracy', 'gap']


def draw_loader(*shape, classes=3, size=7, ignored=0.2, **options):
    """Return logits, labels that follow them, some of them 255, and a loader of both."""
    logits, labels = draw_logits(size, classes, *shape, ignored=ignored)
    return logits, labels, DataLoader(TensorDataset(logits, labels), batch_size=3, **options)


def valid_rows(logits, labels):
    """Return the logits ``(M, K)`` and the labels ``(M,)`` of the valid predictions."""
    is_valid = labels.flatten() != 255
    return logits.movedim(1, -1).flatten(0, -2)[is_valid], labels.flatten()[is_valid]


@pytest.mark.parametrize('classes', [1, 3])
@pytest.mark.parametrize('shape', [(), (4, 5), (3, 4, 5)], ids=['rows', 'maps', 'volumes'])
def test_evaluate_model_equals_arrays_rows_and_registered_metric(shape, classes):
    logits, labels, loader = draw_loader(*shape, classes=classes, size=7 if shape else 30)
    values = evaluate(nn.Identity(), loader, NAMES, ignore_index=255)
    assert evaluate(nn.Identity(), loader, 'NLL', ignore_index=255) == values['NLL']
    # The tolerance is that of the best temperature, at which a curve is flat.
    of_arrays = evaluate(probabilities(logits), labels, NAMES, ignore_index=255)
    assert of_arrays == pytest.approx(values, rel=1e-4)
    rows, row_labels = valid_rows(logits, labels)
    assert evaluate(probabilities(rows), row_labels, NAMES) == pytest.approx(values, rel=1e-4)
    if classes > 1:
        registered = registered_values(rows, row_labels, NAMES)
        assert registered == pytest.approx(values, rel=1e-4)


@pytest.mark.parametrize(('shape', 'ignored'), [((), 0.0), ((4, 5), 0.2)], ids=['rows', 'maps'])
def test_intervals_by_evaluate_and_measure_equal_registered_metric(shape, ignored):
    logits, labels, loader = draw_loader(*shape, ignored=ignored, size=20)
    options = dict(metrics=INTERVAL_NAMES, ignore_index=255, interval=0.9)
    expected = registered_values(logits, labels, INTERVAL_NAMES, confidence_interval=0.9)
    assert list(expected)[5:7] == ['ECE_low', 'ECE_high']
    assert evaluate(nn.Identity(), loader, **options) == pytest.approx(expected, rel=1e-5)
    actual = measure(logits.softmax(1), labels, **options)
    assert actual == pytest.approx(expected, rel=1e-5)
    assert list(actual) == list(expected)


def test_intervals_of_confidences_equal_those_of_probabilities():
    logits, labels, _ = draw_loader(ignored=0.0, size=20)
    probs = logits.double().softmax(1)
    conf, predicted = probs.max(1)
    expected = measure(probs, labels, ['ECE', 'gap'], interval=0.9)
    actual = measure(conf=conf, correct=predicted == labels, metrics=['ECE', 'gap'], interval=0.9)
    assert actual == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize('protocol', PROTOCOLS)
def test_evaluate_any_protocol_equals_registered_metric(protocol, monkeypatch):
    if protocol == 'pooled':  # Many pixels share fine bins, whatever the batch.
        monkeypatch.setattr('mmcalib.metrics.counts.EXACT_LIMIT', 50)
        monkeypatch.setattr('mmcalib.metrics.measurement.IMAGES_PER_MERGE', 3)
    logits, labels, loader = draw_loader(4, 5, size=20)
    labels[:, :2] = labels[:, :1, :1]  # Some pixels are far from another label.
    options = dict(protocol=protocol, boundary_width=1)
    expected = registered_values(logits, labels, NAMES, confidence_interval=0.9, **options)
    actual = evaluate(nn.Identity(), loader, NAMES, ignore_index=255, interval=0.9, **options)
    assert actual == pytest.approx(expected, rel=1e-5)


def test_interval_protocol_image_is_that_of_a_mean_over_images():
    logits, labels, loader = draw_loader(4, 5, size=20)
    values = evaluate(
        nn.Identity(), loader, NAMES, ignore_index=255, interval=0.9, protocol='image'
    )
    image_values = []
    for image_logits, image_labels in zip(logits, labels, strict=True):
        probs = image_logits[None].softmax(1)
        image_values.append(measure(probs, image_labels[None], 'ECE', ignore_index=255))
    image_values = torch.tensor(image_values).double()
    bounds = intervals(
        lambda weights: {'ECE': weights @ image_values / 20},
        20,
        level=0.9,
        num_bootstrap=1000,
        seed=0,
        limits={},
    )
    assert [values['ECE_low'], values['ECE_high']] == pytest.approx(bounds['ECE'], rel=1e-5)


def test_intervals_slices_in_groups_equal_volumes():
    volumes, labels, loader = draw_loader(4, 5, 6)
    options = dict(metrics=INTERVAL_NAMES, ignore_index=255, interval=0.95)
    expected = evaluate(nn.Identity(), loader, **options)
    slices = volumes.movedim(2, 1).flatten(0, 1)
    slice_labels = labels.flatten(0, 1)
    slice_loader = DataLoader(TensorDataset(slices, slice_labels), batch_size=5)
    groups = np.repeat([f'patient {n}' for n in range(7)], 4)
    actual = evaluate(nn.Identity(), slice_loader, groups=groups, **options)
    assert actual == pytest.approx(expected)
    of_arrays = measure(slices.softmax(1), slice_labels, groups=groups, **options)
    assert of_arrays == pytest.approx(expected, rel=1e-5)
    without_groups = evaluate(nn.Identity(), slice_loader, **options)
    assert without_groups['NLL'] == pytest.approx(expected['NLL'])
    assert without_groups['NLL_low'] != pytest.approx(expected['NLL_low'], rel=1e-3)


def test_intervals_rows_in_groups_equal_measure():
    logits, labels, loader = draw_loader(size=28)
    options = dict(
        metrics=INTERVAL_NAMES, ignore_index=255, interval=0.95, groups=np.arange(28) // 4
    )
    actual = evaluate(nn.Identity(), loader, **options)
    assert actual == pytest.approx(measure(logits.softmax(1), labels, **options), rel=1e-5)


def test_measure_several_labels_has_a_value_each_and_their_mean():
    torch.manual_seed(0)
    logits = torch.randn(20, 3)
    labels = (logits + torch.randn(20, 3) > 0).long()
    labels[:, 2] = 255
    labels[0, 0] = 255
    probs = logits.sigmoid()
    options = dict(ignore_index=255, interval=0.9)
    values = measure(probs, labels, ['ECE', 'NLL'], **options)
    for k in range(2):
        expected = measure(probs[:, k], labels[:, k], ['ECE', 'NLL'], **options)
        assert {name: values[name][k] for name in expected} == pytest.approx(expected)
    assert np.isnan(values['ECE'][2])
    assert values['ECE_macro'] == pytest.approx(values['ECE'][:2].mean())
    assert 'ECE_low_macro' not in values
    assert values['NLL_low'].shape == (3,)
    assert measure(probs, labels, 'ECE', ignore_index=255).shape == (3,)
    loader = DataLoader(TensorDataset(logits, labels), batch_size=6)
    by_model = evaluate(nn.Identity(), loader, ['ECE', 'NLL'], **options)
    for name, expected in values.items():
        np.testing.assert_allclose(by_model[name], expected, rtol=1e-6)


MEMORY = """
import resource, torch
from mmcalib import evaluate

def images(count):
    generator = torch.Generator().manual_seed(0)
    for _ in range(count):
        yield torch.randn(1, 3, 96, 96, generator=generator), torch.zeros(1, 96, 96).long()

peaks = []
for count in (150, 500):  # both above a million pixels
    evaluate(lambda x: x, images(count), ['ECE', 'AECE', 'NLL', 'AURC'], interval=0.95)
    peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
print(peaks[1] - peaks[0])
"""


@pytest.mark.skipif(not hasattr(resource, 'RUSAGE_SELF'), reason='needs the peak of a process')
def test_evaluate_many_images_keeps_memory_flat():
    process = subprocess.run([sys.executable, '-c', MEMORY], capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    assert int(process.stdout) < 20_000  # kB; the 350 more images have 100 kB each.


@pytest.mark.parametrize('dtype', [torch.uint8, torch.int16, torch.int32])
def test_evaluate_labels_of_small_types_equal_those_of_int64(dtype):
    torch.manual_seed(0)
    logits = torch.randn(6, 3, 8, 8)
    labels = torch.randint(3, (6, 8, 8))
    labels[:, :2] = 255
    options = dict(metrics=['accuracy', 'NLL'], ignore_index=255)
    expected = evaluate(torch.nn.Identity(), [(logits, labels)], **options)
    measured = evaluate(torch.nn.Identity(), [(logits, labels.to(dtype))], **options)
    assert measured == expected and 0 < measured['accuracy'] < 100


@pytest.mark.parametrize('dtype', [torch.uint8, torch.int32, torch.float32])
def test_measure_correct_of_any_type_counts_what_is_wrong(dtype):
    correct = torch.tensor([1, 0, 1, 1]).to(dtype)
    accuracy = measure(conf=torch.full((4,), 0.8), correct=correct, metrics='accuracy')
    assert accuracy == 75
