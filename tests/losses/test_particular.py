"""What holds for one loss alone: defaults, gradients, ranks, what is learnt of a validation."""

import pytest
import references
import torch
import torch.nn.functional as F
from forked import on_ranks
from loss_cases import IGNORED, draw

from mmcalib import losses
from mmcalib.losses import AdaFocalLoss, BSCELoss, CALSLoss, DualFocalLoss, L1ACELoss, MDCALoss
from mmcalib.losses import value_and_gradient as engine

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
def test_defaults_are_the_papers(defaults):
    name, _, options = defaults.partition('(')
    loss = getattr(losses, f'{name}Loss')()
    assert repr(loss) == f'{name}Loss({options}' and loss.state_dict() == {}


def test_no_checkpoint_holds_class_weights_and_no_schedule_changes_a_default():
    loss = losses.MarginLabelSmoothingLoss(class_weight=[1, 2])
    loss.set_parameters(margin=2)
    assert (loss.state_dict(), loss.margin) == ({}, 2.0)
    assert losses.MarginLabelSmoothingLoss().margin == 10.0


def test_memory_holds_the_gradient_alone(monkeypatch):
    """No copy of the logits or of a softmax is kept between the passes."""
    monkeypatch.setitem(engine.PIECE, 'cpu', 64)
    logits, target = draw((40, 8))
    value = losses.SoftmaxFocalLoss()(logits, target)
    saved = value.grad_fn.saved_tensors if hasattr(value.grad_fn, 'saved_tensors') else ()
    assert [tuple(x.shape) for x in saved] == [(40, 8)]


@pytest.mark.parametrize('loss', [DualFocalLoss, losses.InverseFocalLoss, BSCELoss])
def test_a_detached_weight_scales_the_gradient_of_cross_entropy(loss):
    logits, target = draw((8, 5))
    rows = F.cross_entropy(logits, target, reduction='none')
    factor = (loss(gamma=2.0, reduction='none')(logits, target) / rows).detach()
    (expected,) = torch.autograd.grad((factor * rows).sum(), logits)
    for detach_weight in (True, False):
        value = loss(gamma=2.0, reduction='sum', detach_weight=detach_weight)(logits, target)
        (gradient,) = torch.autograd.grad(value, logits)
        assert torch.allclose(gradient, expected) == detach_weight


def test_the_gradient_of_acls():
    logits, target = draw((9, 5))
    loss = losses.ACLSLoss(margin=2.0, alpha=0.3, alpha_others=0.4, reduction='sum')
    (gradient,) = torch.autograd.grad(loss(logits, target), logits)
    top = logits.amax(dim=1, keepdim=True)
    smoothing = 0.6 * (top - 2).relu(), -0.8 / 4 * (top - logits - 2).relu()
    expected = logits.softmax(dim=1) - F.one_hot(target, 5)
    close(gradient, expected + torch.where(logits == top, *smoothing))


@pytest.mark.parametrize('loss', [MDCALoss(), L1ACELoss(), L1ACELoss(binning='soft')])
def test_a_batch_of_certain_and_of_diverged_networks(loss):
    target = torch.tensor([0, 1, 2])
    assert loss(200 * torch.eye(3), target).item() == pytest.approx(0, abs=1e-6)
    for logit in (float('nan'), float('inf')):
        broken = torch.eye(3).index_put((target[:1], target[1:2]), torch.tensor(logit))
        assert loss(broken, target).isnan()


SHARED = {'mdca': (MDCALoss, {}), 'l1_ace': (L1ACELoss, dict(per_image=False))}


def _share(rank, folder):
    logits, target = draw((5, 4, 3, 2), ignore=True)
    part = slice(0, 3) if rank == 0 else slice(3, 5)
    for name, (loss, options) in SHARED.items():
        mine = logits[part].detach().requires_grad_()
        value = loss(ignore_index=IGNORED, share_statistics=True, **options)(mine, target[part])
        value.backward()
        alone = loss(ignore_index=IGNORED, **options)(mine, target[part])
        torch.save((value, mine.grad, alone), f'{folder}/{name}{rank}.pth')


