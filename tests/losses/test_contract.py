"""The call of a loss, and the engine behind it, shown on a few losses."""

import warnings

import pytest
import torch
from loss_cases import IGNORED, ROWS, draw
from test_every_loss import kernels  # noqa: F401

from mmcalib.losses import MarginLabelSmoothingLoss, SoftmaxFocalLoss
from mmcalib.losses import value_and_gradient as engine

close = torch.testing.assert_close


def test_ignore_index_of_the_call_wins():
    logits, target = draw((2, 4, 3, 5), ignore=True)
    loss = MarginLabelSmoothingLoss(ignore_index=254)
    close(loss(logits, target, ignore_index=IGNORED), loss(logits, target.where(target < 9, 254)))


@pytest.mark.parametrize('avg_factor', [None, 2, 0, torch.tensor(0)])
def test_all_ignored_is_zero_whatever_it_is_divided_by(avg_factor):
    logits, target = draw((2, 3, 4, 4))
    loss = MarginLabelSmoothingLoss(ignore_index=IGNORED)
    value = loss(logits, torch.full_like(target, IGNORED), avg_factor=avg_factor)
    value.backward()
    assert value == 0 and (logits.grad == 0).all()


def test_no_checkpoint_holds_class_weights_and_no_schedule_changes_a_default():
    loss = MarginLabelSmoothingLoss(class_weight=[1, 2])
    assert loss.state_dict() == {}
    loss.set_parameters(margin=2)
    assert loss.margin == 2.0 and MarginLabelSmoothingLoss().margin == 10.0
    assert repr(loss) == "MarginLabelSmoothingLoss(margin=2.0, alpha=0.1, class_reduction='mean')"


def test_memory_holds_the_gradient_alone(monkeypatch):
    """No copy of the logits or of a softmax is kept between the passes."""
    monkeypatch.setitem(engine.PIECE, 'cpu', 64)
    logits, target = draw((40, 8))
    value = SoftmaxFocalLoss()(logits, target)
    saved = value.grad_fn.saved_tensors if hasattr(value.grad_fn, 'saved_tensors') else ()
    assert [tuple(x.shape) for x in saved] == [(40, 8)]


@pytest.fixture
def graphs(kernels, monkeypatch):  # noqa: F811
    """Every graph that is compiled, and how often each has run."""
    compiled, compiler = [], torch.compile

    def backend(graph, inputs):
        runs = []
        compiled.append(runs)

        def run(*arguments):
            runs.append(1)
            return graph.forward(*arguments)

        return run

    monkeypatch.setattr(torch, 'compile', lambda f, options: compiler(f, backend=backend))
    return compiled


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
        found = [each(logits, target) for each in (loss, plain)]
        close(*found)
        close(*(torch.autograd.grad(x, logits)[0] for x in found))
        values.add(found[0].item())
    assert [len(runs) for runs in graphs] == [len(values)] == [3]


def test_batches_with_and_without_ignored_rows_share_a_kernel(graphs):
    loss = MarginLabelSmoothingLoss(compile=True)
    for ignore in (False, True, False):
        logits, target = draw((2, 5, 4, 4), torch.float32, ignore=ignore)
        loss(logits, target, ignore_index=IGNORED)
    assert [len(runs) for runs in graphs] == [3]


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
                logits, target = draw((samples, 5, 4 + epoch, 4), torch.float32, ignore=True)
                head(logits, target, ignore_index=IGNORED)
    assert sum(map(len, graphs)) == 5 * 2 + 4 * 2 * 2, 'some steps ran eagerly'


def test_without_a_compiler_there_is_one_warning(kernels, monkeypatch):  # noqa: F811
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
def test_the_real_compiler(name, dtype, kernels):  # noqa: F811
    logits, target = draw((2, 4, 5, 4), dtype, ignore=True)
    found = []
    for loss in (ROWS[name].build(compile=True), ROWS[name].build()):
        value = loss(logits, target, ignore_index=IGNORED)
        found.append((value, torch.autograd.grad(value, logits)[0]))
    close(*found, rtol=1e-5, atol=1e-5 if dtype == torch.float32 else 1e-3)
