"""Tests of all losses: values and gradients against loops, numerical safety, limits."""

import functools
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


def soft_or_not(case):
    """Return whether targets are soft, for each kind of target that a loss takes."""
    return (False, True) if case.soft else (False,)


def test_public_losses_have_a_case_each():
    cases = {type(case.build()) for case in CASES.values()}
    tested = {base.__name__ for loss in cases for base in loss.__mro__} | {'CombinedLoss'}
    assert {name for name in dir(losses) if name.endswith('Loss')} <= tested


@every_row_loss
def test_loss_rows_and_weights_equals_loop(case):
    single = [torch.float32, torch.bfloat16, torch.float16]
    for shape, dtype, soft in [
        *itertools.product(case.shapes, [torch.float64], soft_or_not(case)),
        *itertools.product(case.shapes[:1], single, soft_or_not(case)),
    ]:
        logits, target = draw(shape, dtype, ignore=shape[0] > 1, soft=soft)
        num_valid = logits[:, 0].numel() if soft else int((target != IGNORED).sum())
        digits = 1e-10 if dtype == torch.float64 else 1e-5
        row_weight = torch.rand(logits[:, 0].shape, dtype=torch.float64)
        class_weight = [0.5 * k % 3 for k in range(shape[1])]
        for weight, weight_of_classes in ((None, None), (row_weight, class_weight)):
            rows = case.oracle(logits, target, weight_of_classes)
            if weight is not None:
                rows = rows * weight
            reductions = {'none': rows, 'sum': rows.sum(), 'mean': rows.sum() / num_valid}
            for reduction, expected in reductions.items():
                loss = case.build(
                    class_weight=weight_of_classes, reduction=reduction, loss_weight=0.4
                )
                value = loss(logits, target, weight=weight, ignore_index=IGNORED)
                assert value.dtype == torch.promote_types(dtype, torch.float32)
                close(value.double(), 0.4 * expected, rtol=digits, atol=digits)
        mean = loss(logits, target, weight=weight, ignore_index=IGNORED)
        actual = loss(logits, target, weight=weight, ignore_index=IGNORED, avg_factor=7)
        close(actual * 7, mean * num_valid)
        for dtype_of_factor in (torch.float64, torch.float16, torch.int64):
            factor = torch.tensor([7], dtype=dtype_of_factor)
            divided = loss(logits, target, weight=weight, ignore_index=IGNORED, avg_factor=factor)
            close(divided, actual)
            assert gradient(divided, logits).isfinite().all()


@pytest.mark.parametrize('case', BATCHES.values(), ids=BATCHES)
def test_batch_loss_value_equals_loop(case):
    for shape, soft in itertools.product(case.shapes, (False, True)):
        logits, target = draw(shape, ignore=True, soft=soft)
        if len(shape) > 2 and not soft:
            target[1] = IGNORED  # An image without a valid pixel has no part in a mean.
        value = case.build(ignore_index=IGNORED, loss_weight=3.0)(logits, target, avg_factor=7)
        assert value.item() == pytest.approx(3 * case.oracle(logits, target), rel=1e-9)
    weight = torch.rand(target.shape[:1] + target.shape[2:], dtype=torch.float64)
    loss = losses.MDCALoss()
    expected = BATCHES['mdca'].oracle(logits, target, weight)
    assert loss(logits, target, weight=weight).item() == pytest.approx(expected)


@every_loss
def test_gradient_whole_or_in_pieces_equals_finite_differences_and_autograd(case, monkeypatch):
    small_shapes = [(2, 3, 2, 2)]
    if len(case.shapes[0]) < 4:
        small_shapes.insert(0, (4, 4))
    for shape, soft in itertools.product(small_shapes, soft_or_not(case)):
        logits, target = draw(shape, scale=2.0, ignore=True, soft=soft)
        options = dict(ignore_index=IGNORED)
        if not case.batch:
            options['class_weight'] = list(range(1, shape[1] + 1))
        loss = case.build(**options)
        loss_of_logits = partial(loss, target=target)
        if case is not CASES['acls']:  # A part of ACLS is a constant to the gradient.
            assert torch.autograd.gradcheck(loss_of_logits, logits, atol=1e-6)
        if case.batch:
            assert torch.autograd.gradgradcheck(loss_of_logits, logits)
            continue
        rows = case.build(**options, reduction='none')(logits, target)
        num_valid = rows.numel() if soft else (target != IGNORED).sum()
        for piece in (1, 13, 1 << 19):
            monkeypatch.setitem(engine.PIECE, 'cpu', piece)
            value = loss(logits, target)
            close(value, rows.sum() / num_valid)
            expected = torch.autograd.grad(3 * rows.sum() / num_valid, logits, retain_graph=True)
            close(gradient(value, logits, 3), expected[0])
        slope = torch.autograd.grad(rows.sum(), logits, create_graph=True)[0]
        assert gradient(slope.square(), logits).abs().sum() > 0
        with pytest.raises(RuntimeError, match='create_graph'):
            torch.autograd.grad(loss(logits, target), logits, create_graph=True)


