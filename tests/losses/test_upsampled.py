"""Losses by tiles of upsampled logits equal those of the whole map, which is never in memory."""

import pytest
import torch
import torch.nn.functional as F
from loss_cases import IGNORED, ROWS
from torch.utils._python_dispatch import TorchDispatchMode

from mmcalib.losses import CombinedLoss, MarginLabelSmoothingLoss, MDCALoss, SoftmaxFocalLoss
from mmcalib.losses import upsampled as module
from mmcalib.losses.upsampled import reason_for_whole_logits, upsampled_loss

K = 5
BY_TILES = {
    name: case for name, case in ROWS.items() if reason_for_whole_logits(case.build()) is None
}


def draw(size=(37, 26), dtype=torch.float64, small=(8, 6)):
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(3, K, *small, generator=generator, dtype=torch.float64)
    labels = torch.randint(K, (3, *size), generator=generator)
    labels[:, 2:4] = IGNORED
    labels[0, :, -1] = IGNORED
    return logits.to(dtype).requires_grad_(), labels


def whole(loss, logits, labels, align_corners=False):
    large = F.interpolate(logits, labels.shape[1:], mode='bilinear', align_corners=align_corners)
    return loss(large, labels, ignore_index=IGNORED), large


def by_tiles(loss, logits, labels, align_corners=False):
    how = dict(ignore_index=IGNORED, align_corners=align_corners)
    return upsampled_loss(loss, logits, labels, **how)


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    monkeypatch.setitem(module.PIECE, 'cpu', K * 60)
    monkeypatch.setattr(module, 'COLUMNS', 7)


@pytest.mark.parametrize('name', BY_TILES)
def test_value_and_gradient_of_every_loss(name):
    options = dict(class_weight=[1.0, 2.0, 0.5, 3.0, 0.0], loss_weight=0.4)
    for number, size in enumerate([(37, 26), (8, 6), (5, 4), (16, 12)]):
        loss = ROWS[name].build(reduction='sum' if number == 3 else 'mean', **options)
        logits, labels = draw(size)
        if number == 3:
            labels.clamp_(max=K - 1)  # none is ignored
        value, correct = by_tiles(loss, logits, labels, bool(number % 2))
        expected, large = whole(loss, logits, labels, bool(number % 2))
        found = [torch.autograd.grad(3 * x, logits)[0] for x in (value, expected)]
        torch.testing.assert_close(value, expected, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(*found, rtol=1e-10, atol=1e-12)
        assert correct == (large.argmax(dim=1) == labels).sum() > 0


class Largest(TorchDispatchMode):
    """The most elements of any tensor that an operation returns."""

    seen = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for item in out if isinstance(out, (tuple, list)) else [out]:
            if torch.is_tensor(item):
                self.seen = max(self.seen, item.untyped_storage().nbytes() // item.element_size())
        return out


def test_no_tensor_is_as_large_as_the_upsampled_logits(monkeypatch):
    monkeypatch.setitem(module.PIECE, 'cpu', K * 800)
    logits, labels = draw((48, 40), torch.float32)
    loss = MarginLabelSmoothingLoss(margin=2.0)
    with Largest() as largest:
        by_tiles(loss, logits, labels)[0].backward()
    assert 0 < largest.seen < K * labels.numel() / 4
    with Largest() as largest:
        whole(loss, logits, labels)[0].backward()
    assert largest.seen >= K * labels.numel()


@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16], ids=str)
def test_half_logits_are_upsampled_in_single_precision(dtype):
    logits, labels = draw(dtype=dtype)
    loss = MarginLabelSmoothingLoss(margin=2.0, loss_weight=1e-8)
    with torch.autocast('cpu', dtype=torch.bfloat16):
        value, _ = by_tiles(loss, logits, labels)
    single = logits.detach().float().requires_grad_()
    expected, _ = whole(loss, single, labels)
    torch.testing.assert_close(value, expected)
    # A loss scale brings small gradients into the range of float16, before they are rounded.
    (grad,) = torch.autograd.grad(value * 2**27, logits)
    (expected,) = torch.autograd.grad(expected * 2**27, single)
    assert grad.dtype == dtype
    torch.testing.assert_close(grad, expected.to(dtype), rtol=1e-2, atol=1e-7)


def test_without_a_gradient_and_with_a_second_one():
    logits, labels = draw()
    expected, correct = by_tiles(SoftmaxFocalLoss(), logits, labels)
    with torch.no_grad():
        value, same = by_tiles(SoftmaxFocalLoss(), logits, labels.to(torch.uint8))
    assert not value.requires_grad
    torch.testing.assert_close((value, same), (expected.detach(), correct))
    with pytest.raises(RuntimeError, match='create_graph'):
        torch.autograd.grad(expected, logits, create_graph=True)


class OwnForward(SoftmaxFocalLoss):
    forward = None


@pytest.mark.parametrize(
    ('loss', 'reason'),
    [
        (OwnForward(), 'OwnForward is no sum over single pixels of mmcalib'),
        (MDCALoss(), 'MDCALoss is no sum over single pixels'),
        (ROWS['nacl'].build(), 'NACLLoss is no sum'),
        (SoftmaxFocalLoss(reduction='none'), "reduction='none'"),
        (torch.nn.CrossEntropyLoss(), 'CrossEntropyLoss is no sum'),
        (CombinedLoss([SoftmaxFocalLoss()]), 'CombinedLoss is no sum'),
    ],
)
def test_which_losses_need_the_whole(loss, reason):
    assert reason in reason_for_whole_logits(loss)
