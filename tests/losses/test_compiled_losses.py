"""Losses as kernels and inside compiled models, and the number of their compilations.

In all tests but the last the backend only traces, since compiling takes seconds.
"""

import warnings

import pytest
import torch
from loss_cases import CASES, IGNORED, ROWS, draw

from mmcalib.losses import SoftmaxFocalLoss, value_and_gradient as engine
from mmcalib.losses.upsampled import upsampled_loss

close = torch.testing.assert_close
# One case of each loss.
CASE_BY_LOSS = {type(case.build()): name for name, case in CASES.items()}


@pytest.fixture
def kernels():
    """Forget the kernels of other tests, which count towards torch's limits."""
    forget_kernels()
    yield
    forget_kernels()


def forget_kernels():
    torch.compiler.reset()
    engine._compiled_kernel.cache_clear()
    engine._not_compilable.clear()


@pytest.fixture
def graphs(kernels, monkeypatch):
    """Return a list that gets, for every graph that is compiled, a list of its runs."""
    runs_by_graph = []
    real_compile = torch.compile

    def backend(graph, inputs):
        runs = []
        runs_by_graph.append(runs)

        def run(*arguments):
            runs.append(1)
            return graph.forward(*arguments)

        return run

    def compile_by_tracing(function, options=None, **keywords):
        return real_compile(function, backend=backend, **keywords)

    monkeypatch.setattr(torch, 'compile', compile_by_tracing)
    return runs_by_graph


def value_and_gradient(loss, logits, target, **call):
    value = loss(logits, target, **call)
    return value, torch.autograd.grad(value, logits)[0]


@pytest.mark.parametrize('name', CASE_BY_LOSS.values())
@pytest.mark.filterwarnings('error')  # A loss that runs eagerly warns.
def test_loss_compiled_equals_eager(name, graphs):
    case = CASES[name]
    eager = case.build(ignore_index=IGNORED)
    compiled_model = torch.compile(eager, fullgraph=True)
    logits, target = draw(case.shapes[0], torch.float32, ignore=True, soft=case.soft)
    actual = value_and_gradient(compiled_model, logits, target)
    close(actual, value_and_gradient(eager, logits, target))
    if not case.batch:
        logits, target = draw(case.shapes[2 % len(case.shapes)], torch.float32, ignore=True)
        compiled = case.build(ignore_index=IGNORED, compile=True)
        actual = value_and_gradient(compiled, logits, target)
        close(actual, value_and_gradient(eager, logits, target))
    assert graphs


@pytest.mark.parametrize('name', ['mbls', 'mbls m=0, sum', 'ls'])
@pytest.mark.parametrize('shape', [(12, 5), (3, 5, 4, 2)])
def test_loss_of_compilable_gradient_equals_its_formula_compiled_for_masked_classes(
    name, shape, graphs
):
    options = dict(class_weight=[0.5, 1, 0, 2, 3], ignore_index=IGNORED)
    compiled = ROWS[name].build(**options, reduction='sum', compile=True)
    rows = ROWS[name].build(**options, reduction='none')
    logits, target = draw(shape, scale=6.0, ignore=True)
    weight = torch.rand(target.shape, dtype=torch.float64)
    target[target == 2] = 3
    masked = logits.detach().clone()
    masked[:, 2] = float('-inf')
    broken = logits.detach().masked_fill((target == IGNORED).unsqueeze(1), float('nan'))
    # The kernel of the gradient serves finite logits and ties; that of the formula all others.
    kernels_by_logits = ((logits.detach().round(decimals=-1), 1), (masked, 2), (broken, 2))
    for values, num_kernels in kernels_by_logits:
        values.requires_grad_()
        expected = rows(values, target, weight=weight).sum()
        expected_gradient = torch.autograd.grad(expected, values)[0]
        actual = value_and_gradient(compiled, values, target, weight=weight)
        close(actual, (expected, expected_gradient), rtol=1e-12, atol=1e-12)
        assert len(graphs) == num_kernels


