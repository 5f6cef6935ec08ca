"""The contract of CalibrationLoss, shown on the loss of the paper."""

import pytest
import torch

from mmcalib.losses import MarginLabelSmoothingLoss


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


def test_the_state_dict_is_empty():
    assert MarginLabelSmoothingLoss(class_weight=[1, 2]).state_dict() == {}


@pytest.mark.parametrize(
    ('pred', 'target', 'options', 'error', 'message'),
    [
        ((4, 3), torch.tensor([0, 1, 2, 3]), {}, ValueError, r'1 labels are outside \[0, 3\).*: 3'),
        ((4, 3), torch.tensor([0, -1, 2, 0]), {}, ValueError, r'ignore_index=-100: -1'),
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
    ('options', 'message'),
    [
        (dict(reduction='max'), "got 'max'"),
        (dict(loss_name='mbls'), 'must contain "loss".*got \'mbls\''),
        (dict(class_weight=[1.0, -1.0]), 'at least 0'),
        (dict(class_weight=[[1.0]]), 'flat list'),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        MarginLabelSmoothingLoss(**options)


@pytest.mark.parametrize('option', ['margin', 'alpha', 'loss_weight'])
def test_numbers_that_are_none_are_refused(option):
    with pytest.raises(TypeError, match=f"{option} must be a number, got '6'"):
        MarginLabelSmoothingLoss(**{option: '6'})


def test_class_weight_of_another_length_is_refused():
    with pytest.raises(ValueError, match='2 entries for 3 classes'):
        MarginLabelSmoothingLoss(class_weight=[1, 2])(torch.zeros(4, 3), torch.zeros(4, dtype=int))


def test_unknown_options_are_refused():
    with pytest.raises(TypeError, match='smoothing'):
        MarginLabelSmoothingLoss(smoothing=0.1)
