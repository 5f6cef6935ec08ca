"""Everything a GPU runs, on a device that only pretends to be another than the CPU.

Values are those of the CPU, no tensor is on the wrong device, and no training step waits.
"""

import copy
import math
from contextlib import contextmanager, nullcontext

import pytest
import torch
from commands import ROOT
from loss_cases import CASES, IGNORED
from mmengine.optim import OptimWrapper
from mmengine.registry import OPTIM_WRAPPERS
from pretended_device import DEVICE, Pretended, PretendedDevice, there

from mmcalib.ensembles.mean_and_disagreement import PredictionMean
from mmcalib.losses import CalibrationLoss, CombinedLoss, MDCALoss, SoftmaxFocalLoss
from mmcalib.losses.upsampled import upsampled_loss, why_only_whole
from mmcalib.metrics import NAMES, CalibrationMetric, scores_of_logits
from mmcalib.runs.config import load_config, set_loader_defaults
from mmcalib.runs.train import train_and_test

LOSSES = {
    **{name: case.build for name, case in CASES.items()},
    'combined': lambda **o: CombinedLoss(losses=[MDCALoss(**o), SoftmaxFocalLoss(**o)]),
}
BY_TILES = [name for name, build in LOSSES.items() if why_only_whole(build()) is None]
every_loss = pytest.mark.parametrize('name', LOSSES)


def draw(dtype=torch.float32, shape=(2, 5, 6, 4)):
    generator = torch.Generator().manual_seed(0)
    logits = 4 * torch.randn(shape, generator=generator, dtype=torch.float64)
    target = torch.randint(shape[1], (shape[0], *shape[2:]), generator=generator)
    target.view(-1)[::4] = IGNORED
    return logits.to(dtype), target


def moved(loss):
    """Return a copy of a loss on the pretended device."""
    loss = copy.deepcopy(loss)
    for module in loss.modules():
        for name, value in module._buffers.items():
            module._buffers[name] = value if value is None else there(value)
    return loss


@every_loss
@pytest.mark.parametrize('labels', [torch.int64, torch.uint8])
def test_a_training_step(name, labels):
    loss = LOSSES[name](ignore_index=IGNORED)
    logits, target = draw()
    logits.requires_grad_()
    expected = loss(logits, target.to(labels))
    (slope,) = torch.autograd.grad(expected, logits)
    with PretendedDevice() as device:
        other, labelled = there(logits).requires_grad_(), there(target.to(labels))
        value = moved(loss)(other, labelled)
        (grad,) = torch.autograd.grad(value, other)
    assert isinstance(value, Pretended) and isinstance(grad, Pretended)
    torch.testing.assert_close(value.detach().value, expected.detach())
    torch.testing.assert_close(grad.value, slope, rtol=1e-4, atol=1e-6)
    assert device.waits == []


def test_a_wrong_label_there():
    logits, target = draw()
    target[0, 0, 1] = 77
    with PretendedDevice(), pytest.raises(RuntimeError, match=r'outside \[0, 5\)'):
        SoftmaxFocalLoss(ignore_index=IGNORED)(there(logits), there(target))