def test_loss_wrong_label_inside_compiled_model_raises(graphs):
    logits, target = draw((4, 5), torch.float32)
    loss = torch.compile(SoftmaxFocalLoss(), fullgraph=True)
    assert loss(logits, target).isfinite()
    target[1] = 5
    with pytest.raises(RuntimeError, match=r'outside \[0, 5\).* ignore_index=-100'):
        loss(logits, target)


SCHEDULED = {
    **dict.fromkeys(('mbls', 'acls'), 'alpha'),
    **dict.fromkeys(('mbls m=0, sum', 'cals'), 'margin'),
    **{'bsce, norm 1': 'gamma', 'fl': 'gamma', 'svls': 'sigma'},
}


@pytest.mark.parametrize('name', SCHEDULED)
def test_scheduled_loss_other_parameter_is_not_compiled_again(name, graphs):
    logits, target = draw(ROWS[name].shapes[0])
    compiled = ROWS[name].build(compile=True)
    eager = ROWS[name].build()
    distinct_values = set()
    for parameter in (0.3, 0.5, 0.9):
        compiled.set_parameters(**{SCHEDULED[name]: parameter})
        eager.set_parameters(**{SCHEDULED[name]: parameter})
        value, gradient = value_and_gradient(compiled, logits, target)
        close((value, gradient), value_and_gradient(eager, logits, target))
        distinct_values.add(value.item())
    assert len(distinct_values) == 3
    assert [len(runs) for runs in graphs] == [3]


def test_losses_many_shapes_stay_below_limit_of_recompilations(graphs):
    # The limit is 8 for a formula; above it torch goes on eagerly.
    for name in ('ls', 'fl', 'ecp', 'acls', 'brier'):
        for samples in (3, 2):
            ROWS[name].build(compile=True)(*draw((samples, 5)))
    heads = [ROWS['mbls'].build(compile=True), ROWS['mbls'].build(compile=True, loss_weight=0.4)]
    for epoch in range(4):
        for samples in (3, 2):  # The last batch of an epoch is smaller.
            for shift, head in enumerate(heads):
                head.set_parameters(margin=10.0 - epoch - shift)
                # A batch with ignored pixels shares a kernel with one without.
                ignore = bool(epoch % 2)
                logits, target = draw((samples, 5, 4 + epoch, 4), torch.float32, ignore=ignore)
                head(logits, target, ignore_index=IGNORED)
    assert sum(map(len, graphs)) == 5 * 2 + 4 * 2 * 2, 'some steps ran eagerly'
    logits, target = draw((1, 5, 8, 6), torch.float32)
    call = dict(ignore_index=IGNORED, align_corners=False)
    value, _ = upsampled_loss(heads[0], logits, target, **call)
    expected, _ = upsampled_loss(ROWS['mbls'].build(margin=7.0), logits, target, **call)
    close(value, expected)
    assert sum(map(len, graphs)) == 27


def test_compiled_loss_without_compiler_warns_once(kernels, monkeypatch):
    def raise_error(function, *, options):
        raise RuntimeError('no compiler here')

    monkeypatch.setattr(torch, 'compile', raise_error)
    logits, target = draw((6, 5))
    for name in ('mbls', 'ls'):
        loss = ROWS[name].build(compile=True)
        expected = ROWS[name].build()(logits, target)
        with pytest.warns(UserWarning, match='runs eagerly: RuntimeError: no compiler here'):
            close(loss(logits, target), expected)
        with warnings.catch_warnings():
            warnings.simplefilter('error')
            close(loss(logits, target), expected)


@pytest.mark.parametrize(
    ('name', 'dtype'), [('mbls', torch.float32), ('flsd', torch.float16), ('nacl', torch.bfloat16)]
)
def test_loss_compiled_by_real_compiler_equals_eager(name, dtype, kernels):
    logits, target = draw((2, 4, 5, 4), dtype, ignore=True)
    compiled = ROWS[name].build(compile=True)
    eager = ROWS[name].build()
    actual = value_and_gradient(compiled, logits, target, ignore_index=IGNORED)
    expected = value_and_gradient(eager, logits, target, ignore_index=IGNORED)
    close(actual, expected, rtol=1e-5, atol=1e-5 if dtype == torch.float32 else 1e-3)
