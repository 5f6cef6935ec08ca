"""The fused value and gradient equal plain autograd, eager in pieces and compiled."""

import warnings

import pytest
import torch
from test_all_losses import IGNORED, build, draw, every_loss

from mmcalib.losses import value_and_gradient as module


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
    module._kernel.cache_clear()
    monkeypatch.setattr(module, '_seen_numbers', {})
    monkeypatch.setattr(module, '_compiler_works', True)
    yield monkeypatch
    module._kernel.cache_clear()


@every_loss
@pytest.mark.parametrize('shape', [(7, 5), (3, 4, 5, 3), (2, 6, 9)])
@pytest.mark.parametrize('soft', [False, True])
@pytest.mark.parametrize('piece', [1, 13, 45, 1 << 19])
def test_pieces(name, shape, soft, piece, monkeypatch):
    monkeypatch.setitem(module.PIECE, 'cpu', piece)
    logits, target = draw(shape, ignore=True)
    if soft:
        target = torch.softmax(torch.randn(shape, dtype=torch.float64), dim=1)
    weights = list(range(1, shape[1] + 1))
    value = build(name, class_weight=weights)(logits, target, ignore_index=IGNORED)
    (grad,) = torch.autograd.grad(3 * value, logits)
    expected, expected_grad = plain(name, logits, target, class_weight=weights)
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(grad, 3 * expected_grad)


@every_loss
@pytest.mark.parametrize('soft', [False, True])
def test_compiled(name, soft, fresh_compiler):
    compile_with('aot_eager', fresh_compiler)
    loss = build(name, compile=True, class_weight=[1.0, 2.0, 0.5, 3.0])
    for shape in ((6, 4), (2, 4, 3, 3)):
        logits, target = draw(shape, ignore=True)
        if soft:
            target = torch.softmax(torch.randn(shape, dtype=torch.float64), dim=1)
        with warnings.catch_warnings():
            warnings.simplefilter('error')
            value = loss(logits, target, ignore_index=IGNORED)
        (grad,) = torch.autograd.grad(value, logits)
        expected, expected_grad = plain(name, logits, target, class_weight=[1.0, 2.0, 0.5, 3.0])
        torch.testing.assert_close(value, expected)
        torch.testing.assert_close(grad, expected_grad)


@pytest.mark.parametrize('name', ['mbls', 'flsd'])
@pytest.mark.parametrize('dtype', [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_compiled_by_the_real_compiler(name, dtype, fresh_compiler):
    logits, target = draw((2, 5, 4, 4), dtype, ignore=True)
    value = build(name, compile=True)(logits, target, ignore_index=IGNORED)
    (grad,) = torch.autograd.grad(value, logits)
    expected, expected_grad = plain(name, logits, target)
    torch.testing.assert_close(value, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(grad, expected_grad)


def test_a_schedule_compiles_three_times_at_most(fresh_compiler):
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    compile_with(backend, fresh_compiler)
    loss = build('mbls', compile=True)
    logits, target = draw((6, 5))
    values = []
    for margin in (10.0, 6.0, 4.0, 2.0, 1.0):
        loss.margin = margin
        values.append(loss(logits, target).item())
    assert len(graphs) == 3
    assert values == sorted(set(values))


def test_without_a_compiler_there_is_one_warning(fresh_compiler):
    def broken(function, *, options):
        raise RuntimeError('no compiler here')

    fresh_compiler.setattr(torch, 'compile', broken)
    logits, target = draw((6, 5))
    loss, expected = build('mbls', compile=True), build('mbls')(logits, target)
    with pytest.warns(UserWarning, match='run eagerly: RuntimeError: no compiler here'):
        assert loss(logits, target) == expected
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        assert loss(logits, target) == expected


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
