"""Tests of single losses: defaults, gradients, ranks, updates after a validation."""

import pytest
import references
import torch
import torch.nn.functional as F
from forked import on_ranks
from loss_cases import IGNORED, draw

from mmcalib import losses
from mmcalib.losses import (
    AdaFocalLoss,
    BSCELoss,
    CALSLoss,
    DualFocalLoss,
    L1ACELoss,
    MDCALoss,
    value_and_gradient as engine,
)

close = torch.testing.assert_close


@pytest.mark.parametrize(
    'defaults',
    [
        "MarginLabelSmoothing(margin=10.0, alpha=0.1, class_reduction='mean')",
        'LabelSmoothing(alpha=0.05)',
        "ConfidencePenalty(alpha=0.1, class_reduction='mean')",
        'SoftmaxFocal(gamma=3.0)',
        'SampleDependentFocal(schedule=((0.2, 5.0), (1.0, 3.0)))',
        'DualFocal(gamma=5.0, detach_weight=False)',
        'InverseFocal(gamma=1.0, detach_weight=False)',
        'BSCE(gamma=1.0, norm=2, detach_weight=True)',
        'ACLS(margin=10.0, alpha=0.1, alpha_others=0.01)',
        'NACL(alpha=0.1)',
        "L1ACE(num_bins=20, binning='hard', per_image=True)",
    ],
)
def test_loss_defaults_are_those_of_the_papers(defaults):
    name, _, options = defaults.partition('(')
    loss = getattr(losses, f'{name}Loss')()
    assert repr(loss) == f'{name}Loss({options}'
    assert loss.state_dict() == {}


def test_set_parameters_changes_one_loss_and_no_checkpoint():
    loss = losses.MarginLabelSmoothingLoss(class_weight=[1, 2])
    loss.set_parameters(margin=2)
    assert loss.state_dict() == {}
    assert loss.margin == 2.0
    assert losses.MarginLabelSmoothingLoss().margin == 10.0


def test_loss_between_passes_keeps_only_the_gradient(monkeypatch):
    """No copy of the logits or of a softmax is kept between the passes."""
    monkeypatch.setitem(engine.PIECE, 'cpu', 64)
    logits, target = draw((40, 8))
    value = losses.SoftmaxFocalLoss()(logits, target)
    assert [tuple(tensor.shape) for tensor in value.grad_fn.saved_tensors] == [(40, 8)]


@pytest.mark.parametrize('loss', [DualFocalLoss, losses.InverseFocalLoss, BSCELoss])
def test_loss_detached_weight_scales_gradient_of_cross_entropy(loss):
    logits, target = draw((8, 5))
    rows = F.cross_entropy(logits, target, reduction='none')
    factor = (loss(gamma=2.0, reduction='none')(logits, target) / rows).detach()
    (expected,) = torch.autograd.grad((factor * rows).sum(), logits)
    for detach_weight in (True, False):
        value = loss(gamma=2.0, reduction='sum', detach_weight=detach_weight)(logits, target)
        (gradient,) = torch.autograd.grad(value, logits)
        assert torch.allclose(gradient, expected) == detach_weight


def test_acls_gradient_equals_derivative():
    logits, target = draw((9, 5))
    loss = losses.ACLSLoss(margin=2.0, alpha=0.3, alpha_others=0.4, reduction='sum')
    (actual,) = torch.autograd.grad(loss(logits, target), logits)
    top = logits.amax(dim=1, keepdim=True)
    slope_of_top = 0.6 * (top - 2).relu()
    slope_of_others = -0.8 / 4 * (top - logits - 2).relu()
    slope = torch.where(logits == top, slope_of_top, slope_of_others)
    close(actual, logits.softmax(dim=1) - F.one_hot(target, 5) + slope)


@pytest.mark.parametrize('loss', [MDCALoss(), L1ACELoss(), L1ACELoss(binning='soft')])
def test_batch_loss_certain_logits_is_0_and_broken_ones_nan(loss):
    target = torch.tensor([0, 1, 2])
    assert loss(200 * torch.eye(3), target).item() == pytest.approx(0, abs=1e-6)
    for logit in (float('nan'), float('inf')):
        broken = torch.eye(3).index_put((target[:1], target[1:2]), torch.tensor(logit))
        assert loss(broken, target).isnan()


SHARED = {'mdca': (MDCALoss, {}), 'l1_ace': (L1ACELoss, dict(per_image=False))}


