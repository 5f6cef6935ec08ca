from types import SimpleNamespace

import pytest
import torch
from mmengine.logging import MessageHub
from mmengine.model import BaseModel
from mmengine.runner import Runner
from torch.utils.data import DataLoader

from mmcalib.hooks import LossScheduleHook
from mmcalib.losses import (
    ACLSLoss,
    AdaFocalLoss,
    CalibrationLoss,
    CALSLoss,
    CombinedLoss,
    LabelSmoothingLoss,
    MarginLabelSmoothingLoss,
)
from mmcalib.runs.checkpoint import load_safely


class Model(BaseModel):
    """A linear classifier that notes the margin of every step."""

    def __init__(self, loss=None):
        super().__init__()
        self.layer = torch.nn.Linear(2, 3)
        self.loss = loss or MarginLabelSmoothingLoss(margin=10.0, alpha=0.1)
        self.margins = []

    def forward(self, inputs, labels, mode):
        self.margins.append(self.loss.margin)
        return dict(loss=self.loss(self.layer(inputs), labels))


def train(work_dir, hook, epochs=4, by_epoch=True, resume=False, model=None):
    model = model or Model()
    runner = Runner(
        model,
        str(work_dir),
        train_dataloader=DataLoader([(torch.randn(2), 1)] * 4, batch_size=2),
        train_cfg=dict(by_epoch=True, max_epochs=epochs)
        if by_epoch
        else dict(by_epoch=False, max_iters=2 * epochs),
        optim_wrapper=dict(optimizer=dict(type='SGD', lr=0.1)),
        custom_hooks=[hook],
        resume=resume,
        experiment_name=f'{work_dir.name}_{epochs}_{resume}_{id(hook)}',
        default_hooks=dict(checkpoint=dict(type='CheckpointHook', interval=1, by_epoch=by_epoch)),
    )
    load_safely()  # classic mmengine cannot read its own on PyTorch 2.6
    runner.train()
    return model.margins, runner


VALUES = {0: 10.0, 1: 8.0, 3: 1.0}
EXPECTED = [10, 10, 8, 8, 8, 8, 1, 1]


def test_epochs(tmp_path):
    margins, runner = train(tmp_path, LossScheduleHook('margin', values=VALUES))
    assert margins == EXPECTED
    assert runner.message_hub.get_scalar('train/margin').current() == 1


@pytest.mark.usefixtures('no_pause')
@pytest.mark.parametrize('by_epoch', [True, False])
def test_iterations(by_epoch, tmp_path):
    hook = LossScheduleHook('margin', values={6: 8.0, 3: 9.0, 0: 10.0}, by_epoch=False)
    margins, _ = train(tmp_path, hook, by_epoch=by_epoch)
    assert margins == [10, 10, 10, 9, 9, 9, 8, 8]


def test_resuming_goes_on(tmp_path):
    train(tmp_path, LossScheduleHook('margin', values=VALUES), epochs=2)
    margins, _ = train(tmp_path, LossScheduleHook('margin', values=VALUES), resume=True)
    assert margins == EXPECTED[4:]


def test_losses_of_either_toolbox_are_set():
    heads = pytest.importorskip('mmpretrain.models.heads')
    decode_heads = pytest.importorskip('mmseg.models.decode_heads')
    loss = dict(type='MarginLabelSmoothingLoss')
    several = [loss, loss | dict(loss_name='loss_2')]
    for head in (
        heads.LinearClsHead(3, 4, loss=loss),
        decode_heads.FCNHead(in_channels=4, channels=4, num_classes=3, loss_decode=several),
        CombinedLoss([CALSLoss(3)]),
    ):
        runner = SimpleNamespace(
            model=torch.nn.Sequential(head), epoch=2, message_hub=MessageHub('test'), train_loop=0
        )
        hook = LossScheduleHook('margin', values=VALUES)
        hook.before_train(runner)
        hook.before_train_epoch(runner)
        losses = [each for each in head.modules() if isinstance(each, CalibrationLoss)]
        assert losses and {each.margin for each in losses} == {8.0}


@pytest.mark.parametrize(
    ('loss', 'parameter', 'values', 'message'),
    [
        (None, 'margin', {0: 1.0, 9: -2.0}, r'margin must be .* at least 0, got -2'),
        (LabelSmoothingLoss(), 'alpha', {0: 1.05}, r'alpha must be in \[0, 1\], got 1\.05'),
        (ACLSLoss(), 'alpha_others', {0: -1.0}, 'alpha_others must be .* at least 0'),
        (AdaFocalLoss(), 'rate', {0: -1.0}, 'rate must be .* at least 0'),
        (None, 'margin', {0: '1'}, "margin must be a number, got '1'"),
        (None, 'gamma', {0: 1.0}, "no calibration loss of the model has a 'gamma'"),
        (LabelSmoothingLoss(), 'margin', {0: 1.0}, "has a 'margin'"),
        (None, 'ignore_index', {0: 1.0}, "has a 'ignore_index'"),
    ],
)
def test_what_cannot_work_is_said_before_training(loss, parameter, values, message, tmp_path):
    with pytest.raises((TypeError, ValueError), match=message):
        train(tmp_path, LossScheduleHook(parameter, values=values), model=Model(loss))


def test_epochs_that_there_are_not(tmp_path):
    with pytest.raises(ValueError, match='set by_epoch=False'):
        train(tmp_path, LossScheduleHook('margin', values=VALUES), by_epoch=False)
    for values in ({}, {1: 2.0}):
        with pytest.raises(ValueError, match=r'values must start at 0, such as \{0: 10'):
            LossScheduleHook('margin', values=values)
