"""What is particular to the margin; the rest is in test_all_losses.py."""

import pytest
import torch
import torch.nn.functional as F
from references import margin_label_smoothing_row

from mmcalib.losses import MarginLabelSmoothingLoss, margin_label_smoothing, margin_penalty


def draw(shape):
    generator = torch.Generator().manual_seed(0)
    logits = 8 * torch.randn(shape, generator=generator, dtype=torch.float64)
    target = torch.randint(shape[1], (shape[0], *shape[2:]), generator=generator)
    return logits.requires_grad_(), target


@pytest.mark.parametrize('margin', [0.0, 6.0, 10.0])
@pytest.mark.parametrize('shape', [(6, 5), (2, 4, 3, 2)])
def test_gradient_equals_finite_differences_of_the_loop(shape, margin):
    logits, target = draw(shape)
    target.view(-1)[::5] = 255
    options = dict(margin=margin, alpha=0.3)
    loss = MarginLabelSmoothingLoss(reduction='sum', **options)
    loss(logits, target, ignore_index=255).backward()

    def slow(flat):
        rows = flat.view(shape).movedim(1, -1).reshape(-1, shape[1]).tolist()
        return sum(
            margin_label_smoothing_row(row, label, **options)
            for row, label in zip(rows, target.flatten().tolist(), strict=True)
            if label != 255
        )

    flat = logits.detach().flatten()
    for index in range(flat.numel()):
        step = torch.zeros_like(flat)
        step[index] = 1e-6
        slope = (slow(flat + step) - slow(flat - step)) / 2e-6
        assert logits.grad.flatten()[index].item() == pytest.approx(slope, rel=1e-6, abs=1e-6)


def test_class_weight_scales_only_cross_entropy():
    logits, target = draw((8, 5))
    weights = [0.5, 1.0, 2.0, 0.0, 3.0]
    loss = MarginLabelSmoothingLoss(margin=6.0, class_weight=weights, reduction='none')
    expected = F.cross_entropy(logits, target, reduction='none') * torch.tensor(weights)[target]
    expected = expected + 0.1 * margin_penalty(logits, 6.0)
    torch.testing.assert_close(loss(logits, target), expected)


def test_the_sum_of_the_paper_is_k_times_the_mean():
    logits, target = draw((8, 5))
    mean = margin_label_smoothing(logits, target, margin=2.0, alpha=0.1)
    total = margin_label_smoothing(logits, target, margin=2.0, alpha=0.1 / 5, class_reduction='sum')
    torch.testing.assert_close(total, mean)


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