def small_draws(case):
    """Yield logits without a gradient, a target and a loss, for each kind of target."""
    for soft in soft_or_not(case):
        logits, target = draw(case.shapes[0], ignore=True, soft=soft)
        options = dict(ignore_index=IGNORED)
        if not case.batch:
            options['class_weight'] = list(range(1, logits.shape[1] + 1))
        yield logits.detach(), target, case.build(**options)


@every_loss
def test_gradient_by_function_transforms_equals_autograd(case):
    for logits, target, loss in small_draws(case):
        differentiable = logits.clone().requires_grad_()
        value = loss(differentiable, target)
        expected = gradient(value, differentiable)
        loss_of_logits = partial(loss, target=target)
        close(torch.func.grad(loss)(logits, target), expected)
        actual_value, vector_product = torch.func.vjp(loss_of_logits, logits)
        close(actual_value, value.detach())
        close(vector_product(torch.ones_like(value))[0], expected)
        close(torch.func.jacfwd(loss_of_logits)(logits), expected)
        jacobian = torch.autograd.functional.jacobian
        close(jacobian(loss_of_logits, logits, vectorize=True), expected)
        factors = torch.tensor([1.0, -2.0, 0.0], dtype=value.dtype)
        value = loss(differentiable, target)
        (actual,) = torch.autograd.grad(value, differentiable, factors, is_grads_batched=True)
        close(actual, factors.view(-1, *[1] * logits.ndim) * expected)


@every_loss
def test_gradient_of_retained_graph_same_after_first_one_is_changed_in_place(case):
    logits, target = draw(case.shapes[0], ignore=True)
    value = case.build(ignore_index=IGNORED)(logits, target)
    for factors in (value.new_tensor(1.0), value.new_ones(2)):
        options = dict(is_grads_batched=factors.ndim == 1, retain_graph=True)
        first, second, third = (
            torch.autograd.grad(value, logits, factors, **options)[0].mul_(factor)
            for factor in (1.0, 2.0, 1.0)
        )
        close(second, 2 * first)
        close(third, first)


@every_loss
def test_gradient_of_each_sample_by_vmap_equals_loop(case):
    for logits, target, loss in small_draws(case):

        def loss_of_sample(logits, target, loss=loss):
            return loss(logits[None], target[None])

        actual = torch.func.vmap(torch.func.grad(loss_of_sample))(logits, target)
        for sample, sample_target, sample_actual in zip(logits, target, actual, strict=True):
            sample = sample.clone().requires_grad_()
            close(sample_actual, gradient(loss_of_sample(sample, sample_target), sample))


REGISTERED = [
    name for name, case in ROWS.items() if case.build().formula in engine._gradient_functions
]


def test_registered_gradients_include_those_of_the_paper():
    assert {'mbls', 'mbls m=0, sum', 'ls', 'fl', 'flsd', 'inverse focal'} <= {*REGISTERED}


@pytest.mark.parametrize('name', REGISTERED)
@pytest.mark.parametrize('kind', ['usual', 'equal', 'some equal', 'huge', 'masked', 'broken'])
@pytest.mark.parametrize('shape', [(12, 5), (3, 5, 4, 2)])
def test_registered_gradient_equals_that_of_plain_formula(name, kind, shape):
    """Ties share the slope of the highest logit; masked and broken rows are left to autograd."""
    logits, target = draw(shape, scale=6.0, ignore=True)
    weight = torch.rand(target.shape, dtype=torch.float64)
    logits = logits.detach()
    if kind == 'equal':
        logits.fill_(2.0)
    elif kind == 'some equal':
        logits = logits.round(decimals=-1)
    elif kind == 'huge':
        logits *= 1e3
    elif kind == 'masked':
        target[target == 2] = 3
        logits[:, 2] = float('-inf')
    elif kind == 'broken':
        logits = logits.masked_fill((target == IGNORED).unsqueeze(1), float('nan'))
    logits.requires_grad_()
    options = dict(class_weight=[0.5, 1, 0, 2, 3], ignore_index=IGNORED)
    value = ROWS[name].build(**options, reduction='sum')(logits, target, weight=weight)
    rows = ROWS[name].build(**options, reduction='none')(logits, target, weight=weight)
    close(value, rows.sum(), rtol=1e-12, atol=1e-12)
    close(gradient(value, logits), gradient(rows, logits), rtol=1e-12, atol=1e-12)


def test_formula_that_wraps_a_registered_one_has_its_own_gradient():
    @functools.wraps(losses.margin_label_smoothing)
    def doubled(*args, **options):
        return 2 * losses.margin_label_smoothing(*args, **options)

    class DoubledLoss(losses.MarginLabelSmoothingLoss):
        formula = staticmethod(doubled)

    logits, target = draw((6, 5))
    expected = 2 * gradient(losses.MarginLabelSmoothingLoss()(logits, target), logits)
    close(gradient(DoubledLoss()(logits, target), logits), expected)