def save_losses_of_rank(rank, folder):
    logits, target = draw((5, 4, 3, 2), ignore=True)
    images = slice(0, 3) if rank == 0 else slice(3, 5)
    for name, (loss, options) in SHARED.items():
        rank_logits = logits[images].detach().requires_grad_()
        shared_loss = loss(ignore_index=IGNORED, share_statistics=True, **options)
        value = shared_loss(rank_logits, target[images])
        value.backward()
        value_of_rank = loss(ignore_index=IGNORED, **options)(rank_logits, target[images])
        torch.save((value, rank_logits.grad, value_of_rank), f'{folder}/{name}{rank}.pth')


def test_batch_loss_two_ranks_that_share_statistics_equal_one(tmp_path):
    on_ranks(save_losses_of_rank, 2, str(tmp_path))
    logits, target = draw((5, 4, 3, 2), ignore=True)
    for name, (loss, options) in SHARED.items():
        expected = loss(ignore_index=IGNORED, **options)(logits, target)
        (expected_gradient,) = torch.autograd.grad(expected, logits)
        gradients = []
        for rank in range(2):
            value, gradient, value_of_rank = torch.load(tmp_path / f'{name}{rank}.pth')
            close(value, expected)
            assert (value_of_rank - expected).abs() > 1e-6
            gradients.append(gradient)
        # Data-parallel training takes the mean of the gradients over the ranks.
        close(torch.cat(gradients) / 2, expected_gradient)


def test_cals_update_equals_loop_and_is_in_checkpoint():
    loss = CALSLoss(4, margin=3.0, rho=2.0, rho_interval=2, rho_max=2.6)
    loaded = CALSLoss(4, margin=3.0)
    loss.update(loss.statistics(torch.zeros(0, 4)))  # Without a row nothing changes.
    multipliers = [1e-6] * 4
    last_penalty = 0.0
    rho = 2.0
    # The fourth penalty is far below the third, so rho stays.
    for number, scale in enumerate([6.0, 6.0, 9.0, 2.0, 9.0, 9.0], 1):
        logits = scale * torch.randn(17, 4, generator=torch.Generator().manual_seed(number))
        multipliers, penalty = references.cals_update(logits.tolist(), multipliers, rho, 3.0)
        if number % 2 == 0 and penalty > 0.9 * last_penalty > 0:
            rho = min(2.6, 1.2 * rho)
        last_penalty = penalty
        loss.update(loss.statistics(logits[:5]) + loss.statistics(logits[5:]))
        loaded.load_state_dict(loss.state_dict())
        for updated in (loss, loaded):
            assert updated.multipliers.tolist() == pytest.approx(multipliers, rel=1e-5)
            assert updated.last_penalty.item() == pytest.approx(penalty, rel=1e-5)
            assert updated.rho.item() == pytest.approx(rho)
            assert updated.num_updates == number
        assert rho == pytest.approx({1: 2.0, 6: 2.6}.get(number, 2.4))
    first_update = CALSLoss(4, rho_interval=1)  # The first penalty has none before it.
    first_update.update(loss.statistics(logits))
    assert first_update.rho == 1


def test_cals_update_huge_derivatives_are_limited_one_by_one():
    loss = CALSLoss(2, margin=0.01)
    loss.update(loss.statistics(torch.tensor([[1e5, 0.0], [0.0, 0.0]])))
    assert loss.multipliers.tolist() == pytest.approx([1e-6, 5e5], rel=1e-5)


def test_ada_focal_probability_at_edge_is_in_upper_bin():
    loss = AdaFocalLoss(num_bins=2, reduction='none')
    loss.update([0.5], [1.0, -5.0])  # The gammas become e and, after the switch, -0.2.
    expected = 1.5**0.2 * torch.tensor(2.0).log()
    assert loss(torch.zeros(1, 2), torch.tensor([0])).item() == pytest.approx(expected.item())


@pytest.mark.parametrize(
    ('gamma', 'gap', 'expected'),
    [
        (1.0, 0.3, 1.349859),
        (0.25, -0.3, -0.2),  # It came too close to 0, so focal becomes inverse focal loss.
        (-0.25, 0.3, 0.2),  # Inverse focal becomes focal loss.
        (-1.0, 0.3, -0.740818),
        (-1.9, -0.3, -2.0),
        (19.0, 0.3, 20.0),
    ],
)
def test_ada_focal_update_gap_changes_gamma_within_limits(gamma, gap, expected):
    loss = AdaFocalLoss(num_bins=2, gamma=gamma)
    loss.update([0.7], [gap, 0.0])
    assert loss.gammas.tolist() == pytest.approx([expected, gamma])
    assert loss.edges.tolist() == pytest.approx([0.7])
