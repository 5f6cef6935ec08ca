"""Everything a GPU runs, on a device that only pretends to be another than the CPU.

Values are those of the CPU, no tensor is on the wrong device, and no training step waits.
"""

import copy
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from loss_cases import CASES, IGNORED
from pretended_device import DEVICE, Pretended, PretendedDevice, there
from samples import classified, segmented
from torch.utils._pytree import tree_map_only

import mmcalib
from mmcalib.losses import CombinedLoss, MDCALoss, SoftmaxFocalLoss
from mmcalib.losses.upsampled import reason_for_whole_logits, upsampled_loss
from mmcalib.metrics import NAMES, StreamingMetrics, scores_of_logits
from mmcalib.metrics.ood_scores import SCORES
from mmcalib.metrics.protocols import PROTOCOLS
from mmcalib.openmmlab.metrics import CalibrationMetric
from mmcalib.posthoc import SCALERS, load_scaler
from mmcalib.posthoc.attached import scaling_module
from mmcalib.predictions.average import PredictionMean

LOSSES = {
    **{name: case.build for name, case in CASES.items()},
    'combined': lambda **o: CombinedLoss(losses=[MDCALoss(**o), SoftmaxFocalLoss(**o)]),
}
BY_TILES = [name for name, build in LOSSES.items() if reason_for_whole_logits(build()) is None]


def draw(dtype=torch.float32, shape=(2, 5, 6, 4)):
    generator = torch.Generator().manual_seed(0)
    logits = 4 * torch.randn(shape, generator=generator, dtype=torch.float64)
    target = torch.randint(shape[1], (shape[0], *shape[2:]), generator=generator)
    target.view(-1)[::4] = IGNORED
    return logits.to(dtype), target


def pretend_moved(loss):
    """Return a copy of a loss on the pretended device."""
    loss = copy.deepcopy(loss)
    for module in loss.modules():
        for name, value in module._buffers.items():
            module._buffers[name] = value if value is None else there(value)
    return loss


def check_device(compute):
    """Check that tensors computed there have the values of the CPU, and that nothing waits.

    `compute` takes a function that places its inputs.
    """
    expected = compute(torch.clone)
    with PretendedDevice() as device:
        actual = compute(there)
    assert device.waits == []
    assert all(isinstance(tensor, Pretended) for tensor in actual)
    torch.testing.assert_close([tensor.value for tensor in actual], expected, rtol=1e-4, atol=1e-6)


def check_step(name, logits, target, compute):
    """Check value and gradient of a loss on the pretended device."""

    def value_and_gradient(to_device):
        loss = LOSSES[name]()
        if to_device is there:
            loss = pretend_moved(loss)
        placed_logits = to_device(logits).requires_grad_()
        value = compute(loss, placed_logits, to_device(target))
        return [value.detach(), *torch.autograd.grad(value, placed_logits)]

    check_device(value_and_gradient)


@pytest.mark.parametrize('name', LOSSES)
@pytest.mark.parametrize('labels', [torch.int64, torch.uint8])
def test_loss_training_step_there_equals_cpu(name, labels):
    logits, target = draw()
    check_step(name, logits, target.to(labels), lambda f, *x: f(*x, ignore_index=IGNORED))


def test_loss_wrong_label_there_raises():
    logits, target = draw()
    target[0, 0, 1] = 77
    with PretendedDevice(), pytest.raises(RuntimeError, match=r'outside \[0, 5\)'):
        SoftmaxFocalLoss(ignore_index=IGNORED)(there(logits), there(target))


@pytest.mark.parametrize('name', BY_TILES)
def test_upsampled_loss_step_there_equals_cpu(name, monkeypatch):
    # The pretended device has no autocast to turn off.
    monkeypatch.setattr(torch, 'autocast', lambda *args, **options: nullcontext())
    logits, _ = draw(shape=(2, 5, 3, 2))
    _, target = draw()

    def compute(loss, logits, target):
        value, *_ = upsampled_loss(loss, logits, target, ignore_index=IGNORED, align_corners=False)
        return value

    check_step(name, logits, target, compute)


@pytest.mark.parametrize('has_float64', [True, False])
@pytest.mark.parametrize('samples', [segmented(2, 5), classified(9, 5)], ids=['maps', 'rows'])
def test_metric_samples_there_equal_cpu(samples, has_float64):
    are_maps = 'seg_logits' in samples[0]
    values = []
    for to_device in (torch.clone, there):
        metric = CalibrationMetric(NAMES, per_class=True, per_distance=are_maps)
        with PretendedDevice(has_float64=has_float64):
            metric.process(None, tree_map_only(torch.Tensor, to_device, samples))
        if are_maps:
            for image in metric.results:
                assert not isinstance(image.bins, Pretended)
                assert not isinstance(image.fine_bins, Pretended)
        values.append(metric.evaluate(len(samples)))
    assert values[0] == pytest.approx(values[1], abs=1e-4, nan_ok=True)


