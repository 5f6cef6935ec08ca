"""What holds for every loss: values and gradients of a loop, numerical safety, limits."""

import itertools
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from loss_cases import BATCHES, CASES, CROSS_ENTROPY, IGNORED, ROWS, draw

from mmcalib import losses
from mmcalib.losses import value_and_gradient as engine

every_loss = pytest.mark.parametrize('case', CASES.values(), ids=CASES)
every_row_loss = pytest.mark.parametrize('case', ROWS.values(), ids=ROWS)
close = torch.testing.assert_close


def gradient(value, by, factor=1.0):
    return torch.autograd.grad((factor * value).sum(), by)[0]


def targets_of(case):
    return (False, True) if case.soft else (False,)


def test_every_registered_loss_has_a_case():
    kinds = {type(case.build()) for case in CASES.values()}
    known = {base.__name__ for kind in kinds for base in kind.__mro__} | {'CombinedLoss'}
    assert {name for name in dir(losses) if name.endswith('Loss')} <= known


@every_row_loss
def test_value_and_weights(case):
    kinds = torch.float64, torch.float32, torch.bfloat16, torch.float16
    for shape, dtype, soft in itertools.product(case.shapes, kinds, targets_of(case)):
        logits, target = draw(shape, dtype, ignore=shape[0] > 1, soft=soft)
        weights = [0.5 * k % 3 for k in range(shape[1])]
        row_weight = torch.rand(logits[:, 0].shape, dtype=torch.float64)
        valid = logits[:, 0].numel() if soft else int((target != IGNORED).sum())
        for of_classes, of_rows in ((None, None), (weights, row_weight)):
            rows = case.oracle(logits, target, of_classes)
            rows = rows if of_rows is None else rows * of_rows
            expected = {'none': rows, 'sum': rows.sum(), 'mean': rows.sum() / valid}
            for reduction, wanted in expected.items():
                loss = case.build(class_weight=of_classes, reduction=reduction, loss_weight=0.4)
                value = loss(logits, target, weight=of_rows, ignore_index=IGNORED)
                assert value.dtype == torch.promote_types(dtype, torch.float32)
                digits = 1e-10 if dtype == torch.float64 else 1e-5
                close(value.double(), 0.4 * wanted, rtol=digits, atol=digits)
            close(loss(logits, target, weight=of_rows, ignore_index=IGNORED, avg_factor=7) * 7,
                  loss(logits, target, weight=of_rows, ignore_index=IGNORED) * valid)  # fmt: skip


@pytest.mark.parametrize('case', BATCHES.values(), ids=BATCHES)
def test_value_of_a_batch(case):
    for shape, soft in itertools.product(case.shapes, (False, True)):
        logits, target = draw(shape, ignore=True, soft=soft)
        if len(shape) > 2 and not soft:
            target[1] = IGNORED  # an image without a valid pixel has no part in a mean
        value = case.build(ignore_index=IGNORED, loss_weight=3.0)(logits, target, avg_factor=7)
        assert value.item() == pytest.approx(3 * case.oracle(logits, target), rel=1e-9)
    weight = torch.rand(target.shape[:1] + target.shape[2:], dtype=torch.float64)
    loss = losses.MDCALoss()
    expected = BATCHES['mdca'].oracle(logits, target, weight)
    assert loss(logits, target, weight=weight).item() == pytest.approx(expected)