@every_row_loss
def test_gradient_by_target_and_weight_same_for_sum_and_rows(case):
    logits, target = draw(case.shapes[0], scale=2.0)
    weight = torch.rand(target.shape, dtype=torch.float64, requires_grad=True)
    inputs = [logits, weight]
    if case.soft:
        teacher_logits = torch.randn(logits.shape, dtype=torch.float64, requires_grad=True)
        inputs.append(teacher_logits)
        target = teacher_logits.softmax(dim=1)
    total = case.build(reduction='sum')(logits, target, weight=weight)
    actual = torch.autograd.grad(total, inputs, retain_graph=True)
    rows = case.build(reduction='none')(logits, target, weight=weight)
    expected = torch.autograd.grad(rows.sum(), inputs)
    assert all(grad.abs().max() > 0 for grad in actual)
    close(actual, expected)


@every_loss
def test_loss_broken_ignored_logits_change_nothing(case):
    for shape, fill in itertools.product(case.shapes[:3], (float('nan'), float('-inf'))):
        logits, target = draw(shape, ignore=True)
        if not case.batch and target.numel() > 2:
            target.view(-1)[1] = 0  # This label stands in for an ignored one.
        loss = case.build(ignore_index=IGNORED)
        expected = loss(logits, target)
        broken = logits.detach().masked_fill((target == IGNORED).unsqueeze(1), fill)
        actual = loss(broken.requires_grad_(), target)
        close(actual, expected)
        close(gradient(actual, broken), gradient(expected, logits))
        if not case.batch:
            rows = case.build(ignore_index=IGNORED, reduction='none')(broken, target)
            assert (rows[target == IGNORED] == 0).all()
            num_valid = (target != IGNORED).sum().clamp(min=1)
            mean = loss(broken, target)
            close(gradient(rows, broken) / num_valid, gradient(mean, broken))
            weight = (torch.arange(target.numel()) % 3 > 0).double().view(target.shape)
            broken = broken.detach().masked_fill((weight == 0).unsqueeze(1), fill).requires_grad_()
            assert gradient(loss(broken, target, weight=weight), broken).isfinite().all()
        all_ignored = torch.full_like(target, IGNORED)
        for avg_factor in (None, 2, 0, torch.tensor(0)):
            value = loss(broken, all_ignored, avg_factor=avg_factor)
            assert value == 0
            assert (gradient(value, broken) == 0).all()
        assert loss(logits[:0], target[:0], avg_factor=0) == 0


@every_loss
def test_loss_huge_logits_and_masked_classes_is_finite(case):
    huge = [[1e4, -1e4, 0.0], [-1e4, 1e4, 1e4], [1e4, 1e4, 1e4], [0.0, 1e-4, 0.0], [200.0, 0, 0]]
    labels = torch.tensor([0, 0, 2, 1, 0])
    for dtype, soft in itertools.product((torch.float32, torch.float16), soft_or_not(case)):
        logits = torch.tensor(huge).to(dtype)
        target = F.one_hot(labels, 3).float() if soft else labels
        if case.shapes[0][2:]:
            logits = logits.T[None, :, None]
            target = target[None, None]
        value = case.build()(logits.requires_grad_(), target)
        assert value.isfinite() and gradient(value, logits).isfinite().all()
    if case.batch:
        return
    for reduction, soft in itertools.product(('none', 'sum'), soft_or_not(case)):
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
def test_loss_half_precision_and_autocast_equals_single_precision(case):
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
        scaled_gradient = gradient(value, logits, 1e9)
        assert scaled_gradient.dtype == dtype
        close(scaled_gradient.float(), gradient(expected, exact, 1e9), rtol=1e-2, atol=1e-4)


@pytest.mark.parametrize('name', CROSS_ENTROPY)
def test_loss_without_its_penalty_equals_cross_entropy(name):
    case = CASES[name]
    for shape in case.shapes[::2][:2]:
        logits, target = draw(shape)
        actual = case.build(**CROSS_ENTROPY[name])(logits, target)
        close(actual, F.cross_entropy(logits, target))


@pytest.mark.parametrize('name', CASES)
def test_gradient_other_memory_layout_same(name):
    case = CASES[name]
    for shape in case.shapes[::2][:2]:
        if len(shape) < 4:
            continue
        logits, target = draw(shape)
        loss = case.build()
        for same_logits in (
            logits.to(memory_format=torch.channels_last),
            logits.transpose(2, 3).contiguous().transpose(2, 3),
        ):
            assert not same_logits.is_contiguous()
            value = loss(same_logits, target) + loss(same_logits, target)
            close(gradient(value, logits), 2 * gradient(loss(logits, target), logits))