class Linear(torch.nn.Module):
    """A model of two classes whose logits, of rows or maps, are on the pretended device or not."""

    def __init__(self, place):
        super().__init__()
        self.fc = torch.nn.Linear(2, 2)
        torch.nn.init.eye_(self.fc.weight)
        torch.nn.init.zeros_(self.fc.bias)
        self.place = place

    def forward(self, inputs):
        return self.place(self.fc(inputs.movedim(1, -1)).movedim(-1, 1))


@pytest.mark.parametrize('method', SCALERS)
def test_scaler_device_without_float64_equals_cpu(method, tmp_path):
    logits, labels = draw_two_classes()
    expected_scaler = SCALERS[method]().fit(logits, labels)
    expected = expected_scaler.transform(logits)
    scaling = scaling_module(expected_scaler)
    with PretendedDevice(has_float64=False):
        scaler = SCALERS[method]().fit(there(logits), there(labels))
        actual = [scaler.transform(there(logits)), scaling(there(logits))]
        scaling.to(DEVICE)
        actual.append(scaling(there(logits)))
        probs = scaler.predict_proba(there(logits))
    assert scaler.parameters == expected_scaler.parameters
    for name, value in scaler.tensors.items():
        assert torch.equal(scaling.state_dict()[name], value)
    for values in actual:
        torch.testing.assert_close(values.value, expected)
    torch.testing.assert_close(probs.value, expected_scaler.predict_proba(logits))


@pytest.mark.parametrize('method', [name for name in SCALERS if 'sigmoid' in SCALERS[name].heads])
@pytest.mark.parametrize('has_float64', [True, False])
def test_confidence_on_device_equals_cpu(method, has_float64):
    logits, labels = draw_two_classes()
    conf = logits.softmax(dim=1).amax(dim=1)
    correct = logits.argmax(dim=1) == labels
    expected = SCALERS[method]().fit_confidence(conf, correct).confidence(conf)
    with PretendedDevice(has_float64=has_float64):
        scaler = SCALERS[method]().fit_confidence(there(conf), there(correct))
        actual = scaler.confidence(there(conf))
    torch.testing.assert_close(actual.value, expected)


@pytest.mark.parametrize('shape', [(90, 2), (8, 2, 6, 5)], ids=['rows', 'maps'])
def test_evaluate_and_calibrate_device_without_float64_equal_cpu(shape):
    inputs, _ = draw(shape=shape)
    noise = 3 * torch.randn(shape, generator=torch.Generator().manual_seed(1))
    labels = (inputs + noise).argmax(dim=1)
    size = len(inputs) // 3 + 1
    batches = list(zip(inputs.split(size), labels.split(size), strict=True))
    results = []
    for place in (torch.clone, there):
        model = Linear(place)
        with PretendedDevice(has_float64=False):
            values = dict(mmcalib.evaluate(model, batches, NAMES))
            stream = StreamingMetrics(['ECE', 'NLL'])
            for batch_inputs, batch_labels in batches:
                stream.update(model(batch_inputs).detach(), place(batch_labels))
            values |= {f'{name} of stream': value for name, value in stream.compute().items()}
            for method in ('vector', 'isotonic', 'auto'):
                calibrated = mmcalib.calibrate(model, batches, method=method)
                values |= {f'{method} {name}': value for name, value in calibrated.after.items()}
                logits = calibrated.model(batches[0][0])
                values[f'{method} logit'] = logits.flatten()[1].item()
        results.append(values)
    assert results[1] == pytest.approx(results[0], rel=1e-5, nan_ok=True)


def test_ood_scores_there_equal_cpu():
    logits, _ = draw(shape=(5, 30))
    expected = scores_of_logits(logits, SCORES)
    for has_float64 in (True, False):
        with PretendedDevice(has_float64=has_float64):
            torch.testing.assert_close(scores_of_logits(there(logits), SCORES), expected)


def test_prediction_mean_there_equals_cpu():
    members = [draw(shape=(5, 3, 4))[0].softmax(0), torch.full((5, 3, 4), 0.2)]

    def mean_and_information(to_device):
        mean = PredictionMean(disagreement=True)
        for probs in members:
            mean.add(to_device(probs))
        return [mean.mean, mean.mutual_information]

    check_device(mean_and_information)


