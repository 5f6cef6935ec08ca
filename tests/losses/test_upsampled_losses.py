"""Losses by tiles of upsampled logits equal those of the whole map, which is never in memory."""

import inspect

import pytest
import torch
import torch.nn.functional as F
from test_value_and_gradient import compile_with, fresh_compiler  # noqa: F401
from torch.utils._python_dispatch import TorchDispatchMode

from mmcalib import losses as all_losses
from mmcalib.losses import (
    BatchLoss,
    CalibrationLoss,
    CombinedLoss,
    L1ACELoss,
    LabelSmoothingLoss,
    MarginLabelSmoothingLoss,
    MDCALoss,
    NACLLoss,
    SoftmaxFocalLoss,
)
from mmcalib.losses.base import compiled_kernel
from mmcalib.losses.upsampling import tiles as upsampled_tiles
from mmcalib.losses.upsampling.tile_terms import why_only_whole
from mmcalib.losses.upsampling.tiles import UpsampledTiles
from mmcalib.losses.upsampling.upsampled_losses import upsampled_losses

K, IGNORED = 5, 255


def every_kind():
    """Every loss that there is, as it is by default."""
    for name in all_losses.__all__:
        kind = getattr(all_losses, name)
        if inspect.isclass(kind) and kind not in (CalibrationLoss, BatchLoss, CombinedLoss):
            classes = 'num_classes' in inspect.signature(kind).parameters
            yield kind(num_classes=K) if classes else kind()


WEIGHTS = [1.0, 2.0, 0.5, 3.0, 0.0]
OPTIONS = [
    MarginLabelSmoothingLoss(margin=2.0, class_weight=WEIGHTS, loss_weight=0.4),
    LabelSmoothingLoss(reduction='sum'),
    NACLLoss(kernel_size=5),
    L1ACELoss(binning='soft', num_bins=4),
    L1ACELoss(per_image=False, num_bins=4),
    CombinedLoss([SoftmaxFocalLoss(), CombinedLoss([MDCALoss(loss_weight=2.0), NACLLoss()])]),
]
LOSSES = [*every_kind(), *OPTIONS]
SIZES = [(37, 26), (8, 6), (5, 4), (16, 12)]


def draw(size=(37, 26), dtype=torch.float64, small=(8, 6)):
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(3, K, *small, generator=generator, dtype=torch.float64)
    labels = torch.randint(K, (3, *size), generator=generator)
    labels[:, 2:4] = IGNORED
    labels[0, :, -1] = IGNORED
    return logits.to(dtype).requires_grad_(), labels


def whole(loss, logits, labels, align_corners=False):
    upsampled = F.interpolate(
        logits, labels.shape[1:], mode='bilinear', align_corners=align_corners
    )
    return loss(upsampled, labels, ignore_index=IGNORED)


def by_tiles(losses, logits, labels, align_corners=False):
    call = dict(ignore_index=IGNORED, align_corners=align_corners)
    return upsampled_losses(logits, labels, losses, **call)


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    monkeypatch.setitem(upsampled_tiles.TILE, 'cpu', K * 60)
    monkeypatch.setattr(upsampled_tiles, 'COLUMNS', 7)


