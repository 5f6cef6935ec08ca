import pytest
import torch
from mmengine.model import BaseModel
from mmengine.runner import Runner
from torch.utils.data import DataLoader

from mmcalib.hooks import LossScheduleHook
from mmcalib.hooks.loss_schedule_hook import find_losses
from mmcalib.losses import (
    ACLSLoss,
    AdaFocalLoss,
    CALSLoss,
    CombinedLoss,
    LabelSmoothingLoss,
    MarginLabelSmoothingLoss,
)
from mmcalib.runs.checkpoint_io import use_safe_files


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
    use_safe_files(runner)  # classic mmengine cannot read its own on PyTorch 2.6
    runner.train()
    return model.margins, runner


@pytest.mark.parametrize(
    ('options', 'expected'),
    [
        (dict(mode='add', factor=-2.0), [10, 8, 6, 4]),
        (dict(mode='add', factor=2.0, cap=13.0), [10, 12, 13, 13]),
        (dict(mode='multiply', factor=0.5, cap=3.0), [10, 5, 3, 3]),
        (dict(mode='step', values=[7.0, 1.0]), [10, 7, 1, 1]),
        (dict(mode='add', factor=-2.0, interval=2), [10, 10, 8, 8]),
    ],
)
def test_epochs(options, expected, tmp_path):
    margins, runner = train(tmp_path, LossScheduleHook('margin', **options))
    assert margins == [value for value in expected for _ in range(2)]
    assert runner.message_hub.get_scalar('train/margin').current() == expected[-1]


@pytest.mark.usefixtures('no_pause')
@pytest.mark.parametrize('by_epoch', [True, False])
def test_iterations(by_epoch, tmp_path):
    hook = LossScheduleHook('margin', factor=-1.0, by_epoch=False, interval=3)
    margins, _ = train(tmp_path, hook, by_epoch=by_epoch)
    assert margins == [10, 10, 10, 9, 9, 9, 8, 8]


def test_resuming_goes_on(tmp_path):
    train(tmp_path, LossScheduleHook('margin', factor=-2.0), epochs=2)
    margins, _ = train(tmp_path, LossScheduleHook('margin', factor=-2.0), epochs=4, resume=True)
    assert margins == [6, 6, 4, 4]


def test_a_second_training_starts_from_the_config_again(tmp_path):
    hook, model = LossScheduleHook('margin', factor=-2.0), Model()
    for name in ('first', 'second'):
        train(tmp_path / name, hook, epochs=2, model=model)
    assert model.margins == 2 * [10, 10, 8, 8]


@pytest.mark.parametrize(
    ('options', 'message'),
    [
        (dict(factor=1.0, cap=3.0), 'at step 1: the values rise from 10 to 11, away from cap=3'),
        (dict(mode='step', values=[5.0, 20.0], cap=7.0), 'at step 2: the values rise .*cap=7'),
        (dict(mode='multiply', factor=1e200), 'at step 2: '),
    ],
)
def test_a_cap_on_the_other_side_and_an_overflow_are_refused(options, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        train(tmp_path, LossScheduleHook('margin', **options))


def test_losses_of_either_toolbox_are_found():
    heads = pytest.importorskip('mmpretrain.models.heads')
    loss = dict(type='MarginLabelSmoothingLoss')
    classifier = torch.nn.Sequential(heads.LinearClsHead(3, 4, loss=loss))
    assert len(find_losses(classifier, 'margin')) == 1
    decode_heads = pytest.importorskip('mmseg.models.decode_heads')
    segmentor = decode_heads.FCNHead(
        in_channels=4,
        channels=4,
        num_classes=3,
        loss_decode=[loss, loss | dict(loss_name='loss_2')],
    )
    assert len(find_losses(segmentor, 'margin')) == 2
    assert find_losses(segmentor, 'gamma') == []


@pytest.mark.parametrize(
    ('loss', 'parameter', 'least'),
    [
        (ACLSLoss(), 'alpha_others', 0.0),
        (AdaFocalLoss(), 'rate', 0.0),
        (CALSLoss(3), 'margin', 0.01),
    ],
    ids=lambda x: x if isinstance(x, str) else None,
)
def test_parameters_of_the_later_losses(loss, parameter, least):
    (found,) = find_losses(torch.nn.Sequential(CombinedLoss([loss])), parameter)
    found.set_parameters(**{parameter: least})
    assert found.options().get(parameter, getattr(found, parameter)) == least
    with pytest.raises(ValueError, match=f'{parameter} must be .* at least {least:g}, got -1'):
        found.check_parameter(parameter, -1)


@pytest.mark.parametrize(
    ('options', 'message'),
    [
        (dict(mode='cosine', factor=1), "got 'cosine'"),
        (dict(mode='add'), 'takes a factor and no values'),
        (dict(mode='step', factor=1), 'takes values and no factor'),
        (dict(factor=1, interval=0), 'interval must be an integer of at least 1, got 0'),
        (dict(factor=1, interval=1.5), 'interval must be an integer of at least 1, got 1.5'),
        (dict(factor='1'), "factor must be a number, got '1'"),
        (dict(factor=1, cap=True), 'cap must be a number, got True'),
        (dict(mode='step', values=[1, float('nan')]), 'values must be .*got nan'),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        LossScheduleHook('margin', **options)


def test_what_cannot_work_is_said_before_training(tmp_path):
    with pytest.raises(ValueError, match=r'at step 3: margin must be .* at least 0, got -2'):
        train(tmp_path / 'a', LossScheduleHook('margin', factor=-4.0))
    with pytest.raises(ValueError, match="no calibration loss of the model has a 'gamma'"):
        train(tmp_path / 'b', LossScheduleHook('gamma', factor=1.0))
    with pytest.raises(ValueError, match='set by_epoch=False'):
        train(tmp_path / 'c', LossScheduleHook('margin', factor=1.0), by_epoch=False)
    with pytest.raises(ValueError, match=r'at step 2: alpha must be in \[0, 1\], got 1\.05'):
        hook = LossScheduleHook('alpha', factor=0.5)
        train(tmp_path / 'e', hook, model=Model(LabelSmoothingLoss(alpha=0.05)))
    with pytest.raises(ValueError, match="has a 'ignore_index'"):
        train(tmp_path / 'f', LossScheduleHook('ignore_index', factor=1.0))
    model = Model(LabelSmoothingLoss())
    with pytest.raises(ValueError, match="has a 'margin'"):
        train(tmp_path / 'd', LossScheduleHook('margin', factor=1.0), model=model)
