import pytest
import torch
import torch.nn.functional as F
from references import margin_label_smoothing_row

from mmcalib.losses import MarginLabelSmoothingLoss, margin_label_smoothing, margin_penalty

IGNORED = 255


def make_batch(shape, seed=0, dtype=torch.float64, ignore=True):
    """Return logits of `shape` that straddle the margin, and labels, some of them ignored."""
    generator = torch.Generator().manual_seed(seed)
    logits = 8 * torch.randn(shape, generator=generator, dtype=dtype)
    target = torch.randint(shape[1], (shape[0], *shape[2:]), generator=generator)
    if ignore:
        target.view(-1)[::5] = IGNORED
    return logits.requires_grad_(), target


def oracle_rows(logits, target, **options):
    """The loss of each row in a loop, 0 where ignored, in the shape of `target`."""
    rows = logits.movedim(1, -1).reshape(-1, logits.shape[1]).tolist()
    losses = [
        0.0 if label == IGNORED else margin_label_smoothing_row(row, label, **options)
        for row, label in zip(rows, target.flatten().tolist(), strict=True)
    ]
    return torch.tensor(losses, dtype=torch.float64).reshape(target.shape)


@pytest.mark.parametrize('shape', [(7, 5), (1, 2), (2, 4, 3, 5), (3, 6, 4)])
@pytest.mark.parametrize('margin', [0.0, 6.0, 10.0])
@pytest.mark.parametrize('class_reduction', ['mean', 'sum'])
@pytest.mark.parametrize('reduction', ['none', 'sum', 'mean'])
def test_value_equals_a_plain_loop(shape, margin, class_reduction, reduction):
    logits, target = make_batch(shape, ignore=shape[0] > 1)
    loss = MarginLabelSmoothingLoss(
        margin=margin, alpha=0.3, class_reduction=class_reduction, reduction=reduction
    )(logits, target, ignore_index=IGNORED)
    rows = oracle_rows(logits, target, margin=margin, alpha=0.3, class_reduction=class_reduction)
    valid = (target != IGNORED).sum()
    expected = {'none': rows, 'sum': rows.sum(), 'mean': rows.sum() / valid}[reduction]
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize('shape', [(6, 5), (2, 4, 3, 2)])
@pytest.mark.parametrize('margin', [0.0, 6.0])
def test_gradient(shape, margin):
    logits, target = make_batch(shape)
    loss = MarginLabelSmoothingLoss(margin=margin, alpha=0.3, class_weight=range(1, shape[1] + 1))
    assert torch.autograd.gradcheck(
        lambda x: loss(x, target, ignore_index=IGNORED), logits, atol=1e-7
    )


@pytest.mark.parametrize('shape', [(6, 5), (2, 4, 3, 2)])
def test_gradient_equals_finite_differences_of_the_loop(shape):
    logits, target = make_batch(shape)
    options = dict(margin=6.0, alpha=0.3)
    MarginLabelSmoothingLoss(reduction='sum', **options)(
        logits, target, ignore_index=IGNORED
    ).backward()
    flat = logits.detach().flatten()
    for index in range(0, flat.numel(), 3):
        moved = []
        for step in (1e-6, -1e-6):
            shifted = flat.clone()
            shifted[index] += step
            moved.append(oracle_rows(shifted.view(shape), target, **options).sum())
        slope = (moved[0] - moved[1]) / 2e-6
        torch.testing.assert_close(logits.grad.flatten()[index], slope, rtol=1e-6, atol=1e-6)


def test_soft_targets():
    logits, _ = make_batch((6, 5))
    target = torch.softmax(make_batch((6, 5), seed=1)[0].detach(), dim=1)
    weights = [0.5, 1.0, 2.0, 0.0, 3.0]
    loss = MarginLabelSmoothingLoss(margin=6.0, alpha=0.3, class_weight=weights)(logits, target)
    rows = [
        margin_label_smoothing_row(row, share, margin=6.0, alpha=0.3, weights=weights)
        for row, share in zip(logits.tolist(), target.tolist(), strict=True)
    ]
    torch.testing.assert_close(loss.item(), sum(rows) / 6)


def test_one_hot_soft_targets_equal_labels():
    logits, target = make_batch((6, 5, 2), ignore=False)
    loss = MarginLabelSmoothingLoss()
    soft = F.one_hot(target, 5).movedim(-1, 1).double()
    torch.testing.assert_close(loss(logits, soft), loss(logits, target))


def test_class_weight_scales_only_cross_entropy():
    logits, target = make_batch((8, 5), ignore=False)
    weights = [0.5, 1.0, 2.0, 0.0, 3.0]
    loss = MarginLabelSmoothingLoss(margin=6.0, class_weight=weights, reduction='none')
    expected = F.cross_entropy(logits, target, reduction='none') * torch.tensor(weights)[target]
    expected = expected + 0.1 * margin_penalty(logits, 6.0)
    torch.testing.assert_close(loss(logits, target), expected)


def test_alpha_zero_is_cross_entropy():
    logits, target = make_batch((4, 5, 3, 3))
    loss = MarginLabelSmoothingLoss(alpha=0.0)(logits, target, ignore_index=IGNORED)
    torch.testing.assert_close(loss, F.cross_entropy(logits, target, ignore_index=IGNORED))


def test_the_sum_of_the_paper_is_k_times_the_mean():
    logits, target = make_batch((8, 5), ignore=False)
    mean = margin_label_smoothing(logits, target, margin=2.0, alpha=0.1)
    total = margin_label_smoothing(logits, target, margin=2.0, alpha=0.1 / 5, class_reduction='sum')
    torch.testing.assert_close(total, mean)


def test_a_constant_added_to_the_logits_changes_nothing():
    logits, target = make_batch((8, 5), ignore=False)
    loss = MarginLabelSmoothingLoss(margin=4.0)
    torch.testing.assert_close(loss(logits + 100.0, target), loss(logits, target))


def test_permuting_the_classes_changes_nothing():
    logits, target = make_batch((8, 5), ignore=False)
    order = torch.tensor([3, 0, 4, 1, 2])
    loss = MarginLabelSmoothingLoss(margin=4.0)
    torch.testing.assert_close(
        loss(logits[:, order], order.argsort()[target]), loss(logits, target)
    )


def test_no_gradient_of_the_penalty_within_the_margin():
    logits = torch.tensor([[9.0, 0.0, 5.0], [11.0, 0.0, 5.0]], requires_grad=True)
    margin_penalty(logits, 10.0).sum().backward()
    torch.testing.assert_close(logits.grad, torch.tensor([[0.0, 0.0, 0.0], [1 / 3, -1 / 3, 0.0]]))


@pytest.mark.parametrize('option', ['margin', 'alpha'])
@pytest.mark.parametrize('value', [-0.1, float('nan'), float('inf')])
def test_options_below_zero_are_refused(option, value):
    with pytest.raises(ValueError, match=f'{option} must be a finite number of at least 0'):
        MarginLabelSmoothingLoss(**{option: value})


def test_unknown_class_reduction_is_refused():
    with pytest.raises(ValueError, match=r"class_reduction must be one of .* got 'none'"):
        MarginLabelSmoothingLoss(class_reduction='none')