def test_pretended_device_finds_two_devices_and_a_wait():
    logits, _ = draw()
    with PretendedDevice() as device:
        placed_logits = there(logits)
        assert placed_logits.device == DEVICE
        with pytest.raises(RuntimeError, match='on two devices'):
            placed_logits * torch.ones(logits.shape)
        assert device.waits == []
        assert placed_logits.max().item() > 0
        assert '_local_scalar_dense' in device.waits


def draw_two_classes(n=100):
    """Return logits (N, 2) and labels, of which most are the predicted class."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(n, 2, generator=generator, device='cpu')
    noise = torch.randn(n, 2, generator=generator, device='cpu')
    return logits, (logits + noise).argmax(dim=1)


@pytest.fixture
def restored_default_device():
    """Put the default device back; no value can come from a tensor on `meta`."""
    yield
    torch.set_default_device(None)


@pytest.mark.parametrize('method', SCALERS)
def test_scaler_default_device_changes_nothing(method, tmp_path, restored_default_device):
    logits, labels = (x.numpy() for x in draw_two_classes())
    groups = np.arange(len(labels)) // 2
    scalers = []
    for device in ('meta', 'cpu'):
        torch.set_default_device(device)
        scaler = SCALERS[method]().fit(logits, labels, groups)
        scaler.save(tmp_path / 'scaler.json')
        scalers.append(load_scaler(tmp_path / 'scaler.json'))
    torch.set_default_device('meta')
    assert scalers[0].parameters == scalers[1].parameters
    actual, expected = (scaler.predict_proba(logits) for scaler in scalers)
    assert np.array_equal(actual, expected)


@pytest.mark.parametrize('name', LOSSES)
def test_loss_default_device_changes_nothing(name, restored_default_device):
    values = []
    for device in ('cpu', 'meta'):
        torch.set_default_device('cpu')
        logits, target = draw()
        logits.requires_grad_()
        loss = LOSSES[name]()
        torch.set_default_device(device)
        value = loss(logits, target, ignore_index=IGNORED)
        values.append([value.detach(), *torch.autograd.grad(value, logits)])
    torch.set_default_device('cpu')
    torch.testing.assert_close(*values)


@pytest.fixture
def compute_on_two_defaults(restored_default_device):
    """Return a function that gives a result with the CPU as default device, and with another."""

    def compute(function):
        torch.set_default_device('cpu')
        expected = function()
        torch.set_default_device('meta')
        actual = function()
        torch.set_default_device('cpu')
        return actual, expected

    return compute


def test_measure_default_device_changes_nothing(compute_on_two_defaults):
    logits, labels = draw_two_classes()
    probs = logits.softmax(dim=1)
    for values in (probs, probs[:, 1]):
        actual, expected = compute_on_two_defaults(
            lambda x=values: mmcalib.measure(x, labels, NAMES)
        )
        assert actual == pytest.approx(expected, nan_ok=True)
    actual, expected = compute_on_two_defaults(
        lambda: mmcalib.measure(
            probs, labels, ['ECE', 'NLL'], interval=0.9, groups=range(len(labels))
        )
    )
    assert actual == pytest.approx(expected)


@pytest.mark.parametrize('protocol', PROTOCOLS)
def test_evaluate_default_device_changes_nothing(protocol, compute_on_two_defaults):
    maps, _ = draw()
    labels = maps.argmax(dim=1)
    labels[:, :3] = 1
    actual, expected = compute_on_two_defaults(
        lambda: mmcalib.evaluate(
            lambda x: x, [(maps, labels)], ['ECE', 'AECE', 'NLL'], protocol=protocol
        )
    )
    assert actual == pytest.approx(expected)


@pytest.mark.parametrize('method', [*SCALERS, 'auto'])
def test_calibrate_default_device_changes_nothing(method, compute_on_two_defaults):
    logits, labels = draw_two_classes()
    model = torch.nn.Linear(2, 2)
    torch.nn.init.eye_(model.weight)
    actual, expected = compute_on_two_defaults(
        lambda: mmcalib.calibrate(model, [(logits, labels)], method=method)
    )
    assert (actual.before, actual.after) == (expected.before, expected.after)
    assert torch.equal(actual.model(logits), expected.model(logits))


@pytest.mark.parametrize('samples', [segmented(2, 5), classified(9, 5)], ids=['maps', 'rows'])
def test_metric_default_device_changes_nothing(samples, compute_on_two_defaults):
    def evaluate():
        metric = CalibrationMetric(NAMES, per_class=True, per_distance='seg_logits' in samples[0])
        metric.process(None, samples)
        return metric.evaluate(len(samples))

    actual, expected = compute_on_two_defaults(evaluate)
    assert actual == pytest.approx(expected, nan_ok=True)
