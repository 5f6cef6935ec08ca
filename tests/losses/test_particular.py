"""What holds for one loss alone, and the relations between losses that the paper states."""

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
    MDCALoss,
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


def test_the_margin():
    logits = torch.tensor([[9.0, 0.0, 5.0], [11.0, 0.0, 5.0]], requires_grad=True)
    margin_penalty(logits, 10.0).sum().backward()
    close(logits.grad, torch.tensor([[0.0, 0.0, 0.0], [1 / 3, -1 / 3, 0.0]]))
    logits, target = draw((8, 5))
    mean = margin_label_smoothing(logits, target, margin=2.0, alpha=0.1)
    total = margin_label_smoothing(logits, target, margin=2.0, alpha=0.1 / 5, class_reduction='sum')
    close(total, mean)


def test_defaults_are_the_papers():
    logits, target = draw((8, 5))
    smoothed = F.cross_entropy(logits, target, label_smoothing=0.05)
    close(LabelSmoothingLoss()(logits, target), smoothed)
    log_probs = logits.log_softmax(1)
    entropy = -(log_probs.exp() * log_probs).sum(1).mean() / 5
    ecp = ConfidencePenaltyLoss()(logits, target)
    close(ecp, F.cross_entropy(logits, target) - 0.1 * entropy)


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
