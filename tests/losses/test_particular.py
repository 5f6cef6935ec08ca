"""What holds for one loss alone, and the relations between losses that the paper states."""

import math

import pytest
import torch
import torch.nn.functional as F
from forked import on_ranks
from loss_cases import IGNORED, draw

from mmcalib.losses import (
    ACLSLoss,
    BSCELoss,
    ConfidencePenaltyLoss,
    DualFocalLoss,
    InverseFocalLoss,
    L1ACELoss,
    LabelSmoothingLoss,
    MarginLabelSmoothingLoss,
    MDCALoss,
    SoftmaxFocalLoss,
    SVLSLoss,
    margin_label_smoothing,
    margin_penalty,
)

close = torch.testing.assert_close


@pytest.mark.parametrize('loss', [DualFocalLoss, InverseFocalLoss, BSCELoss])
def test_a_detached_weight_scales_the_gradient_of_cross_entropy(loss):
    logits, target = draw((8, 5))
    rows = F.cross_entropy(logits, target, reduction='none')
    factor = (loss(gamma=2.0, reduction='none')(logits, target) / rows).detach()
    (expected,) = torch.autograd.grad((factor * rows).sum(), logits)
    for detach_weight in (True, False):
        value = loss(gamma=2.0, reduction='sum', detach_weight=detach_weight)(logits, target)
        (gradient,) = torch.autograd.grad(value, logits)
        assert torch.allclose(gradient, expected) == detach_weight


def test_the_gradient_and_the_published_weights_of_acls():
    logits, target = draw((9, 5))
    loss = ACLSLoss(margin=2.0, alpha=0.3, alpha_others=0.4, reduction='sum')
    (gradient,) = torch.autograd.grad(loss(logits, target), logits)
    for row, label, slopes in zip(logits.tolist(), target.tolist(), gradient.tolist(), strict=True):
        probs = torch.tensor(row, dtype=torch.float64).softmax(0).tolist()
        for k, (logit, slope) in enumerate(zip(row, slopes, strict=True)):
            expected = probs[k] - (k == label)
            if logit == max(row):
                expected += 0.3 * 2 * max(0.0, logit - 2.0)
            else:
                expected -= 0.4 * 2 * max(0.0, max(row) - logit - 2.0) / 4
            assert slope == pytest.approx(expected, abs=1e-12)
    # Cross-entropy + 0.1 (1.0 · positive + 0.1 · negative term), with a margin of 10.
    logits, target = torch.tensor([[13.0, 1.0, -1.0]]), torch.tensor([0])
    expected = F.cross_entropy(logits, target) + 0.1 * (9 + 0.1 * (4 + 16) / 2)
    close(ACLSLoss()(logits, target), expected)


@pytest.mark.parametrize('gamma', [0.25, 0.5, 1.0, 3.0])
def test_focal_gradient_is_zero_at_probability_one(gamma):
    logits = torch.tensor([[200.0, 0.0]], requires_grad=True)
    SoftmaxFocalLoss(gamma=gamma)(logits, torch.tensor([0])).backward()
    assert (logits.grad == 0).all()


def test_the_margin():
    logits = torch.tensor([[9.0, 0.0, 5.0], [11.0, 0.0, 5.0]], requires_grad=True)
    margin_penalty(logits, 10.0).sum().backward()
    close(logits.grad, torch.tensor([[0.0, 0.0, 0.0], [1 / 3, -1 / 3, 0.0]]))
    logits, target = draw((8, 5))
    mean = margin_label_smoothing(logits, target, margin=2.0, alpha=0.1)
    total = margin_label_smoothing(logits, target, margin=2.0, alpha=0.1 / 5, class_reduction='sum')
    close(total, mean)
    # MaxSup (Zhou et al., NeurIPS 2025) penalises how far the largest logit is above their mean.
    value = MarginLabelSmoothingLoss(margin=0.0, alpha=0.1)(logits, target)
    penalty = (logits.amax(1) - logits.mean(1)).mean()
    close(value, F.cross_entropy(logits, target) + 0.1 * penalty)


def test_defaults_are_the_papers():
    logits, target = draw((8, 5))
    smoothed = F.cross_entropy(logits, target, label_smoothing=0.05)
    close(LabelSmoothingLoss()(logits, target), smoothed)
    log_probs = logits.log_softmax(1)
    entropy = -(log_probs.exp() * log_probs).sum(1).mean() / 5
    ecp = ConfidencePenaltyLoss()(logits, target)
    close(ecp, F.cross_entropy(logits, target) - 0.1 * entropy)


class TestSection4:
    """The relations between the losses that the paper states."""

    logits, target = draw((200, 7), scale=5.0)
    logits = logits.detach()
    log_probs = logits.log_softmax(1)
    kl = -math.log(7) - log_probs.mean(1)  # KL(u || s)

    def test_label_smoothing_is_cross_entropy_plus_kl(self):  # Eq. 4
        rows = LabelSmoothingLoss(alpha=0.05, reduction='none')(self.logits, self.target)
        cross_entropy = F.cross_entropy(self.logits, self.target, reduction='none')
        close(rows / 0.95, cross_entropy + 0.05 / 0.95 * (self.kl + math.log(7)))

    def test_proposition_1(self):
        mean_distance = margin_penalty(self.logits, 0.0)
        assert (self.kl <= mean_distance + 1e-12).all()
        assert (mean_distance <= self.kl + math.log(7) + 1e-12).all()

    @pytest.mark.parametrize('gamma', [1.0, 2.0, 3.0])
    def test_focal_loss_is_at_least_cross_entropy_less_entropy(self, gamma):  # Eq. 5
        rows = SoftmaxFocalLoss(gamma=gamma, reduction='none')(self.logits, self.target)
        cross_entropy = F.cross_entropy(self.logits, self.target, reduction='none')
        entropy = -(self.log_probs.exp() * self.log_probs).sum(1)
        assert (rows >= cross_entropy - gamma * entropy - 1e-12).all()


def test_the_own_label_keeps_half_of_svls():
    logits = torch.randn(1, 4, 6, 6)
    target = torch.full((1, 6, 6), 2)
    close(SVLSLoss()(logits, target), F.cross_entropy(logits, target))
    # A pixel alone: against a logit gap of g, its loss is half of g beyond that of its own label.
    target[0, 3, 3] = 1
    sharp = 50 * F.one_hot(target, 4).movedim(-1, 1).float()
    rows = SVLSLoss(reduction='none')(sharp, target)
    assert rows[0, 3, 3].item() == pytest.approx(25, rel=1e-3)


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
