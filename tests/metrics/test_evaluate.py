"""``evaluate`` and ``measure`` with intervals: any model, maps, volumes, several labels, groups."""

import resource
import subprocess
import sys

import numpy as np
import pytest
import torch
from samples import as_segmented
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from mmcalib import evaluate, measure
from mmcalib.metrics import PROTOCOLS
from mmcalib.metrics.intervals import intervals
from mmcalib.openmmlab.metrics import CalibrationMetric

NAMES = ['ECE', 'AECE', 'ClasswiseECE', 'NLL', 'Brier', 'accuracy', 'gap', 'AURC', 'temperature']
KEPT = ['ECE', 'NLL', 'Brier', 'accuracy', 'gap']  # those with intervals


def loader_of(*shape, classes=3, size=7, ignored=0.2, **options):
    """Return inputs that are logits, and labels that follow them, some of them 255."""
    generator = torch.Generator().manual_seed(sum(shape, classes))
    logits = 2 * torch.randn(size, classes, *shape, generator=generator)
    noise = torch.randn(logits.shape, generator=generator)
    labels = (logits + noise).argmax(1) if classes > 1 else (logits + noise > 0)[:, 0].long()
    labels[torch.rand(labels.shape, generator=generator) < ignored] = 255
    return logits, labels, DataLoader(TensorDataset(logits, labels), batch_size=3, **options)


def by_evaluator(logits, labels, names, **options):
    """Return what the registered metric says, which plain loops prove."""
    pairs = zip(logits, labels, strict=True)
    if labels.ndim > 1:
        samples = [as_segmented(z, z.argmax(0), y) for z, y in pairs]
    else:
        samples = [dict(pred_score=z.softmax(0), gt_label=y[None]) for z, y in pairs]
    metric = CalibrationMetric(names, **options)
    metric.process(None, samples)
    return {k.split('/')[1]: v for k, v in metric.evaluate(len(samples)).items()}


def rows_of(logits, labels):
    return logits.movedim(1, -1).flatten(0, -2), labels.flatten()


@pytest.mark.parametrize('classes', [1, 3])
@pytest.mark.parametrize('shape', [(), (4, 5), (3, 4, 5)], ids=['rows', 'maps', 'volumes'])
def test_of_a_model_and_of_arrays(shape, classes):
    logits, labels, loader = loader_of(*shape, classes=classes, size=7 if shape else 30)
    found = evaluate(nn.Identity(), loader, NAMES, ignore_index=255)
    assert evaluate(nn.Identity(), loader, 'NLL', ignore_index=255) == found['NLL']
    rows, kept = rows_of(logits, labels)[0][labels.flatten() != 255], labels[labels != 255]
    expected = [(rows, kept, {}), (logits, labels, dict(ignore_index=255))]
    for z, y, options in expected:
        probs = z.softmax(1) if classes > 1 else z.sigmoid()
        # The best temperature is where a curve is flat.
        assert evaluate(probs, y, NAMES, **options) == pytest.approx(found, rel=1e-4)
    if classes > 1:
        assert by_evaluator(rows, kept, NAMES) == pytest.approx(found, rel=1e-4)
    for size, shuffle in ((7, False), (2, True)):
        other = DataLoader(TensorDataset(logits, labels), batch_size=size, shuffle=shuffle)
        again = evaluate(nn.Identity(), other, NAMES, ignore_index=255)
        assert again == pytest.approx(found, rel=1e-6)


@pytest.mark.parametrize('shape', [(), (4, 5)], ids=['rows', 'maps'])
def test_intervals_are_the_evaluators(shape):
    logits, labels, loader = loader_of(*shape, ignored=0.2 * bool(shape), size=20)
    options = dict(metrics=KEPT, ignore_index=255, interval=0.9)
    expected = by_evaluator(logits, labels, KEPT, confidence_interval=0.9)
    assert list(expected)[5:7] == ['ECE_low', 'ECE_high']
    assert evaluate(nn.Identity(), loader, **options) == pytest.approx(expected, rel=1e-5)
    of_arrays = measure(logits.softmax(1), labels, **options)
    assert of_arrays == pytest.approx(expected, rel=1e-5) and list(of_arrays) == list(expected)
    if not shape:
        conf, guess = logits.double().softmax(1).max(1)
        right = dict(conf=conf, correct=guess == labels, metrics=['ECE', 'gap'])
        own = measure(**right, interval=0.9)
        assert own == pytest.approx({k: expected[k] for k in own}, rel=1e-5)