def test_two_ranks_share_their_statistics(tmp_path):
    on_ranks(_share, 2, str(tmp_path))
    logits, target = draw((5, 4, 3, 2), ignore=True)
    for name, (loss, options) in SHARED.items():
        expected = loss(ignore_index=IGNORED, **options)(logits, target)
        (gradient,) = torch.autograd.grad(expected, logits)
        ranks = [torch.load(tmp_path / f'{name}{rank}.pth') for rank in range(2)]
        for value, _, alone in ranks:
            close(value, expected)
            assert (alone - expected).abs() > 1e-6
        # Data-parallel training takes the mean of the gradients over the ranks.
        close(torch.cat([grad for _, grad, _ in ranks]) / 2, gradient)


def test_what_cals_learns_is_that_of_a_loop_and_in_a_checkpoint():
    options = dict(num_classes=4, margin=3.0, rho=2.0, rho_interval=2, rho_max=2.6)
    loss, other = CALSLoss(**options), CALSLoss(4, margin=3.0)
    loss.update(loss.statistics(torch.zeros(0, 4)))  # nothing is learnt from nothing
    multipliers, last, rho = [1e-6] * 4, 0.0, 2.0
    # The penalty of the 4th is far below the one before, so rho stays.
    for number, scale in enumerate([6.0, 6.0, 9.0, 2.0, 9.0, 9.0], 1):
        logits = scale * torch.randn(17, 4, generator=torch.Generator().manual_seed(number))
        multipliers, penalty = references.cals_update(logits.tolist(), multipliers, rho, 3.0)
        if number % 2 == 0 and penalty > 0.9 * last > 0:
            rho = min(2.6, 1.2 * rho)
        last = penalty
        loss.update(loss.statistics(logits[:5]) + loss.statistics(logits[5:]))
        other.load_state_dict(loss.state_dict())
        for each in (loss, other):
            assert each.multipliers.tolist() == pytest.approx(multipliers, rel=1e-5)
            assert each.last_penalty.item() == pytest.approx(penalty, rel=1e-5)
            assert (each.rho.item(), each.num_updates) == (pytest.approx(rho), number)
        assert rho == pytest.approx({1: 2.0, 6: 2.6}.get(number, 2.4))
    eager = CALSLoss(4, rho_interval=1)  # the first penalty has none before it
    eager.update(loss.statistics(logits))
    assert eager.rho == 1


def test_cals_limits_each_derivative():
    loss = CALSLoss(2, margin=0.01)
    loss.update(loss.statistics(torch.tensor([[1e5, 0.0], [0.0, 0.0]])))
    assert loss.multipliers.tolist() == pytest.approx([1e-6, 5e5], rel=1e-5)


def test_a_probability_at_an_edge_is_in_the_upper_bin():
    loss = AdaFocalLoss(num_bins=2, reduction='none')
    loss.update([0.5], [1.0, -5.0])  # the gammas e and, after the switch, -0.2
    expected = 1.5**0.2 * torch.tensor(2.0).log()
    assert loss(torch.zeros(1, 2), torch.tensor([0])).item() == pytest.approx(expected.item())


@pytest.mark.parametrize(
    ('gamma', 'gap', 'expected'),
    [
        (1.0, 0.3, 1.349859),
        (0.25, -0.3, -0.2),  # too close to 0: inverse
        (-0.25, 0.3, 0.2),  # and back
        (-1.0, 0.3, -0.740818),
        (-1.9, -0.3, -2.0),
        (19.0, 0.3, 20.0),
    ],
)
def test_what_ada_focal_learns(gamma, gap, expected):
    loss = AdaFocalLoss(num_bins=2, gamma=gamma)
    loss.update([0.7], [gap, 0.0])
    assert loss.gammas.tolist() == pytest.approx([expected, gamma])
    assert loss.edges.tolist() == pytest.approx([0.7])
