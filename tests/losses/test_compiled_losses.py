"""Losses as kernels and inside compiled models, and how often they are compiled.

But for the last test the backend traces alone, since compiling takes seconds.
"""

import warnings

import pytest
import torch
from loss_cases import CASES, IGNORED, ROWS, draw

from mmcalib.losses import SoftmaxFocalLoss
from mmcalib.losses import value_and_gradient as engine
from mmcalib.losses.upsampled import upsampled_loss

close = torch.testing.assert_close
KINDS = {type(case.build()): name for name, case in CASES.items()}  # one case of each loss


@pytest.fixture
def kernels():
    """Forget the kernels of other tests, which count towards torch's limits."""
    for wait in (True, False):
        torch.compiler.reset()
        engine._compiled_kernel.cache_clear()
        engine._not_compilable.clear()
        if wait:
            yield


@pytest.fixture
def graphs(kernels, monkeypatch):
    """Every graph that is compiled, and how often each has run."""
    compiled, compiler = [], torch.compile

    def backend(graph, inputs):
        runs = []
        compiled.append(runs)
        return lambda *arguments: runs.append(1) or graph.forward(*arguments)

    def traced(function, options=None, **more):
        return compiler(function, backend=backend, **more)

    monkeypatch.setattr(torch, 'compile', traced)
    return compiled


def both(loss, logits, target, **call):
    value = loss(logits, target, **call)
    return value, torch.autograd.grad(value, logits)[0]


@pytest.mark.parametrize('name', KINDS.values())
@pytest.mark.filterwarnings('error')  # of what runs eagerly
def test_every_loss(name, graphs):
    case = CASES[name]
    plain = case.build(ignore_index=IGNORED)
    inside = torch.compile(plain, fullgraph=True)
    logits, target = draw(case.shapes[0], torch.float32, ignore=True, soft=case.soft)
    close(both(inside, logits, target), both(plain, logits, target))
    if not case.batch:
        logits, target = draw(case.shapes[2 % len(case.shapes)], torch.float32, ignore=True)
        loss = case.build(ignore_index=IGNORED, compile=True)
        close(both(loss, logits, target), both(plain, logits, target))
    assert graphs


def test_a_wrong_label_inside_a_compiled_model(graphs):
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
def test_a_schedule_does_not_compile_anew(name, graphs):
    logits, target = draw(ROWS[name].shapes[0])
    loss, plain, values = ROWS[name].build(compile=True), ROWS[name].build(), set()
    for value in (0.3, 0.5, 0.9):
        for each in (loss, plain):
            each.set_parameters(**{SCHEDULED[name]: value})
        found = both(loss, logits, target)
        close(found, both(plain, logits, target))
        values.add(found[0].item())
    assert [len(runs) for runs in graphs] == [len(values)] == [3]


def test_losses_and_shapes_stay_below_the_limit_of_recompilations(graphs):
    # The limit is 8 for a formula; above it torch goes on eagerly.
    for name in ('ls', 'fl', 'ecp', 'acls', 'brier'):
        for samples in (3, 2):
            ROWS[name].build(compile=True)(*draw((samples, 5)))
    heads = [ROWS['mbls'].build(compile=True), ROWS['mbls'].build(compile=True, loss_weight=0.4)]
    for epoch in range(4):
        for samples in (3, 2):  # the last batch is smaller
            for shift, head in enumerate(heads):
                head.set_parameters(margin=10.0 - epoch - shift)
                ignore = bool(epoch % 2)  # which shares a kernel with a batch that ignores nothing
                logits, target = draw((samples, 5, 4 + epoch, 4), torch.float32, ignore=ignore)
                head(logits, target, ignore_index=IGNORED)
    assert sum(map(len, graphs)) == 5 * 2 + 4 * 2 * 2, 'some steps ran eagerly'
    logits, target = draw((1, 5, 8, 6), torch.float32)
    call = dict(ignore_index=IGNORED, align_corners=False)
    value, _ = upsampled_loss(heads[0], logits, target, **call)
    expected, _ = upsampled_loss(ROWS['mbls'].build(margin=7.0), logits, target, **call)
    close(value, expected)
    assert sum(map(len, graphs)) == 27


def test_without_a_compiler_there_is_one_warning(kernels, monkeypatch):
    def broken(function, *, options):
        raise RuntimeError('no compiler here')

    monkeypatch.setattr(torch, 'compile', broken)
    logits, target = draw((6, 5))
    for name in ('mbls', 'ls'):
        loss, expected = ROWS[name].build(compile=True), ROWS[name].build()(logits, target)
        with pytest.warns(UserWarning, match='runs eagerly: RuntimeError: no compiler here'):
            close(loss(logits, target), expected)
        with warnings.catch_warnings():
            warnings.simplefilter('error')
            close(loss(logits, target), expected)


@pytest.mark.parametrize(
    ('name', 'dtype'), [('mbls', torch.float32), ('flsd', torch.float16), ('nacl', torch.bfloat16)]
)
def test_the_real_compiler(name, dtype, kernels):
    logits, target = draw((2, 4, 5, 4), dtype, ignore=True)
    loss, plain = ROWS[name].build(compile=True), ROWS[name].build()
    found, expected = (both(x, logits, target, ignore_index=IGNORED) for x in (loss, plain))
    close(found, expected, rtol=1e-5, atol=1e-5 if dtype == torch.float32 else 1e-3)
