"""The fused value and gradient equal plain autograd, eager in pieces and compiled."""

import warnings

import pytest
import torch
from test_all_losses import IGNORED, LOSSES, build, draw, pairwise, takes_soft

from mmcalib import losses
from mmcalib.losses import margin_label_smoothing
from mmcalib.losses.base import compiled_kernel
from mmcalib.losses.base import value_and_gradient as module
from mmcalib.losses.base.call_checks import split_ignored


def plain(name, logits, target, **options):
    """The value and gradient of a mean by plain autograd over the rows."""
    rows = build(name, reduction='none', **options)(logits, target, ignore_index=IGNORED)
    valid = rows.numel() if target.is_floating_point() else (target != IGNORED).sum()
    value = rows.sum() / valid
    return value, torch.autograd.grad(value, logits)[0]


def compile_with(backend, monkeypatch):
    def compile_(function, *, options):
        return inductor(function, backend=backend)

    inductor = torch.compile
    monkeypatch.setattr(torch, 'compile', compile_)


@pytest.fixture
def fresh_compiler(monkeypatch):
    """Compile with a backend that needs no C++ compiler, and forget other tests' kernels."""
    torch.compiler.reset()
    compiled_kernel.kernel_of.cache_clear()
    yield monkeypatch
    compiled_kernel.kernel_of.cache_clear()


@pytest.mark.parametrize(
    ('name', 'piece', 'shape_and_soft'),
    pairwise(
        [1, 13, 45, 1 << 19],
        [
            ((7, 5), False),
            ((3, 4, 5, 3), True),
            ((2, 6, 9), False),
            ((7, 5), True),
            ((2, 6, 9), True),
        ],
    ),
)
def test_pieces(name, piece, shape_and_soft, monkeypatch):
    shape, soft = shape_and_soft
    monkeypatch.setitem(module.PIECE, 'cpu', piece)
    logits, target = draw(shape, ignore=True)
    if soft and takes_soft(name):
        target = torch.softmax(torch.randn(shape, dtype=torch.float64), dim=1)
    for weights in (None, list(range(1, shape[1] + 1))):
        value = build(name, class_weight=weights)(logits, target, ignore_index=IGNORED)
        (grad,) = torch.autograd.grad(3 * value, logits)
        expected, expected_grad = plain(name, logits, target, class_weight=weights)
        torch.testing.assert_close(value, expected)
        torch.testing.assert_close(grad, 3 * expected_grad)


def test_the_largest_probability_has_no_class_ranked_above():
    logits = torch.tensor([[3.0, 1.0, 1.0], [1.0, 3.0, 2.0]], requires_grad=True)
    loss = losses.DualFocalLoss(gamma=1.0)
    rows = loss(logits, torch.zeros(2, dtype=torch.int64), reduction_override='none')
    expected = torch.autograd.grad(rows.sum(), logits)[0]
    total = loss(logits, torch.zeros(2, dtype=torch.int64), reduction_override='sum')
    gradient = torch.autograd.grad(total, logits)[0]
    # Two classes rank next below: which of them has the gradient is not defined.
    torch.testing.assert_close(gradient[1], expected[1])
    torch.testing.assert_close(gradient[0, 0], expected[0, 0])
    torch.testing.assert_close(gradient[0, 1:].sum(), expected[0, 1:].sum())


def test_finite_logits_of_a_cpu_need_no_autograd(monkeypatch):
    by_hand = [name for name, (loss, *_) in LOSSES.items() if loss.by_hand]
    assert len(by_hand) >= 2
    monkeypatch.setattr(module, '_by_autograd', None)
    logits, target = draw((6, 5))
    for name in by_hand:
        assert build(name)(logits, target).isfinite()


