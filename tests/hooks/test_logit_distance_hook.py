import pytest
import torch
from mmengine.model import BaseModel
from mmengine.runner import Runner
from torch.utils.data import DataLoader

from mmcalib.hooks import LogitDistanceHook
from mmcalib.hooks.logit_distance_hook import find_loss, logit_distances
from mmcalib.losses import MarginLabelSmoothingLoss


def by_loops(logits, target, margin, ignore_index):
    """The definition: one row at a time."""
    num_classes = logits.shape[1]
    rows = logits.movedim(1, -1).reshape(-1, num_classes)
    distances = []
    for row, label in zip(rows.tolist(), target.flatten().tolist(), strict=True):
        if label != ignore_index:
            distances += [max(row) - logit for logit in row]
    above = sum(distance > margin for distance in distances)
    return sum(distances) / len(distances), max(distances), 100 * above / len(distances)


@pytest.mark.parametrize('shape', [(7, 4), (2, 5, 3, 4)])
def test_distances(shape):
    torch.manual_seed(0)
    logits = 4 * torch.randn(shape)
    target = torch.randint(shape[1], (shape[0], *shape[2:]))
    target.view(-1)[1] = 255
    values = logit_distances(logits, target, margin=3.0, ignore_index=255)
    expected = by_loops(logits, target, 3.0, 255)
    assert [values[key].item() for key in ('mean', 'max', 'above_margin')] == pytest.approx(
        expected, rel=1e-5
    )
    assert 'above_margin' not in logit_distances(logits, target)
    soft = torch.rand(shape)  # has no labels to ignore
    assert logit_distances(logits, soft, ignore_index=255)['max'] >= values['max']


class Model(BaseModel):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 3)
        self.loss_module = MarginLabelSmoothingLoss(margin=0.5)
        self.hooks = []

    def forward(self, inputs, labels, mode):
        self.hooks.append(len(self.loss_module._forward_hooks))
        return dict(loss=self.loss_module(self.layer(inputs), labels))


def train(work_dir, hook):
    model = Model()
    runner = Runner(
        model,
        str(work_dir),
        train_dataloader=DataLoader([(torch.randn(2), 1)] * 7, batch_size=1),
        train_cfg=dict(by_epoch=True, max_epochs=1),
        optim_wrapper=dict(optimizer=dict(type='SGD', lr=0.1)),
        custom_hooks=[hook],
        default_hooks=dict(logger=dict(type='LoggerHook', interval=3)),
        experiment_name=f'{work_dir.name}_{id(hook)}',
    )
    runner.train()
    return model, runner


def test_it_is_attached_only_where_it_is_due(tmp_path):
    model, runner = train(tmp_path, LogitDistanceHook(interval=3))
    assert model.hooks == [1, 0, 1, 0, 0, 1, 0]
    for name in ('mean', 'max', 'above_margin'):
        history = runner.message_hub.get_scalar(f'train/logit_distance_{name}')
        assert len(history.data[0]) == 3
    assert not model.loss_module._forward_hooks
    log = next(tmp_path.rglob('*.log')).read_text()
    assert 'logit_distance_max' in log and 'logit_distance_above_margin' in log


def test_the_loss_of_the_main_head_is_watched():
    heads = pytest.importorskip('mmseg.models.decode_heads')

    def head(loss):
        return heads.FCNHead(in_channels=4, channels=4, num_classes=3, loss_decode=loss)

    loss = dict(type='MarginLabelSmoothingLoss')
    model = torch.nn.Module()
    model.auxiliary_head = head(loss)
    model.decode_head = head([loss, loss | dict(loss_name='loss_2')])
    assert find_loss(model) is model.decode_head.loss_decode[0]
    del model.decode_head
    assert find_loss(model) is model.auxiliary_head.loss_decode
    with pytest.raises(ValueError, match='found no loss'):
        find_loss(torch.nn.Linear(1, 1))


def test_bad_options_are_refused():
    with pytest.raises(ValueError, match='interval must be an integer of at least 1, got 0'):
        LogitDistanceHook(interval=0)
    with pytest.raises(ValueError, match=r'margin must be .*, got -1'):
        LogitDistanceHook(margin=-1)
    with pytest.raises(TypeError, match='interval must be an integer of at least 1, got True'):
        LogitDistanceHook(interval=True)