@every_loss
def test_gradient(case, monkeypatch):
    """Equals finite differences, and in pieces that of plain autograd, with which it goes on."""
    small = ((4, 4), (2, 3, 2, 2))[len(case.shapes[0]) // 4 :]
    for shape, soft in itertools.product(small, targets_of(case)):
        logits, target = draw(shape, scale=2.0, ignore=True, soft=soft)
        own = dict(ignore_index=IGNORED)
        own |= {} if case.batch else dict(class_weight=list(range(1, shape[1] + 1)))
        loss = case.build(**own)
        loss_of = partial(loss, target=target)
        if case is not CASES['acls']:  # of which a part is a constant to the gradient
            assert torch.autograd.gradcheck(loss_of, logits, atol=1e-6)
        if case.batch:
            assert torch.autograd.gradgradcheck(loss_of, logits)
            continue
        rows = case.build(**own, reduction='none')(logits, target)
        valid = rows.numel() if soft else (target != IGNORED).sum()
        for piece in (1, 13, 1 << 19):
            monkeypatch.setitem(engine.PIECE, 'cpu', piece)
            value = loss(logits, target)
            close(value, rows.sum() / valid)
            plain = torch.autograd.grad(3 * rows.sum() / valid, logits, retain_graph=True)[0]
            close(gradient(value, logits, 3), plain)
        slope = torch.autograd.grad(rows.sum(), logits, create_graph=True)[0]
        assert gradient(slope.square(), logits).abs().sum() > 0
        with pytest.raises(RuntimeError, match='create_graph'):
            torch.autograd.grad(loss(logits, target), logits, create_graph=True)


@every_row_loss
def test_gradients_by_the_target_and_the_weight(case):
    logits, target = draw(case.shapes[0], scale=2.0)
    weight = torch.rand(target.shape, dtype=torch.float64, requires_grad=True)
    inputs = [logits, weight]
    if case.soft:
        teacher = torch.randn(logits.shape, dtype=torch.float64, requires_grad=True)
        inputs, target = [*inputs, teacher], teacher.softmax(dim=1)
    values = [case.build(reduction=r)(logits, target, weight=weight) for r in ('sum', 'none')]
    grads = [torch.autograd.grad(value.sum(), inputs, retain_graph=True) for value in values]
    assert all(grad.abs().max() > 0 for grad in grads[0])
    close(*grads)


@every_loss
def test_what_is_ignored_may_hold_anything(case):
    for shape, value in itertools.product(case.shapes[:3], (float('nan'), float('-inf'))):
        logits, target = draw(shape, ignore=True)
        if not case.batch and target.numel() > 2:
            target.view(-1)[1] = 0  # the label that stands in for an ignored one
        loss = case.build(ignore_index=IGNORED)
        expected = loss(logits, target)
        broken = logits.detach().masked_fill((target == IGNORED).unsqueeze(1), value)
        found = loss(broken.requires_grad_(), target)
        close(found, expected)
        close(gradient(found, broken), gradient(expected, logits))
        if not case.batch:
            rows = case.build(ignore_index=IGNORED, reduction='none')(broken, target)
            assert (rows[target == IGNORED] == 0).all()
            close(gradient(rows, broken) / (target != IGNORED).sum().clamp(min=1),
                  gradient(loss(broken, target), broken))  # fmt: skip
            weight = (torch.arange(target.numel()) % 3 > 0).double().view(target.shape)
            broken = broken.detach().masked_fill((weight == 0).unsqueeze(1), value).requires_grad_()
            assert gradient(loss(broken, target, weight=weight), broken).isfinite().all()
        for factor in (None, 2, 0, torch.tensor(0)):
            nothing = loss(broken, torch.full_like(target, IGNORED), avg_factor=factor)
            assert nothing == 0 and (gradient(nothing, broken) == 0).all()
        assert loss(logits[:0], target[:0], avg_factor=0) == 0


@every_loss
def test_huge_logits_and_masked_classes(case):
    huge = [[1e4, -1e4, 0.0], [-1e4, 1e4, 1e4], [1e4, 1e4, 1e4], [0.0, 1e-4, 0.0], [200.0, 0, 0]]
    labels = torch.tensor([0, 0, 2, 1, 0])
    for dtype, soft in itertools.product((torch.float32, torch.float16), targets_of(case)):
        logits = torch.tensor(huge).to(dtype)
        target = F.one_hot(labels, 3).float() if soft else labels
        if case.shapes[0][2:]:
            logits, target = logits.T[None, :, None], target[None, None]
        value = case.build()(logits.requires_grad_(), target)
        assert value.isfinite() and gradient(value, logits).isfinite().all()
    if case.batch:
        return
    for reduction, soft in itertools.product(('none', 'sum'), targets_of(case)):
        logits, target = draw(case.shapes[0], scale=2.0)
        target[target == 2] = 3
        masked = logits.detach().clone()
        masked[:4, 2] = float('-inf')
        if soft:
            target = F.one_hot(target, 5).double().mul(0.8).add(0.05)
            target[:, 2] = 0
        value = case.build(reduction=reduction)(masked.requires_grad_(), target)
        close(value.sum(), case.oracle(masked, target).sum())
        grad = gradient(value, masked)
        assert (grad[:4, 2] == 0).all() and grad.isfinite().all()
        if reduction == 'sum':
            close(grad, gradient(case.build(reduction='none')(masked, target), masked))


@every_loss
def test_half_precision_and_autocast(case):
    for dtype, cast in itertools.product((torch.float16, torch.bfloat16), (False, True)):
        logits, target = draw(case.shapes[0], dtype, ignore=True)
        loss = case.build(ignore_index=IGNORED, loss_weight=1e-9)
        with torch.autocast('cpu', dtype=torch.bfloat16, enabled=cast):
            value = loss(logits, target)
        exact = logits.detach().float().requires_grad_()
        expected = loss(exact, target)
        assert value.dtype == torch.float32
        close(value, expected, rtol=0, atol=0)
        # Small gradients survive until a loss scale multiplies them.
        found = gradient(value, logits, 1e9)
        assert found.dtype == dtype
        close(found.float(), gradient(expected, exact, 1e9), rtol=1e-2, atol=1e-4)


@pytest.mark.parametrize('name', CASES)
def test_limit_and_layout(name):
    case = CASES[name]
    for shape in case.shapes[::2][:2]:
        logits, target = draw(shape)
        loss = case.build()
        if name in CROSS_ENTROPY:
            plain = case.build(**CROSS_ENTROPY[name])(logits, target)
            close(plain, F.cross_entropy(logits, target))
        if len(shape) == 4:
            for other in (
                logits.to(memory_format=torch.channels_last),
                logits.transpose(2, 3).contiguous().transpose(2, 3),
            ):
                assert not other.is_contiguous()
                value = loss(other, target) + loss(other, target)
                close(gradient(value, logits), 2 * gradient(loss(logits, target), logits))
