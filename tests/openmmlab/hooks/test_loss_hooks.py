"""Hooks on the loss while it trains: a parameter by a schedule, and the logit distances."""

from types import SimpleNamespace

import pytest
import torch
from mmengine.logging import MessageHub
from mmengine.registry import MODELS
from tiny_models import fcn_head, segmentor
from tiny_run import train

from mmcalib.losses import CalibrationLoss, CombinedLoss, MarginLabelSmoothingLoss
from mmcalib.openmmlab.hooks import LogitDistanceHook, LossScheduleHook
from mmcalib.openmmlab.hooks.logit_distance_hook import find_loss, logit_distances

MBLS, CE = dict(type='MarginLabelSmoothingLoss'), dict(type='mmseg.CrossEntropyLoss')
EPOCHS, VALUES = [10] * 3 + [8] * 6 + [1] * 3, {0: 10.0, 1: 8.0, 3: 1.0}


def schedule(
    work_dir, parameter='margin', values=VALUES, by_epoch=True, loop_by_epoch=True, **options
):
    hook = LossScheduleHook(parameter, values=values, by_epoch=by_epoch)
    loss = MarginLabelSmoothingLoss(margin=1.0)
    return train(
        work_dir, loss, hook, note=lambda loss: loss.margin, by_epoch=loop_by_epoch, **options
    )


def test_a_schedule_of_epochs_and_its_resuming(tmp_path):
    runner = schedule(tmp_path / 'whole', epochs=4)
    assert runner.model.noted == EPOCHS
    assert runner.message_hub.get_scalar('train/margin').current() == 1
    schedule(tmp_path / 'parts', epochs=2)
    assert schedule(tmp_path / 'parts', epochs=4, resume=True).model.noted == EPOCHS[6:]


@pytest.mark.usefixtures('no_pause')
@pytest.mark.parametrize('epochs', [True, False])
def test_a_schedule_of_iterations(epochs, tmp_path):
    values = {6: 8.0, 4: 9.0, 0: 10.0}
    runner = schedule(tmp_path, values=values, by_epoch=False, loop_by_epoch=epochs)
    assert runner.model.noted == [10] * 4 + [9] * 2 + [8] * 3
    if not epochs:
        with pytest.raises(ValueError, match='set by_epoch=False'):
            schedule(tmp_path, loop_by_epoch=False)


def test_a_schedule_that_cannot_be_is_refused_before_training(tmp_path):
    for parameter, values, message in (
        ('margin', {0: 1.0, 9: -2.0}, r'margin must be .* at least 0, got -2'),
        ('gamma', {0: 1.0}, "no calibration loss .* has a 'gamma'"),
        ('ignore_index', {0: 1.0}, "has a 'ignore_index'"),
        ('margin', {}, r'values must start at 0, such as \{0: 10'),
        ('margin', {1: 2.0}, 'values must start at 0'),
    ):
        with pytest.raises(ValueError, match=message):
            schedule(tmp_path, parameter, values)


def test_losses_of_either_toolbox_are_found():
    linear = dict(type='mmpretrain.LinearClsHead', num_classes=3, in_channels=4, loss=MBLS)
    maps = segmentor(fcn_head(loss_decode=[MBLS, CE]), auxiliary_head=fcn_head(loss_decode=MBLS))
    for model in (MODELS.build(linear), maps, CombinedLoss([MarginLabelSmoothingLoss()])):
        hub = MessageHub('test')
        runner = SimpleNamespace(model=model, epoch=2, message_hub=hub, train_loop=0)
        hook = LossScheduleHook('margin', values=VALUES)
        hook.before_train(runner)
        hook.before_train_epoch(runner)
        losses = [each for each in model.modules() if isinstance(each, CalibrationLoss)]
        assert [each.margin for each in losses] == [8.0] * (2 if model is maps else 1)
    assert find_loss(maps) is maps.decode_head.loss_decode[0]
    del maps.decode_head
    assert find_loss(maps) is maps.auxiliary_head.loss_decode
    with pytest.raises(ValueError, match='found no loss'):
        find_loss(torch.nn.Linear(1, 1))


@pytest.mark.parametrize('shape', [(7, 4), (2, 5, 3, 4)])
def test_distances_equal_a_loop_over_rows(shape):
    torch.manual_seed(0)
    logits, target = 4 * torch.randn(shape), torch.randint(shape[1], (shape[0], *shape[2:]))
    target.view(-1)[1] = 255
    rows = zip(logits.movedim(1, -1).reshape(-1, shape[1]).tolist(), target.flatten(), strict=True)
    distances = [max(row) - logit for row, label in rows if label != 255 for logit in row]
    values = logit_distances(logits, target, margin=3.0, ignore_index=255)
    assert {key: value.item() for key, value in values.items()} == pytest.approx(
        {
            'mean': sum(distances) / len(distances),
            'max': max(distances),
            'above_margin': 100 * sum(each > 3 for each in distances) / len(distances),
        },
        rel=1e-5,
    )
    soft = logit_distances(logits, torch.rand(shape), ignore_index=255)  # no label is ignored
    assert soft['max'] >= values['max'] and 'above_margin' not in soft


def test_distances_are_measured_only_where_they_are_due(tmp_path):
    loss = MarginLabelSmoothingLoss(margin=0.5)
    hooked = lambda loss: len(loss._forward_hooks)  # noqa: E731
    runner = train(tmp_path, loss, LogitDistanceHook(interval=3), note=hooked)
    assert runner.model.noted == [1, 0, 1, 0, 0, 1, 0, 0, 1] and not loss._forward_hooks
    for name in ('mean', 'max', 'above_margin'):
        history = runner.message_hub.get_scalar(f'train/logit_distance_{name}')
        assert len(history.data[0]) == 4
    log = next(tmp_path.rglob('*.log')).read_text()
    assert 'logit_distance_max' in log and 'logit_distance_above_margin' in log