@pytest.mark.parametrize('protocol', PROTOCOLS)
def test_protocols_are_the_evaluators(protocol, monkeypatch):
    if protocol == 'pooled':  # whatever the batch, many pixels share cells
        monkeypatch.setattr('mmcalib.metrics.counts.EXACT_LIMIT', 50)
        monkeypatch.setattr('mmcalib.metrics.counts.IMAGES_PER_MERGE', 3)
    logits, labels, loader = loader_of(4, 5, size=20)
    labels[:, :2] = labels[:, :1, :1]  # with pixels far from another label
    options = dict(protocol=protocol, boundary_width=1)
    expected = by_evaluator(logits, labels, NAMES, confidence_interval=0.9, **options)
    found = evaluate(nn.Identity(), loader, NAMES, ignore_index=255, interval=0.9, **options)
    assert found == pytest.approx(expected, rel=1e-5)
    if protocol == 'image':
        images, how = zip(logits.softmax(1)[:, None], labels[:, None], strict=True), dict(limits={})
        own = torch.tensor([measure(p, y, 'ECE', ignore_index=255) for p, y in images]).double()
        how |= dict(coverage=0.9, num_bootstrap=1000, seed=0)
        ends = intervals(lambda weights: {'ECE': weights @ own / 20}, 20, **how)['ECE']
        assert [found['ECE_low'], found['ECE_high']] == pytest.approx(ends, rel=1e-5)


def test_groups_are_units():
    """Slices of one volume, in groups, are as the volume is."""
    volumes, labels, loader = loader_of(4, 5, 6)
    whole = evaluate(nn.Identity(), loader, KEPT, ignore_index=255, interval=0.95)
    slices = volumes.movedim(2, 1).flatten(0, 1), labels.flatten(0, 1)
    cut = DataLoader(TensorDataset(*slices), batch_size=5)
    options = dict(metrics=KEPT, ignore_index=255, interval=0.95)
    groups = np.repeat([f'patient {n}' for n in range(7)], 4)
    assert evaluate(nn.Identity(), cut, groups=groups, **options) == pytest.approx(whole)
    of_arrays = measure(slices[0].softmax(1), slices[1], groups=groups, **options)
    assert of_arrays == pytest.approx(whole, rel=1e-5)
    narrower = evaluate(nn.Identity(), cut, **options)
    rows, classes, few = loader_of(size=28)
    options['groups'] = np.arange(28) // 4
    found = evaluate(nn.Identity(), few, **options)
    assert found == pytest.approx(measure(rows.softmax(1), classes, **options), rel=1e-5)
    assert narrower['NLL'] == pytest.approx(whole['NLL'])
    assert narrower['NLL_low'] != pytest.approx(whole['NLL_low'], rel=1e-3)


def test_several_labels_have_a_value_each_and_their_mean():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(20, 3, generator=generator)
    labels = (logits + torch.randn(20, 3, generator=generator) > 0).long()
    labels[:, 2], labels[0, 0] = 255, 255
    probs, options = logits.sigmoid(), dict(ignore_index=255, interval=0.9)
    found = measure(probs, labels, ['ECE', 'NLL'], **options)
    for k in range(2):
        own = measure(probs[:, k], labels[:, k], ['ECE', 'NLL'], **options)
        assert {name: found[name][k] for name in own} == pytest.approx(own)
    assert np.isnan(found['ECE'][2])
    assert found['ECE_macro'] == pytest.approx(found['ECE'][:2].mean())
    assert 'ECE_low_macro' not in found and found['NLL_low'].shape == (3,)
    loader = DataLoader(TensorDataset(logits, labels), batch_size=6)
    of_model = evaluate(nn.Identity(), loader, ['ECE', 'NLL'], **options)
    for name, values in found.items():
        np.testing.assert_allclose(of_model[name], values, rtol=1e-6)
    assert measure(probs, labels, 'ECE', ignore_index=255).shape == (3,)


def test_no_predictions_are_nan():
    found = measure(np.zeros((2, 3)) + 1 / 3, [9, 9], ['ECE'], ignore_index=9, interval=0.95)
    assert list(found) == ['ECE', 'ECE_low', 'ECE_high'] and np.isnan(list(found.values())).all()


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
def test_memory_is_flat_over_the_images():
    done = subprocess.run([sys.executable, '-c', MEMORY], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 20_000  # kB, of 500 images of 100 kB