@pytest.mark.parametrize('loss', LOSSES, ids=lambda loss: type(loss).__name__)
def test_value_and_gradient_of_every_loss(loss):
    assert why_only_whole(loss) is None
    for number, size in enumerate(SIZES):
        logits, labels = draw(size)
        align_corners = bool(number % 2)
        if number == 3:
            labels.clamp_(max=K - 1)  # none is ignored
        (value,), _ = by_tiles([loss], logits, labels, align_corners)
        (grad,) = torch.autograd.grad(3 * value, logits)
        expected = whole(loss, logits, labels, align_corners)
        (expected_grad,) = torch.autograd.grad(3 * expected, logits)
        torch.testing.assert_close(value, expected, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(grad, expected_grad, rtol=1e-10, atol=1e-12)


@pytest.mark.filterwarnings('ignore:Default ``avg_non_ignore`` is False')
@pytest.mark.parametrize(
    'options',
    [
        {},
        dict(avg_non_ignore=True, loss_weight=0.4),
        dict(class_weight=WEIGHTS),
        dict(reduction='sum', class_weight=WEIGHTS),
    ],
    ids=str,
)
@pytest.mark.parametrize('dtype', [torch.float64, torch.float32], ids=str)
def test_cross_entropy_of_mmseg(options, dtype):
    loss = pytest.importorskip('mmseg.models.losses').CrossEntropyLoss(**options)
    assert why_only_whole(loss) is None
    logits, labels = draw(dtype=dtype)
    for some in (labels, torch.full_like(labels, IGNORED)):
        try:
            expected = whole(loss, logits, some)
        except IndexError:  # of mmseg 1.2.2, for class weights beside ignored pixels
            some = torch.randint(K, labels.shape)
            expected = whole(loss, logits, some)
        (value,), _ = by_tiles([loss], logits, some)
        grads = [torch.autograd.grad(x, logits)[0] for x in (value, expected)]
        tolerance = dict(rtol=1e-10, atol=1e-12) if dtype == torch.float64 else {}
        torch.testing.assert_close(value, expected, **tolerance)
        torch.testing.assert_close(*grads, **tolerance)


def test_several_losses_have_a_gradient_each():
    losses = [LOSSES[0], MDCALoss(), LabelSmoothingLoss()]
    logits, labels = draw()
    values, correct = by_tiles(losses, logits, labels)
    factors = torch.tensor([2.0, 0.0, -0.5])
    (grad,) = torch.autograd.grad((values * factors).sum(), logits)
    total = sum(f * whole(x, logits, labels) for f, x in zip(factors, losses, strict=True))
    torch.testing.assert_close(grad, torch.autograd.grad(total, logits)[0], rtol=1e-10, atol=1e-12)
    upsampled = F.interpolate(logits, labels.shape[1:], mode='bilinear')
    assert correct == (upsampled.argmax(dim=1) == labels).sum() > 0


@pytest.mark.parametrize('limit', [1, K * 37 * 26, 1 << 19])
def test_tiles_cover_every_pixel_once(limit, monkeypatch):
    monkeypatch.setitem(upsampled_tiles.TILE, 'cpu', limit)
    logits, labels = draw()
    for all_images in (False, True):
        tiles = UpsampledTiles(logits, labels.shape[1:], align_corners=True, all_images=all_images)
        seen = torch.zeros_like(labels)
        for tile in tiles:
            seen[tile.pixels] += 1
            if all_images:
                assert len(seen[tile.pixels]) == 3
            else:
                assert K * seen[tile.pixels].numel() <= max(limit, K)
        assert torch.equal(seen, torch.ones_like(seen))


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
    monkeypatch.setitem(upsampled_tiles.TILE, 'cpu', K * 800)
    logits, labels = draw((48, 40), torch.float32)
    losses = [MarginLabelSmoothingLoss(), NACLLoss(), MDCALoss(), OPTIONS[0]]
    with Largest() as largest:
        by_tiles(losses, logits, labels)[0].sum().backward()
    assert 0 < largest.seen < K * labels.numel() / 4
    with Largest() as largest:
        whole(losses[0], logits, labels).backward()
    assert largest.seen >= K * labels.numel()


@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16], ids=str)
def test_half_logits_are_upsampled_in_single_precision(dtype):
    logits, labels = draw(dtype=dtype)
    losses = [MarginLabelSmoothingLoss(margin=2.0), MDCALoss()]
    with torch.autocast('cpu', dtype=torch.bfloat16):
        values, _ = by_tiles(losses, logits, labels)
    assert values.dtype == torch.float32
    single = logits.detach().float().requires_grad_()
    expected = torch.stack([whole(loss, single, labels) for loss in losses])
    torch.testing.assert_close(values, expected)
    # A loss scale brings small gradients into the range of float16, before they are rounded.
    (grad,) = torch.autograd.grad(values.sum() * 1e-8 * 2**27, logits)
    (expected,) = torch.autograd.grad(expected.sum() * 1e-8 * 2**27, single)
    assert grad.dtype == dtype
    torch.testing.assert_close(grad, expected.to(dtype), rtol=1e-2, atol=1e-7)


@pytest.mark.parametrize('loss', [SoftmaxFocalLoss(), MDCALoss()])
def test_the_gradient_of_a_gradient(loss):
    logits, labels = draw((9, 7), small=(3, 2))
    assert torch.autograd.gradgradcheck(
        lambda x: by_tiles([loss], x, labels)[0], logits, fast_mode=True
    )


@pytest.mark.parametrize('without', [torch.no_grad, torch.inference_mode])
def test_values_without_a_gradient(without):
    logits, labels = draw()
    losses = [SoftmaxFocalLoss(), NACLLoss(), MDCALoss()]
    expected, correct = by_tiles(losses, logits, labels)
    with without():
        values, same = by_tiles(losses, logits, labels)
    assert not values.requires_grad
    torch.testing.assert_close(values, expected.detach())
    assert correct == same
    narrow = by_tiles(losses, logits, labels.to(torch.uint8))
    torch.testing.assert_close(narrow, (expected, correct))


def test_compiled(fresh_compiler, monkeypatch):  # noqa: F811
    compile_with('aot_eager', fresh_compiler)
    monkeypatch.setitem(upsampled_tiles.TILE, 'cpu', K * 8 * 7)
    logits, labels = draw((16, 14), torch.float32)
    (value,), _ = by_tiles([NACLLoss(compile=True)], logits, labels)
    expected = whole(NACLLoss(), logits, labels)
    torch.testing.assert_close(value, expected)
    grads = [torch.autograd.grad(x, logits)[0] for x in (value, expected)]
    torch.testing.assert_close(*grads)
    kernel = compiled_kernel.kernel_of(NACLLoss.formula)
    assert kernel._works
    assert len(kernel._versions) == 1


def test_a_label_out_of_range_is_named():
    logits, labels = draw()
    labels[1, 1, 1] = 77
    for loss in (SoftmaxFocalLoss(), NACLLoss(), MDCALoss()):
        with pytest.raises(ValueError, match='outside'):
            by_tiles([loss], logits, labels)


class OwnForward(SoftmaxFocalLoss):
    def forward(self, pred, target, **call):
        return super().forward(pred.flip(1), target, **call)


class OwnSurroundings(SoftmaxFocalLoss):
    def look_around(self, labels, valid, num_classes, dtype):
        return labels.flip(1), {}


@pytest.mark.parametrize(
    ('loss', 'reason'),
    [
        (OwnForward(), 'OwnForward has a forward of its own'),
        (OwnSurroundings(), 'how far it looks around'),
        (SoftmaxFocalLoss(reduction='none'), "reduction='none'"),
        (torch.nn.CrossEntropyLoss(), 'CrossEntropyLoss is neither a loss of mmcalib'),
        (CombinedLoss([MDCALoss(), OwnForward()]), 'OwnForward has'),
    ],
)
def test_which_losses_need_the_whole(loss, reason):
    assert reason in why_only_whole(loss)
