"""Hooks of losses: the schedule of a parameter, and the logit distances."""

from types import SimpleNamespace

import pytest
import torch
from mmengine.logging import MessageHub
from mmengine.registry import MODELS
from tiny_models import fcn_head, mmseg_head, segmentor
from tiny_run import train

from mmcalib.losses import CalibrationLoss, CombinedLoss, MarginLabelSmoothingLoss
from mmcalib.openmmlab.hooks import LogitDistanceHook, LossScheduleHook
from mmcalib.openmmlab.hooks.logit_distance_hook import find_loss, logit_distances

MBLS = dict(type='MarginLabelSmoothingLoss')
CE = dict(type='mmseg.CrossEntropyLoss')
VALUES = {0: 10.0, 1: 8.0, 3: 1.0}
MARGINS = [10] * 3 + [8] * 6 + [1] * 3  # 4 epochs have 3 iterations each.


def schedule(
    work_dir, parameter='margin', values=VALUES, by_epoch=True, loop_by_epoch=True, **options
):
    hook = LossScheduleHook(parameter, values=values, by_epoch=by_epoch)
    loss = MarginLabelSmoothingLoss(margin=1.0)
    return train(
        work_dir, loss, hook, note=lambda loss: loss.margin, by_epoch=loop_by_epoch, **options
    )


def test_loss_schedule_hook_epochs_resumed_equals_whole(tmp_path):
    runner = schedule(tmp_path / 'whole', epochs=4)
    assert runner.model.notes == MARGINS
    assert runner.message_hub.get_scalar('train/margin').current() == 1
    schedule(tmp_path / 'parts', epochs=2)
    assert schedule(tmp_path / 'parts', epochs=4, resume=True).model.notes == MARGINS[6:]


@pytest.mark.usefixtures('no_pause')
@pytest.mark.parametrize('epochs', [True, False])
def test_loss_schedule_hook_iterations_set_values(epochs, tmp_path):
    values = {6: 8.0, 4: 9.0, 0: 10.0}
    runner = schedule(tmp_path, values=values, by_epoch=False, loop_by_epoch=epochs)
    assert runner.model.notes == [10] * 4 + [9] * 2 + [8] * 3
    if not epochs:
        with pytest.raises(ValueError, match='set by_epoch=False'):
            schedule(tmp_path, loop_by_epoch=False)


def test_loss_schedule_hook_invalid_values_raise_before_training(tmp_path):
    for parameter, values, message in (
        ('margin', {0: 1.0, 9: -2.0}, r'margin must be .* at least 0, got -2'),
        ('gamma', {0: 1.0}, "no calibration loss .* has a 'gamma'"),
        ('ignore_index', {0: 1.0}, "has a 'ignore_index'"),
        ('margin', {}, r'values must start at 0, such as \{0: 10'),
        ('margin', {1: 2.0}, 'values must start at 0'),
    ):
        with pytest.raises(ValueError, match=message):
            schedule(tmp_path, parameter, values)


def test_loss_hooks_losses_of_both_toolboxes_are_found():
    linear = dict(type='mmpretrain.LinearClsHead', num_classes=3, in_channels=4, loss=MBLS)
    maps = segmentor(fcn_head(loss_decode=[MBLS, CE]), auxiliary_head=fcn_head(loss_decode=MBLS))
    for model in (MODELS.build(linear), maps, CombinedLoss([MarginLabelSmoothingLoss()])):
        hub = MessageHub('test')
        runner = SimpleNamespace(model=model, epoch=2, message_hub=hub, train_loop=0)
        hook = LossScheduleHook('margin', values=VALUES)
        hook.before_train(runner)
        hook.before_train_epoch(runner)
        losses = [module for module in model.modules() if isinstance(module, CalibrationLoss)]
        assert len(losses) == (2 if model is maps else 1)
        assert all(loss.margin == 8.0 for loss in losses)
    assert find_loss(maps) is maps.decode_head.loss_decode[0]
    del maps.decode_head
    assert find_loss(maps) is maps.auxiliary_head.loss_decode
    with pytest.raises(ValueError, match='found no loss'):
        find_loss(torch.nn.Linear(1, 1))


def test_logit_distance_hook_measures_loss_of_the_prediction():
    last = mmseg_head('mmseg.OCRHead', ocr_channels=4, loss_decode=[CE, MBLS])
    heads = [fcn_head(loss_decode=MBLS), last]
    cascade = segmentor(heads, type='mmseg.CascadeEncoderDecoder', num_stages=2)
    assert find_loss(cascade) is cascade.decode_head[1].loss_decode[1]
    losses = [MBLS, CE, dict(type='mmseg.BoundaryLoss'), CE]
    pidnet = segmentor(mmseg_head('mmseg.PIDHead', loss_decode=losses))
    assert find_loss(pidnet) is pidnet.decode_head.loss_decode[1]


@pytest.mark.parametrize('shape', [(7, 4), (2, 5, 3, 4)])
def test_logit_distances_equal_a_loop(shape):
    torch.manual_seed(0)
    logits = 4 * torch.randn(shape)
    target = torch.randint(shape[1], (shape[0], *shape[2:]))
    target.view(-1)[1] = 255
    rows = logits.movedim(1, -1).reshape(-1, shape[1]).tolist()
    distances = []
    for row, label in zip(rows, target.flatten(), strict=True):
        if label != 255:
            distances += [max(row) - logit for logit in row]
    above_margin = [distance for distance in distances if distance > 3]
    expected = {
        'mean': sum(distances) / len(distances),
        'max': max(distances),
        'above_margin': 100 * len(above_margin) / len(distances),
    }
    values = logit_distances(logits, target, margin=3.0, ignore_index=255)
    actual = {key: value.item() for key, value in values.items()}
    assert actual == pytest.approx(expected, rel=1e-5)
    # Probabilities as the target have no label that is ignored.
    soft = logit_distances(logits, torch.rand(shape), ignore_index=255)
    assert soft['max'] >= values['max']
    assert 'above_margin' not in soft


def test_logit_distance_hook_measures_by_the_interval(tmp_path):
    loss = MarginLabelSmoothingLoss(margin=0.5)
    hook = LogitDistanceHook(interval=3)
    runner = train(tmp_path, loss, hook, note=lambda loss: len(loss._forward_hooks))
    assert runner.model.notes == [1, 0, 1, 0, 0, 1, 0, 0, 1] and not loss._forward_hooks
    for name in ('mean', 'max', 'above_margin'):
        history = runner.message_hub.get_scalar(f'train/logit_distance_{name}')
        assert len(history.data[0]) == 4
    log = next(tmp_path.rglob('*.log')).read_text()
    assert 'logit_distance_max' in log and 'logit_distance_above_margin' in log
