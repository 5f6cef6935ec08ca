"""Decode heads of mmseg with FusedUpsamplingHook: the same losses, or left as they are."""

import copy
import logging
from types import SimpleNamespace

import pytest
import torch
from mmengine.registry import HOOKS
from tiny_models import fcn_head, mmseg_head, scenes, segmentor
from torch import nn

from mmcalib.losses import upsampled
from mmcalib.openmmlab.hooks import FusedUpsamplingHook
from mmcalib.openmmlab.hooks.fused_upsampling_hook import decode_heads

pytest.importorskip('mmseg.models')
pytestmark = pytest.mark.filterwarnings('ignore:Default ``avg_non_ignore`` is False')

CE = dict(type='mmseg.CrossEntropyLoss')
MBLS = dict(type='MarginLabelSmoothingLoss', margin=2.0)
HEADS = {
    'fcn': fcn_head(loss_decode=MBLS, align_corners=True),
    'a list with one name twice': fcn_head(
        loss_decode=[MBLS, dict(MBLS, loss_weight=0.5), dict(type='LabelSmoothingLoss')]
    ),
    'psp': mmseg_head('mmseg.PSPHead', pool_scales=(1, 2), loss_decode=dict(type='BrierLoss')),
}
LEFT_ALONE = {
    'a loss_by_feat of its own': mmseg_head(
        'mmseg.EncHead', in_channels=[8], in_index=[0], num_codes=4
    ),
    'its sampler, OHEMPixelSampler': fcn_head(sampler=dict(type='mmseg.OHEMPixelSampler')),
    'CrossEntropyLoss is no sum': fcn_head(loss_decode=CE),
    'NACLLoss is no sum': fcn_head(loss_decode=[MBLS, dict(type='NACLLoss')]),
    'one channel': fcn_head(num_classes=2, out_channels=1, loss_decode=dict(CE, use_sigmoid=True)),
    'no ignore_index': fcn_head(ignore_index=None),
}


def fake_runner(model):
    """The attributes of a Runner that the hook reads."""
    return SimpleNamespace(model=model, logger=logging.getLogger('fused'))


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    monkeypatch.setitem(upsampled.PIECE, 'cpu', 4 * 60)
    monkeypatch.setattr(upsampled, 'COLUMNS', 7)


def one_step(model, batch):
    """The losses of a step and the gradient of every parameter."""
    data = model.data_preprocessor(copy.deepcopy(batch), training=True)
    losses = model.loss(data['inputs'], data['data_samples'])
    model.zero_grad()
    model.parse_losses(losses)[0].backward()
    return losses, {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize('name', HEADS)
def test_fused_upsampling_hook_losses_and_gradients_are_the_same(name):
    batch = scenes(3, batch_size=3)[0]
    model = segmentor(HEADS[name], auxiliary_head=fcn_head(loss_decode=MBLS))
    expected, grads = one_step(model, batch)
    hook = HOOKS.build(dict(type='FusedUpsamplingHook'))
    hook.before_train(fake_runner(model))
    assert all('loss_by_feat' in vars(head) for head in decode_heads(model).values())
    losses, fused_grads = one_step(model, batch)
    torch.testing.assert_close(losses, expected)
    torch.testing.assert_close(fused_grads, grads, rtol=1e-4, atol=1e-6)
    hook.after_train(fake_runner(model))
    assert not any('loss_by_feat' in vars(head) for head in decode_heads(model).values())


@pytest.mark.parametrize('reason', LEFT_ALONE)
def test_fused_upsampling_hook_other_head_is_left_and_named_once(reason, caplog):
    model = segmentor(LEFT_ALONE[reason], auxiliary_head=fcn_head(loss_decode=MBLS))
    with caplog.at_level(logging.INFO):
        FusedUpsamplingHook().before_train(fake_runner(model))
    left, fused = [record.message for record in caplog.records]
    assert 'decode_head is left as it is' in left and reason in left
    assert 'auxiliary_head computes' in fused
    assert 'loss_by_feat' not in vars(model.decode_head)


def test_fused_upsampling_hook_watched_loss_gets_all_logits():
    model = segmentor(fcn_head(loss_decode=MBLS))
    FusedUpsamplingHook().before_train(fake_runner(model))
    batch = scenes(2)[0]
    shapes = []
    watch = model.decode_head.loss_decode.register_forward_hook(
        lambda loss, args, output: shapes.append(args[0].shape)
    )
    one_step(model, batch)
    watch.remove()
    one_step(model, batch)
    assert shapes == [(2, 4, 16, 20)]
    copied = copy.deepcopy(model)
    assert copied.decode_head.loss_by_feat.__self__ is copied.decode_head
    with pytest.raises(ValueError, match='FusedUpsamplingHook is for decode heads'):
        FusedUpsamplingHook().before_train(fake_runner(nn.Linear(2, 2)))
