"""Losses of upsampled logits: by tiles they equal the loss of the whole map, in less memory."""

import pytest
import torch
import torch.nn.functional as F
from loss_cases import IGNORED, ROWS
from torch.utils._python_dispatch import TorchDispatchMode

from mmcalib.losses import (
    CombinedLoss,
    MarginLabelSmoothingLoss,
    MDCALoss,
    SoftmaxFocalLoss,
    upsampled as module,
)
from mmcalib.losses.upsampled import reason_for_whole_logits, upsampled_loss

K = 5
BY_TILES = {
    name: case for name, case in ROWS.items() if reason_for_whole_logits(case.build()) is None
}


def draw(size=(37, 26), dtype=torch.float64, small=(8, 6)):
    torch.manual_seed(0)
    logits = 3 * torch.randn(3, K, *small, dtype=torch.float64)
    labels = torch.randint(K, (3, *size))
    labels[:, 2:4] = IGNORED
    labels[0, :, -1] = IGNORED
    return logits.to(dtype).requires_grad_(), labels


def loss_of_whole_map(loss, logits, labels, align_corners=False):
    large = F.interpolate(logits, labels.shape[1:], mode='bilinear', align_corners=align_corners)
    return loss(large, labels, ignore_index=IGNORED), large


def loss_by_tiles(loss, logits, labels, align_corners=False):
    return upsampled_loss(loss, logits, labels, ignore_index=IGNORED, align_corners=align_corners)


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    monkeypatch.setitem(module.PIECE, 'cpu', K * 60)
    monkeypatch.setattr(module, 'COLUMNS', 7)


@pytest.mark.parametrize('name', BY_TILES)
@pytest.mark.parametrize(
    ('size', 'reduction', 'align_corners'),
    [
        ((37, 26), 'mean', False),
        ((8, 6), 'mean', True),
        ((5, 4), 'mean', False),
        ((16, 12), 'sum', True),
    ],
)
def test_upsampled_loss_value_and_gradient_equal_whole_map(name, size, reduction, align_corners):
    loss = ROWS[name].build(
        reduction=reduction, class_weight=[1.0, 2.0, 0.5, 3.0, 0.0], loss_weight=0.4
    )
    logits, labels = draw(size)
    if reduction == 'sum':
        labels.clamp_(max=K - 1)  # No pixel is ignored.
    actual, correct = loss_by_tiles(loss, logits, labels, align_corners)
    expected, large = loss_of_whole_map(loss, logits, labels, align_corners)
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-12)
    (actual_gradient,) = torch.autograd.grad(3 * actual, logits)
    (expected_gradient,) = torch.autograd.grad(3 * expected, logits)
    torch.testing.assert_close(actual_gradient, expected_gradient, rtol=1e-10, atol=1e-12)
    assert correct == (large.argmax(dim=1) == labels).sum() > 0


class LargestTensor(TorchDispatchMode):
    """The number of elements of the largest tensor that an operation returns."""

    num_elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        output = func(*args, **(kwargs or {}))
        for tensor in output if isinstance(output, (tuple, list)) else [output]:
            if torch.is_tensor(tensor):
                num_elements = tensor.untyped_storage().nbytes() // tensor.element_size()
                self.num_elements = max(self.num_elements, num_elements)
        return output


def test_upsampled_loss_tensors_are_smaller_than_upsampled_logits(monkeypatch):
    monkeypatch.setitem(module.PIECE, 'cpu', K * 800)
    logits, labels = draw((48, 40), torch.float32)
    loss = MarginLabelSmoothingLoss(margin=2.0)
    with LargestTensor() as largest:
        loss_by_tiles(loss, logits, labels)[0].backward()
    assert 0 < largest.num_elements < K * labels.numel() / 4
    with LargestTensor() as largest:
        loss_of_whole_map(loss, logits, labels)[0].backward()
    assert largest.num_elements >= K * labels.numel()


@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16], ids=str)
def test_upsampled_loss_half_precision_equals_single_precision(dtype):
    logits, labels = draw(dtype=dtype)
    loss = MarginLabelSmoothingLoss(margin=2.0, loss_weight=1e-8)
    with torch.autocast('cpu', dtype=torch.bfloat16):
        value, _ = loss_by_tiles(loss, logits, labels)
    single = logits.detach().float().requires_grad_()
    expected, _ = loss_of_whole_map(loss, single, labels)
    torch.testing.assert_close(value, expected)
    # A loss scale brings small gradients into the range of float16, before they are rounded.
    (gradient,) = torch.autograd.grad(value * 2**27, logits)
    (expected_gradient,) = torch.autograd.grad(expected * 2**27, single)
    assert gradient.dtype == dtype
    torch.testing.assert_close(gradient, expected_gradient.to(dtype), rtol=1e-2, atol=1e-7)


def test_upsampled_loss_without_gradient_has_same_value():
    logits, labels = draw()
    expected, expected_correct = loss_by_tiles(SoftmaxFocalLoss(), logits, labels)
    with torch.no_grad():
        narrow_labels = labels.to(torch.uint8)
        value, correct = loss_by_tiles(SoftmaxFocalLoss(), logits, narrow_labels)
    assert not value.requires_grad
    torch.testing.assert_close((value, correct), (expected.detach(), expected_correct))


def test_upsampled_loss_second_gradient_raises():
    logits, labels = draw()
    value, _ = loss_by_tiles(SoftmaxFocalLoss(), logits, labels)
    with pytest.raises(RuntimeError, match='create_graph'):
        torch.autograd.grad(value, logits, create_graph=True)


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
def test_reason_for_whole_logits_names_the_loss(loss, reason):
    assert reason in reason_for_whole_logits(loss)