@pytest.mark.parametrize('name', BY_TILES)
def test_the_fused_step(name, monkeypatch):
    # It has none to turn off.
    monkeypatch.setattr(torch, 'autocast', lambda *args, **options: nullcontext())
    logits, target = draw(shape=(2, 5, 3, 2))
    target = torch.randint(5, (2, 6, 4), generator=torch.Generator().manual_seed(1))
    call = dict(ignore_index=IGNORED, align_corners=False)
    logits.requires_grad_()
    expected, _ = upsampled_loss(LOSSES[name](), logits, target, **call)
    (slope,) = torch.autograd.grad(expected, logits)
    with PretendedDevice() as device:
        other = there(logits).requires_grad_()
        value, _ = upsampled_loss(moved(LOSSES[name]()), other, there(target), **call)
        (grad,) = torch.autograd.grad(value, other)
    assert device.waits == []
    torch.testing.assert_close(value.detach().value, expected.detach(), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(grad.value, slope, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize('shape', [(2, 5, 6, 4), (9, 5)], ids=['maps', 'rows'])
def test_every_metric_of_samples_there(shape):
    logits, target = draw(shape=shape)
    values = []
    for place in (lambda x: x, there):
        maps = dict(per_distance=True) if logits.ndim > 2 else {}
        metric = CalibrationMetric(NAMES, per_class=True, **maps)
        with PretendedDevice():
            for image, label in zip(logits, target if maps else target % 5, strict=True):
                sample = dict(pred_score=place(image.softmax(0)), gt_label=place(label[None]))
                if maps:
                    sample = dict(
                        seg_logits=dict(data=place(image)),
                        pred_sem_seg=dict(data=place(image.argmax(0)[None])),
                        gt_sem_seg=dict(data=place(label[None])),
                    )
                metric.process(None, [sample])
        for image in metric.results if maps else ():
            assert not isinstance(image.bins, Pretended) and not isinstance(image.cells, Pretended)
        values.append(metric.evaluate(len(logits)))
    assert values[0] == pytest.approx(values[1], abs=1e-4, nan_ok=True)


def test_scores_of_the_unseen():
    logits, _ = draw(shape=(5, 30))
    scores = ('max_probability', 'max_logit', 'energy', 'entropy')
    here = scores_of_logits(logits, scores)
    with PretendedDevice():
        other = scores_of_logits(there(logits), scores)
    for name in scores:
        torch.testing.assert_close(other[name], here[name])


def test_an_ensemble_there():
    probs = [draw(shape=(5, 3, 4))[0].softmax(0), torch.full((5, 3, 4), 0.2)]
    means = [PredictionMean(disagreement=True) for _ in range(2)]
    with PretendedDevice() as device:
        for part in probs:
            means[0].add(part)
            means[1].add(there(part))
        found = [means[1].mean, means[1].mutual_information]
    assert device.waits == []
    expected = [means[0].mean, means[0].mutual_information]
    torch.testing.assert_close([x.value for x in found], expected)


class OnTheCPU(CalibrationLoss):
    @staticmethod
    def formula(logits, target):
        weight = torch.ones(logits.shape[1:])
        return (logits * weight).sum(dim=1)


class Waiting(CalibrationLoss):
    @staticmethod
    def formula(logits, target):
        return logits.sum(dim=1) * (2.0 if logits.max().item() > 0 else 1.0)


@pytest.mark.parametrize('loss', [OnTheCPU, Waiting])
def test_that_a_wrong_device_and_a_wait_are_found(loss):
    logits, target = draw()
    with PretendedDevice() as device:
        arguments = there(logits).requires_grad_(), there(target)
        assert arguments[0].device == DEVICE
        if loss is OnTheCPU:
            with pytest.raises(RuntimeError, match='on two devices'):
                loss(loss_name='loss_x', ignore_index=IGNORED)(*arguments)
        else:
            loss(loss_name='loss_x', ignore_index=IGNORED)(*arguments)
            assert '_local_scalar_dense' in device.waits


class HalfPrecisionOptimWrapper(OptimWrapper):
    """What mmengine's ``AmpOptimWrapper`` does on a GPU, which it insists on."""

    @contextmanager
    def optim_context(self, model):
        with super().optim_context(model), torch.autocast('cpu', dtype=torch.bfloat16):
            yield


@pytest.mark.parametrize(
    ('folder', 'data'),
    [
        *(('mbls', 'digits'), ('mdca', 'digits')),
        *(('mbls', 'digit_scenes'), ('nacl', 'digit_scenes')),
    ],
)
def test_a_training_in_mixed_precision(folder, data, tmp_path, monkeypatch):
    path = ROOT / f'configs/{folder}/{data}.py'
    monkeypatch.setitem(
        OPTIM_WRAPPERS.module_dict, 'HalfPrecisionOptimWrapper', HalfPrecisionOptimWrapper
    )
    options = {
        'optim_wrapper.type': 'HalfPrecisionOptimWrapper',
        'train_cfg.max_epochs': 2,
        'train_cfg.val_interval': 2,
        'train_dataloader.dataset.indices': 32,
        'val_dataloader.dataset.indices': 16,
        'test_dataloader.dataset.indices': 16,
    }
    cfg = load_config(str(path), options)
    cfg.work_dir, cfg.launcher = str(tmp_path), 'none'
    cfg.experiment_name = f'half_{folder}_{data}'
    set_loader_defaults(cfg)
    metrics = train_and_test(cfg)
    assert all(math.isfinite(metrics[f'calibration/{name}']) for name in ('ECE', 'AECE'))
    state = torch.load(tmp_path / 'epoch_2.pth', weights_only=False)['state_dict']
    assert all(value.isfinite().all() for value in state.values() if value.is_floating_point())