def equals_plain_autograd(loss, name, shape, soft):
    logits, target = draw(shape, ignore=True)
    if soft and takes_soft(name):
        target = torch.softmax(torch.randn(shape, dtype=torch.float64), dim=1)
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        value = loss(logits, target, ignore_index=IGNORED)
    (grad,) = torch.autograd.grad(value, logits)
    expected, expected_grad = plain(name, logits, target, class_weight=CLASS_WEIGHT)
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(grad, expected_grad)


CLASS_WEIGHT = [1.0, 2.0, 0.5, 3.0]
ROWS, PIXELS = (6, 4), (2, 4, 3, 3)
COMPILED = {name: loss for name, (loss, *_) in LOSSES.items()}
# A kernel takes half a second to trace, so all losses together try every combination.
COMBINATIONS = [(ROWS, False), (PIXELS, True), (PIXELS, False), (ROWS, True)]
CASES = [(name, *COMBINATIONS[i % 4]) for i, name in enumerate(COMPILED)]


@pytest.mark.parametrize(('name', 'shape', 'soft'), CASES, ids=str)
def test_compiled(name, shape, soft, fresh_compiler):
    compile_with('aot_eager', fresh_compiler)
    loss = build(name, compile=True, class_weight=CLASS_WEIGHT)
    equals_plain_autograd(loss, name, shape, soft)


@pytest.mark.parametrize('name', {loss: name for name, loss in COMPILED.items()}.values())
def test_compiled_for_more_than_one_shape(name, fresh_compiler):
    compile_with('eager', fresh_compiler)  # tracing only, since dynamic shapes take long
    loss = build(name, compile=True, class_weight=CLASS_WEIGHT)
    for shape, soft in ((ROWS, True), (PIXELS, False)):
        equals_plain_autograd(loss, name, shape, soft)


