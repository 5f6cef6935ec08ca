"""Losses of a whole batch: their definitions in loops, gradients, refusals, and ranks."""

import pytest
import references
import torch
from forked import on_ranks

from mmcalib.losses import L1ACELoss, MDCALoss
from mmcalib.losses.upsampling.upsampled_losses import upsampled_losses

IGNORED = 255


def draw(shape, ignore=True, dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(shape, generator=generator, dtype=torch.float64)
    target = torch.randint(shape[1], (shape[0], *shape[2:]), generator=generator)
    if ignore:
        target.view(-1)[::4] = IGNORED
    return logits.to(dtype).requires_grad_(), target


def rows_of(logits, target, weight=None):
    """Valid rows of logits, their targets and weights, as lists."""
    num_classes = logits.shape[1]
    flat = logits.detach().double().movedim(1, -1).reshape(-1, num_classes).tolist()
    soft = target.is_floating_point()
    labels = target.movedim(1, -1).reshape(-1, num_classes) if soft else target.flatten()
    weights = [1.0] * len(flat) if weight is None else weight.flatten().tolist()
    kept = [
        (row, label, w)
        for row, label, w in zip(flat, labels.tolist(), weights, strict=True)
        if label != IGNORED
    ]
    return map(list, zip(*kept, strict=True))


def soft(shape):
    return torch.softmax(torch.randn(shape, dtype=torch.float64), dim=1)


class TestMDCA:
    @pytest.mark.parametrize('shape', [(7, 5), (2, 4, 3, 5)])
    @pytest.mark.parametrize('kind', ['labels', 'weighted', 'soft'])
    def test_value_equals_a_plain_loop(self, shape, kind):
        logits, target = draw(shape)
        target = soft(shape) if kind == 'soft' else target
        rows = (shape[0], *shape[2:])
        weight = torch.rand(rows, dtype=torch.float64) if kind == 'weighted' else None
        value = MDCALoss(ignore_index=IGNORED, loss_weight=3.0)(
            logits, target, weight=weight, avg_factor=7
        )
        expected = references.mdca(*rows_of(logits, target, weight))
        assert value.item() == pytest.approx(3 * expected, rel=1e-12)


class TestL1ACE:
    @staticmethod
    def loop(logits, target, binning):
        rows, targets, _ = rows_of(logits, target)
        return references.l1_ace(rows, targets, 6, soft_bins=binning == 'soft')

    @pytest.mark.parametrize('binning', ['hard', 'soft'])
    @pytest.mark.parametrize('kind', ['labels', 'soft'])
    def test_value_equals_a_plain_loop(self, binning, kind):
        logits, target = draw((3, 4, 5, 6))
        target[2] = IGNORED  # an image without a valid pixel has no part in the mean
        target = soft(logits.shape) if kind == 'soft' else target
        loss = L1ACELoss(num_bins=6, binning=binning, ignore_index=IGNORED)
        images = range(3 if kind == 'soft' else 2)
        expected = [
            references.l1_ace(
                *list(rows_of(logits[i : i + 1], target[i : i + 1]))[:2], 6, binning == 'soft'
            )
            for i in images
        ]
        assert loss(logits, target).item() == pytest.approx(sum(expected) / len(expected))

        loss = L1ACELoss(num_bins=6, binning=binning, ignore_index=IGNORED, per_image=False)
        assert loss(logits, target).item() == pytest.approx(self.loop(logits, target, binning))

    def test_rows_of_a_classifier_are_one_batch(self):
        logits, target = draw((9, 4))
        values = [
            L1ACELoss(per_image=per_image, ignore_index=IGNORED)(logits, target)
            for per_image in (True, False)
        ]
        assert values[0] == values[1]

    def test_a_certain_and_right_network_has_no_error(self):
        target = torch.tensor([0, 1, 2])
        logits = 200 * torch.eye(3)
        assert L1ACELoss()(logits, target).item() == 0
        # Of a wrong one the bins 0 and 1 of each class are wrong by 1/2 and 1.
        assert L1ACELoss()(logits, (target + 1) % 3).item() == pytest.approx(0.75)


LOSSES = {
    'mdca': MDCALoss,
    'l1_ace': L1ACELoss,
    'l1_ace, soft': lambda **o: L1ACELoss(binning='soft', num_bins=5, **o),
}
every_loss = pytest.mark.parametrize('name', LOSSES)


@every_loss
@pytest.mark.parametrize('shape', [(7, 4), (2, 3, 3, 2)])
def test_gradient_and_its_gradient(name, shape):
    logits, target = draw(shape)
    loss = LOSSES[name](ignore_index=IGNORED)
    assert torch.autograd.gradcheck(lambda x: loss(x, target), logits)
    assert torch.autograd.gradgradcheck(lambda x: loss(x, target), logits)


@every_loss
@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
def test_half_precision(name, dtype):
    logits, target = draw((2, 4, 3, 5), dtype=dtype)
    with torch.autocast('cpu', dtype=dtype):
        value = LOSSES[name](ignore_index=IGNORED)(logits, target)
    assert value.dtype == torch.float32
    torch.testing.assert_close(
        value.double(), LOSSES[name](ignore_index=IGNORED)(logits.double(), target)
    )
    value.backward()
    assert logits.grad.dtype == dtype and logits.grad.isfinite().all()


@every_loss
@pytest.mark.parametrize('shape', [(0, 3), (0, 3, 4, 4)])
def test_an_empty_batch(name, shape):
    logits, target = draw(shape)
    value = LOSSES[name]()(logits, target)
    value.backward()
    assert value == 0 and logits.grad.shape == shape


@every_loss
@pytest.mark.parametrize('logit', [float('nan'), float('inf')])
def test_a_diverged_model_has_a_loss_of_nan(name, logit):
    logits, target = draw((2, 3, 2, 2))
    logits.detach()[0, 1, 0, 0] = logit
    value = LOSSES[name]()(logits, target.clamp(max=2))
    value.backward()
    assert value.isnan()


@every_loss
@pytest.mark.parametrize('logit', [float('nan'), float('inf'), float('-inf')])
@pytest.mark.parametrize('shape', [(5, 3), (2, 3, 4, 4)])
def test_an_ignored_row_may_hold_anything(name, logit, shape):
    logits, target = draw(shape)
    loss = LOSSES[name](ignore_index=IGNORED)
    expected = loss(logits, target)
    (slope,) = torch.autograd.grad(expected, logits, create_graph=True)
    (curve,) = torch.autograd.grad(slope.square().sum(), logits)
    rows = (target == IGNORED).unsqueeze(1)
    broken = logits.detach().masked_fill(rows, logit).requires_grad_()
    value = loss(broken, target)
    (grad,) = torch.autograd.grad(value, broken, create_graph=True)
    (second,) = torch.autograd.grad(grad.square().sum(), broken)
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(grad, slope)
    torch.testing.assert_close(second, curve)


@every_loss
def test_an_ignored_row_may_hold_anything_by_tiles(name):
    logits, target = draw((2, 3, 4, 4))
    broken = logits.detach().masked_fill((target == IGNORED).unsqueeze(1), float('nan'))
    broken.requires_grad_()
    loss, call = [LOSSES[name]()], dict(ignore_index=IGNORED, align_corners=False)
    values = [upsampled_losses(each, target, loss, **call)[0].sum() for each in (logits, broken)]
    torch.testing.assert_close(*values)
    grads = [torch.autograd.grad(v, x)[0] for v, x in zip(values, (logits, broken), strict=True)]
    torch.testing.assert_close(*grads)


@every_loss
@pytest.mark.parametrize('shape', [(4, 3), (2, 3, 4, 4)])
def test_everything_ignored(name, shape):
    logits = torch.randn(shape, requires_grad=True)
    target = torch.full((shape[0], *shape[2:]), IGNORED)
    value = LOSSES[name](ignore_index=IGNORED)(logits, target)
    value.backward()
    assert value.item() == 0 and (logits.grad == 0).all()


@every_loss
def test_huge_logits_and_a_masked_class(name):
    logits = torch.tensor([[1e4, -1e4, 0.0], [0.0, float('-inf'), 1.0]], requires_grad=True)
    value = LOSSES[name]()(logits, torch.tensor([1, 0]))
    value.backward()
    assert value.isfinite() and logits.grad.isfinite().all()


@every_loss
def test_inside_a_compiled_model(name):
    torch.compiler.reset()
    logits, target = draw((2, 4, 3, 5), dtype=torch.float32)
    loss = LOSSES[name](ignore_index=IGNORED)
    compiled = torch.compile(loss, backend='aot_eager', fullgraph=True)
    torch.testing.assert_close(compiled(logits, target), loss(logits, target))


@every_loss
def test_what_makes_no_sense_is_refused(name):
    for reduction in ('none', 'sum'):
        with pytest.raises(ValueError, match=f"one number for all rows .* got '{reduction}'"):
            LOSSES[name](reduction=reduction)
        with pytest.raises(ValueError, match=f"got '{reduction}'"):
            LOSSES[name]()(*draw((4, 3), ignore=False), reduction_override=reduction)
    with pytest.raises(ValueError, match='has no class_weight'):
        LOSSES[name](class_weight=[1, 2])
    with pytest.raises(ValueError, match='has no compile'):
        LOSSES[name](compile=True)
    with pytest.raises(TypeError, match="share_statistics must be True or False, got 'yes'"):
        LOSSES[name](share_statistics='yes')
    with pytest.raises(ValueError, match='1 labels outside'):
        LOSSES[name]()(torch.zeros(2, 3), torch.tensor([0, 3]))


def test_bad_options_of_l1_ace_are_refused():
    with pytest.raises(ValueError, match='num_bins must be'):
        L1ACELoss(num_bins=0)
    with pytest.raises(ValueError, match=r"binning must be .* got 'kernel'"):
        L1ACELoss(binning='kernel')
    with pytest.raises(ValueError, match='set per_image=False'):
        L1ACELoss(share_statistics=True)


SHARED = {
    'mdca': (MDCALoss, {}),
    'l1_ace': (L1ACELoss, dict(per_image=False)),
}


def _share(rank, folder):
    logits, target = draw((5, 4, 3, 2))
    part = slice(0, 3) if rank == 0 else slice(3, 5)
    for name, (loss, options) in SHARED.items():
        mine = logits[part].detach().requires_grad_()
        value = loss(ignore_index=IGNORED, share_statistics=True, **options)(mine, target[part])
        value.backward()
        alone = loss(ignore_index=IGNORED, **options)(mine, target[part])
        torch.save((value, mine.grad, alone), f'{folder}/{name}{rank}.pth')
        by_tiles, _ = upsampled_losses(  # of the same size, that is as they are
            mine,
            target[part],
            [loss(share_statistics=True, **options)],
            ignore_index=IGNORED,
            align_corners=False,
        )
        torch.testing.assert_close(by_tiles[0], value)
        torch.testing.assert_close(torch.autograd.grad(by_tiles, mine)[0], mine.grad)


def test_two_ranks_share_their_statistics(tmp_path):
    on_ranks(_share, 2, str(tmp_path))
    logits, target = draw((5, 4, 3, 2))
    for name, (loss, options) in SHARED.items():
        expected = loss(ignore_index=IGNORED, **options)(logits, target)
        (gradient,) = torch.autograd.grad(expected, logits)
        ranks = [torch.load(tmp_path / f'{name}{rank}.pth') for rank in range(2)]
        for value, _, alone in ranks:
            torch.testing.assert_close(value, expected)
            assert (alone - expected).abs() > 1e-6
        # Data-parallel training takes the mean of the gradients over the ranks.
        torch.testing.assert_close(torch.cat([grad for _, grad, _ in ranks]) / 2, gradient)
