"""The contract of CalibrationLoss, shown on the loss of the paper."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from mmcalib import losses
from mmcalib.losses import MarginLabelSmoothingLoss, SoftmaxFocalLoss
from mmcalib.losses.base import call_checks


@pytest.fixture
def batch():
    generator = torch.Generator().manual_seed(0)
    logits = 6 * torch.randn(2, 4, 3, 5, generator=generator, dtype=torch.float64)
    target = torch.randint(4, (2, 3, 5), generator=generator)
    target[0, 0] = 255
    return logits.requires_grad_(), target


def test_weight_and_avg_factor(batch):
    logits, target = batch
    loss = MarginLabelSmoothingLoss(ignore_index=255)
    rows = loss(logits, target, reduction_override='none')
    assert rows.shape == target.shape
    assert (rows[0, 0] == 0).all() and (rows[1] > 0).all()

    weight = torch.rand(target.shape)
    expected = (rows * weight).sum()
    torch.testing.assert_close(
        loss(logits, target, weight=weight, reduction_override='sum'), expected
    )
    torch.testing.assert_close(loss(logits, target, weight=weight), expected / 25)
    for factor in (7, 7.0, torch.tensor(7)):
        torch.testing.assert_close(
            loss(logits, target, weight=weight, avg_factor=factor), expected / 7
        )


def test_loss_weight(batch):
    torch.testing.assert_close(
        MarginLabelSmoothingLoss(loss_weight=0.4, ignore_index=255)(*batch),
        0.4 * MarginLabelSmoothingLoss(ignore_index=255)(*batch),
    )


def test_ignore_index_of_the_call_wins(batch):
    logits, target = batch
    other = target.masked_fill(target == 255, 254)
    loss = MarginLabelSmoothingLoss(ignore_index=254)
    torch.testing.assert_close(loss(logits, target, ignore_index=255), loss(logits, other))


@pytest.mark.parametrize('avg_factor', [None, 2, 0])
@pytest.mark.parametrize('reduction', ['none', 'mean'])
def test_all_ignored_is_zero_with_a_gradient(avg_factor, reduction):
    logits = torch.randn(2, 3, 4, 4, requires_grad=True)
    loss = MarginLabelSmoothingLoss(ignore_index=255, reduction=reduction)
    value = loss(logits, torch.full((2, 4, 4), 255), avg_factor=avg_factor).sum()
    assert value.item() == 0
    value.backward()
    assert (logits.grad == 0).all()


@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
@pytest.mark.parametrize('autocast', [False, True])
def test_half_precision_is_computed_in_float32(dtype, autocast):
    logits = (20 * torch.randn(64, 10)).to(dtype).requires_grad_()
    target = torch.randint(10, (64,))
    loss = MarginLabelSmoothingLoss(margin=3.0)
    with torch.autocast('cpu', dtype=torch.bfloat16, enabled=autocast):
        value = loss(logits, target)
    assert value.dtype == torch.float32
    torch.testing.assert_close(value, loss(logits.float(), target), rtol=0, atol=0)
    value.backward()
    assert logits.grad.dtype == dtype and logits.grad.isfinite().all()


@pytest.mark.parametrize('dtype', [torch.int32, torch.int16, torch.uint8])
def test_any_integer_labels(dtype):
    logits, target = torch.randn(8, 4), torch.randint(4, (8,))
    loss = MarginLabelSmoothingLoss()
    torch.testing.assert_close(loss(logits, target.to(dtype)), loss(logits, target))


@pytest.mark.parametrize(
    ('label', 'dtype', 'ignore_index'),
    [(156, torch.uint8, -100), (-1, torch.int8, 255), (-1, torch.int16, 65535)],
)
def test_a_narrow_label_does_not_wrap_around_to_the_ignored_one(label, dtype, ignore_index):
    target = torch.tensor([1, label], dtype=dtype)
    with pytest.raises(ValueError, match=f'{label}'):
        SoftmaxFocalLoss(ignore_index=ignore_index)(torch.randn(2, 4), target)


def test_the_mean_of_an_empty_batch_may_be_divided_by_its_length():
    logits = torch.randn(0, 4, requires_grad=True)
    assert SoftmaxFocalLoss()(logits, torch.zeros(0, dtype=torch.long), avg_factor=0) == 0


def test_the_state_dict_is_empty():
    assert MarginLabelSmoothingLoss(class_weight=[1, 2]).state_dict() == {}


@pytest.mark.parametrize(
    ('pred', 'target', 'options', 'error', 'message'),
    [
        ((4, 3), torch.tensor([0, 1, 2, 3]), {}, ValueError, r'1 labels outside \[0, 3\): 3\. '),
        (
            (4, 3),
            torch.tensor([0, -1, 2, 0]),
            {},
            ValueError,
            r': -1\. They are not ignore_index=-100',
        ),
        ((4, 3), torch.tensor([0, 1]), {}, ValueError, r'target \(2,\) does not fit pred \(4, 3\)'),
        ((4, 3, 2, 2), torch.zeros(4, 1, 2, 2, dtype=int), {}, ValueError, r'\(4, 1, 2, 2\)'),
        ((4, 3), torch.zeros(4), {}, ValueError, r'soft target \(4,\)'),
        ((4, 3), torch.zeros(4, 3, dtype=int), {}, ValueError, r'integer target \(4, 3\)'),
        ((4, 1), torch.zeros(4, dtype=int), {}, ValueError, 'out_channels=2'),
        ((4,), torch.zeros(4, dtype=int), {}, ValueError, r'got \(4,\)'),
        ((4, 3), torch.zeros(4, dtype=bool), {}, TypeError, 'bool'),
        (
            (4, 3),
            torch.zeros(4, dtype=int),
            dict(weight=torch.ones(3)),
            ValueError,
            r'weight \(3,\) does not fit pred \(4, 3\)',
        ),
        (
            (4, 3),
            torch.zeros(4, dtype=int),
            dict(avg_factor=4, reduction_override='sum'),
            ValueError,
            'avg_factor',
        ),
        (
            (4, 3),
            torch.zeros(4, dtype=int),
            dict(reduction_override='max'),
            ValueError,
            "got 'max'",
        ),
    ],
)
def test_a_call_that_does_not_fit_is_refused(pred, target, options, error, message):
    with pytest.raises(error, match=message):
        MarginLabelSmoothingLoss()(torch.zeros(pred), target, **options)


def test_integer_logits_are_refused():
    with pytest.raises(TypeError, match=r'floating-point logits, got torch\.int64'):
        MarginLabelSmoothingLoss()(torch.zeros(4, 3, dtype=int), torch.zeros(4, dtype=int))


@pytest.mark.parametrize(
    'loss', [losses.CALSLoss(num_classes=2), losses.MDCALoss(), losses.BrierLoss()]
)
def test_calls_refuse_what_is_no_tensor(loss):
    pred, target, weight = torch.zeros(1, 2), torch.zeros(1, dtype=int), torch.ones(1)
    with pytest.raises(TypeError, match='pred must be a tensor, got ndarray'):
        loss(pred.numpy(), target)
    with pytest.raises(TypeError, match='target must be a tensor, got list'):
        loss(pred, target.tolist())
    with pytest.raises(TypeError, match='weight must be a tensor, got list'):
        loss(pred, target, weight=weight.tolist())


@pytest.mark.parametrize(
    ('options', 'message'),
    [
        (dict(reduction='max'), "got 'max'"),
        (dict(loss_name='mbls'), 'must contain "loss".*got \'mbls\''),
        (dict(class_weight=[1.0, -1.0]), 'at least 0'),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        MarginLabelSmoothingLoss(**options)


@pytest.mark.parametrize(
    ('options', 'message'),
    [
        (dict(margin='6'), "margin must be a number, got '6'"),
        (dict(margin=True), 'margin must be a number, got True'),
        (dict(alpha='0.1'), "alpha must be a number, got '0.1'"),
        (dict(loss_weight=None), 'loss_weight must be a number, got None'),
        (dict(ignore_index=None), 'ignore_index must be an integer, such as 255, got None'),
        (dict(ignore_index=True), 'ignore_index must be an integer.* got True'),
        (dict(compile='yes'), "compile must be True or False, got 'yes'"),
        (dict(class_weight=[[1.0]]), r'class_weight must be a number, got \[1\.0\]'),
    ],
)
def test_options_of_another_type_are_refused(options, message):
    with pytest.raises(TypeError, match=message):
        MarginLabelSmoothingLoss(**options)


@pytest.mark.parametrize('factor', [0, -1, -0.5, float('nan')])
def test_an_avg_factor_that_cannot_divide_is_refused(batch, factor):
    with pytest.raises(ValueError, match=f'avg_factor must be .*got {factor}'):
        MarginLabelSmoothingLoss(ignore_index=255)(*batch, avg_factor=factor)
    # A tensor may be on a GPU, and to look at it would take a wait.
    value = MarginLabelSmoothingLoss(ignore_index=255)(*batch, avg_factor=torch.tensor(factor))
    assert not value.isfinite()


class Waits(TorchDispatchMode):
    """Counts what would make the host wait for a GPU."""

    WAITING = ('_local_scalar_dense', 'nonzero', 'is_nonzero', 'equal', 'index', 'masked_select')

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += function.__name__.split('.')[0] in self.WAITING
        return function(*args, **(kwargs or {}))


@pytest.fixture
def waits(monkeypatch):
    """A counter of the waits of a call; `tolist` is one that the dispatcher does not see."""
    counter, tolist = Waits(), torch.Tensor.tolist

    def counted(tensor):
        counter.count += 1
        return tolist(tensor)

    monkeypatch.setattr(torch.Tensor, 'tolist', counted)
    monkeypatch.setattr(call_checks, 'LOOKS_ARE_FREE_ON', ())  # as for a GPU
    return counter


@pytest.mark.parametrize('ignored', [False, True])
@pytest.mark.parametrize('label_type', [torch.int64, torch.uint8])
def test_a_gpu_waits_once_for_a_tensor_of_labels(batch, waits, ignored, label_type):
    logits, target = batch
    target = (target if ignored else target.clamp(max=3)).to(label_type)
    loss = MarginLabelSmoothingLoss(ignore_index=255)
    logits = logits.detach()  # on a CPU, the gradient takes looks that a GPU is spared
    with waits:
        loss(logits, target)
    assert waits.count == 1
    with waits:
        loss(logits, target, avg_factor=3)
        loss(logits, target, reduction_override='none')
        loss(logits, logits.softmax(1), avg_factor=torch.tensor(3))
    assert waits.count == 1
    target[0, 1, 0] = 77  # labels that changed are looked at again
    with pytest.raises(ValueError, match=r'1 labels outside .*: 77'):
        loss(logits, target)
    with pytest.raises(ValueError, match='77'):
        loss(logits, target)


def test_labels_are_checked_against_each_number_of_classes(batch):
    logits, target = batch
    loss = MarginLabelSmoothingLoss(ignore_index=255)
    loss(logits, target)
    with pytest.raises(ValueError, match=r'outside \[0, 2\)'):
        loss(logits[:, :2], target)
    with pytest.raises(ValueError, match='ignore_index=7'):
        loss(logits, target, ignore_index=7)
    with torch.inference_mode():
        assert loss(logits.detach().clone(), target.clone()).isfinite()


def test_class_weight_of_another_length_is_refused():
    with pytest.raises(ValueError, match='2 entries for 3 classes'):
        MarginLabelSmoothingLoss(class_weight=[1, 2])(torch.zeros(4, 3), torch.zeros(4, dtype=int))


def test_unknown_options_are_refused():
    with pytest.raises(TypeError, match='smoothing'):
        MarginLabelSmoothingLoss(smoothing=0.1)