@pytest.mark.parametrize(
    ('name', 'dtype'),
    [('mbls', torch.float32), ('flsd', torch.float16), ('mbls', torch.bfloat16)],
    ids=str,
)
def test_compiled_by_the_real_compiler(name, dtype, fresh_compiler):
    logits, target = draw((2, 5, 4, 4), dtype, ignore=True)
    value = build(name, compile=True)(logits, target, ignore_index=IGNORED)
    (grad,) = torch.autograd.grad(value, logits)
    expected, expected_grad = plain(name, logits, target)
    torch.testing.assert_close(value, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(grad, expected_grad)


@pytest.fixture
def graphs(fresh_compiler):
    """Every graph that is compiled, and how often each has run."""
    compiled = []

    def backend(graph, inputs):
        runs = []
        compiled.append(runs)

        def run(*arguments):
            runs.append(1)
            return graph.forward(*arguments)

        return run

    compile_with(backend, fresh_compiler)
    return compiled


def test_a_schedule_is_compiled_three_times(graphs):
    loss = build('mbls', compile=True)
    logits, target = draw((6, 5))
    values = []
    for margin in (10.0, 6.0, 4.0, 2.0, 1.0):
        loss.set_parameters(margin=margin)
        values.append(loss(logits, target).item())
    assert [len(runs) for runs in graphs] == [1, 1, 3]
    assert values == sorted(set(values))


def test_switches_stay_switches_in_a_schedule(graphs):
    loss = build('bsce, norm 1', compile=True)
    logits, target = draw((6, 5))
    for gamma in (1.0, 2.0, 3.0, 4.0):
        loss.set_parameters(gamma=gamma)
        value = loss(logits, target)
        rows = build('bsce, norm 1', reduction='none')
        rows.set_parameters(gamma=gamma)
        torch.testing.assert_close(value, rows(logits, target).mean())
    assert [len(runs) for runs in graphs] == [1, 1, 2]


def test_batches_with_and_without_ignored_rows_share_a_kernel(graphs):
    loss = build('mbls', compile=True)
    for ignore in (False, True, False):
        logits, target = draw((2, 5, 4, 4), torch.float32, ignore=ignore)
        value = loss(logits, target, ignore_index=IGNORED)
        expected = build('mbls')(logits, target, ignore_index=IGNORED)
        torch.testing.assert_close(value, expected)
    assert [len(runs) for runs in graphs] == [3]


@pytest.mark.parametrize('ignore_index', [-100, 0, IGNORED])
def test_labels_that_are_all_valid_count_as_those_that_were_looked_at(ignore_index):
    target = torch.tensor([[3, 1], [4, 1]], dtype=torch.int32)
    labels, valid = split_ignored(target, 5, ignore_index)
    assert valid is None and labels.dtype == torch.int64 and torch.equal(labels, target.long())
    labels, valid = split_ignored(target, 5, 1)
    assert valid.tolist() == [[True, False], [True, False]]
    logits = torch.randn(2, 5, 2)
    values = [build('mbls')(logits, target, weight=weight) for weight in (None, torch.ones(2, 2))]
    assert values[0] == values[1]


def test_two_heads_with_a_schedule_stay_below_the_limit_of_recompilations(graphs):
    # The limit is 8; above it torch goes on eagerly, as does everything else that has compiled
    # the same code, so other losses come first.
    for name in ('ls', 'fl', 'ecp', 'flsd'):
        build(name, compile=True)(*draw((6, 5)))
    heads = [build('mbls', compile=True), build('mbls', compile=True, loss_weight=0.4)]
    for epoch in range(4):
        for step in range(2):
            samples = 2 if step else 3  # the last batch is smaller
            for shift, head in enumerate(heads):
                head.set_parameters(margin=10.0 - epoch - shift)
                shape = (samples, 5, 4 + epoch, 4)
                head(*draw(shape, torch.float32, ignore=step > 0), ignore_index=IGNORED)
    mbls = graphs[4:]
    assert len(mbls) < 3 * 8
    assert sum(map(len, mbls)) == 4 * 2 * 2, 'some steps ran eagerly'


def test_without_a_compiler_there_is_one_warning_for_each_formula(fresh_compiler):
    def broken(function, *, options):
        raise RuntimeError('no compiler here')

    fresh_compiler.setattr(torch, 'compile', broken)
    logits, target = draw((6, 5))
    for name in ('mbls', 'ls'):
        loss, expected = build(name, compile=True), build(name)(logits, target)
        with pytest.warns(UserWarning, match='runs? eagerly: RuntimeError: no compiler here'):
            torch.testing.assert_close(loss(logits, target), expected)
        with warnings.catch_warnings():
            warnings.simplefilter('error')
            torch.testing.assert_close(loss(logits, target), expected)


def test_the_error_of_a_formula_is_not_laid_on_the_compiler(fresh_compiler):
    def raising(logits, target):
        raise KeyError('a mistake in the formula')

    compile_with('aot_eager', fresh_compiler)
    logits, target = draw((6, 5))
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        with pytest.raises(KeyError, match='a mistake in the formula'):
            module.weighted_sum(raising, logits, target, torch.tensor(1.0), {}, compile=True)
        build('mbls', compile=True)(logits, target)
    assert compiled_kernel.kernel_of(margin_label_smoothing)._works


@pytest.mark.parametrize('compile', [False, True])
def test_small_gradients_survive_loss_scaling(compile, fresh_compiler):
    compile_with('aot_eager', fresh_compiler)
    logits, target = draw((4, 5), torch.float16)
    (expected,) = torch.autograd.grad(build('mbls')(logits, target), logits)
    loss = build('mbls', compile=compile, loss_weight=1e-9)
    (grad,) = torch.autograd.grad(loss(logits, target) * 1e9, logits)
    assert grad.dtype == torch.float16
    torch.testing.assert_close(grad, expected)


def test_no_gradient_is_computed_where_none_is_wanted(monkeypatch):
    monkeypatch.setattr(module, '_eager', None)
    logits, target = draw((4, 5))
    with torch.no_grad():
        assert build('mbls')(logits, target).isfinite()
