"""Every loss with an oracle written as a loop, for the tests of what holds for all of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import references
import torch

from mmcalib import losses

IGNORED = 255


@dataclass
class Case:
    """How a loss is built, and what it is.

    `oracle` returns the loss of every row, ``(N, *)``, of a batch term one number.
    """

    build: Callable
    oracle: Callable
    shapes: tuple = ((7, 5), (1, 2), (2, 4, 3, 5), (3, 1000))
    soft: bool = True
    batch: bool = False


def draw(shape, dtype=torch.float64, scale=4.0, ignore=False, soft=False, seed=0):
    """Return logits that require a gradient, and a target."""
    generator = torch.Generator().manual_seed(seed)
    logits = (scale * torch.randn(shape, generator=generator, dtype=torch.float64)).to(dtype)
    target = torch.randint(shape[1], (shape[0], *shape[2:]), generator=generator)
    if ignore:
        target.view(-1)[::4] = IGNORED
    if soft:
        target = torch.randn(shape, generator=generator, dtype=torch.float64).softmax(dim=1)
    return logits.requires_grad_(), target


def rows_of(values):
    """Return ``(N, K, *)`` values as lists of K, ``(N, *)`` ones as one list."""
    if values.is_floating_point():
        return values.detach().double().movedim(1, -1).reshape(-1, values.shape[1]).tolist()
    return values.flatten().tolist()


def by_rows(row, **options):
    def oracle(logits, target, weights=None):
        found = [
            0.0 if label == IGNORED else row(values, label, weights=weights, **options)
            for values, label in zip(rows_of(logits), rows_of(target), strict=True)
        ]
        shape = logits.shape[0], *logits.shape[2:]
        return torch.tensor(found, dtype=torch.float64).view(shape)

    return oracle


def by_pixels(kernel, loss):
    """By `loss(values, label, shares, weights)` of each pixel and the shares of its neighbours."""

    def oracle(logits, target, weights=None):
        found = torch.zeros(target.shape, dtype=torch.float64)
        for image, labels in enumerate(target.tolist()):
            shares = references.neighbourhood_shares(labels, logits.shape[1], kernel, IGNORED)
            for y, x in torch.cartesian_prod(*map(torch.arange, target.shape[1:])).tolist():
                if labels[y][x] != IGNORED:
                    values = logits[image, :, y, x].tolist()
                    found[image, y, x] = loss(values, labels[y][x], shares[y][x], weights)
        return found

    return oracle


def svls_kernel(sigma):
    kernel = [
        [math.exp(-(dx * dx + dy * dy) / (2 * sigma**2)) for dx in (-1, 0, 1)] for dy in (-1, 0, 1)
    ]
    kernel[1][1] = sum(map(sum, kernel)) - 1.0
    return kernel


def svls_pixel(values, label, shares, weights):
    return references.label_smoothing_row(values, shares, alpha=0.0, weights=weights)


def nacl_pixel(values, label, shares, weights, alpha=0.3):
    distances = [abs(t - v) for t, v in zip(shares, values, strict=True) if v > -math.inf]
    cross_entropy = references.label_smoothing_row(values, label, alpha=0.0, weights=weights)
    return cross_entropy + alpha * sum(distances) / len(values)


def by_batch(function, per_image=False):
    """By `function(rows, targets, weights)` of all valid rows, or the mean of it over images."""

    def oracle(logits, target, weights=None):
        if per_image and logits.ndim > 2:
            images = [(x, t) for x, t in zip(logits, target, strict=True) if (t != IGNORED).any()]
            return sum(of_all(x[None], t[None]) for x, t in images) / len(images)
        return of_all(logits, target, weights)

    def of_all(logits, target, weights=None):
        rows, labels = rows_of(logits), rows_of(target)
        weights = [1.0] * len(rows) if weights is None else weights.flatten().tolist()
        kept = [i for i, label in enumerate(labels) if label != IGNORED]
        return function(*([x[i] for i in kept] for x in (rows, labels, weights)))

    return oracle


def l1_ace(bins, soft_bins=False):
    return lambda rows, labels, weights: references.l1_ace(rows, labels, bins, soft_bins)


def learnt_cals(multiplier=0.5, **options):
    """Build a loss that has learnt one multiplier, of as many classes as a call has."""

    class AnyCALSLoss(losses.CALSLoss):
        def read(self, pred, *call):
            self.num_classes = pred.shape[1]
            self.multipliers = torch.full((pred.shape[1],), multiplier, device=pred.device)
            return super().read(pred, *call)

    return AnyCALSLoss(num_classes=2, rho=2.0, margin=3.0, **options)


def learnt_ada_focal(**options):
    loss = losses.AdaFocalLoss(num_bins=3, **options)
    loss.gammas.copy_(torch.tensor([-2.0, 1.5, 0.5]))
    loss.edges.copy_(torch.tensor([0.1, 0.7]))
    return loss


def of(kind, row, as_row=None, **options):
    """A case whose loop takes the options of the loss, or those of `as_row`."""
    oracle = by_rows(row, **(options if as_row is None else as_row))
    return Case(lambda **more: kind(**{**options, **more}), oracle)


def of_maps(kind, kernel, pixel, **options):
    build = lambda **more: kind(**{**options, **more})  # noqa: E731
    shapes = (2, 4, 5, 6), (1, 3, 1, 1)
    return Case(build, by_pixels(kernel, pixel), shapes, soft=False)


def of_batches(kind, function, per_image=True, **options):
    oracle = by_batch(function, per_image and kind is losses.L1ACELoss)
    options = options if per_image else dict(per_image=False, **options)
    return Case(lambda **more: kind(**options, **more), oracle, ((7, 5), (2, 4, 3, 5)), batch=True)


def flsd(p):
    return 5.0 if p < 0.2 else 3.0


def steps(p):
    return 4.0 if p < 0.1 else 2.0 if p < 0.6 else 0.5


MBLS, ECP, BSCE = losses.MarginLabelSmoothingLoss, losses.ConfidencePenaltyLoss, losses.BSCELoss
FLSD, margin_row = losses.SampleDependentFocalLoss, references.margin_label_smoothing_row
focal_row, penalty_row = references.softmax_focal_row, references.confidence_penalty_row
SCHEDULE = [(0.1, 4.0), (0.6, 2.0), (1, 0.5)]
ADA = dict(gammas=[-2.0, 1.5, 0.5], edges=[0.1, 0.7])
ROWS = {
    'mbls': of(MBLS, margin_row, margin=6.0, alpha=0.3),
    'mbls m=0, sum': of(MBLS, margin_row, margin=0.0, alpha=0.05, class_reduction='sum'),
    'ls': of(losses.LabelSmoothingLoss, references.label_smoothing_row, alpha=0.2),
    'fl': of(losses.SoftmaxFocalLoss, focal_row, gamma=3.0),
    'fl below 1': of(losses.SoftmaxFocalLoss, focal_row, gamma=0.5),
    'flsd': of(FLSD, focal_row, dict(gamma=flsd)),
    'flsd, own schedule': of(FLSD, focal_row, dict(gamma=steps), schedule=SCHEDULE),
    'ecp': of(ECP, penalty_row, alpha=0.4),
    'ecp, sum': of(ECP, penalty_row, alpha=0.4, class_reduction='sum'),
    'brier': of(losses.BrierLoss, references.brier_row),
    'dual focal': of(losses.DualFocalLoss, references.dual_focal_row, gamma=2.5),
    'inverse focal': of(losses.InverseFocalLoss, references.inverse_focal_row, gamma=1.5),
    'bsce': of(BSCE, references.bsce_row, dict(gamma=0.7, norm=2), gamma=0.7, detach_weight=False),
    'bsce, norm 1': of(
        BSCE, references.bsce_row, dict(gamma=2.0, norm=1), gamma=2.0, norm=1, detach_weight=False
    ),
    'cals': Case(learnt_cals, by_rows(references.cals_row, multipliers=0.5, rho=2.0, margin=3.0)),
    'acls': of(losses.ACLSLoss, references.acls_row, margin=2.0, alpha=0.3, alpha_others=0.4),
    'ada focal': Case(learnt_ada_focal, by_rows(references.ada_focal_row, **ADA), soft=False),
    'svls': of_maps(losses.SVLSLoss, svls_kernel(0.8), svls_pixel, sigma=0.8),
    'nacl': of_maps(losses.NACLLoss, [[1.0] * 3] * 3, nacl_pixel, alpha=0.3),
    'nacl, wide': of_maps(losses.NACLLoss, [[1.0] * 5] * 5, nacl_pixel, alpha=0.3, kernel_size=5),
}
ROWS['dual focal'].soft = False
BATCHES = {
    'mdca': of_batches(losses.MDCALoss, references.mdca),
    'l1 ace': of_batches(losses.L1ACELoss, l1_ace(6), num_bins=6),
    'l1 ace, soft': of_batches(losses.L1ACELoss, l1_ace(5, True), num_bins=5, binning='soft'),
    'l1 ace, all': of_batches(losses.L1ACELoss, l1_ace(6), per_image=False, num_bins=6),
}
CASES = {**ROWS, **BATCHES}
# With these options a loss is cross-entropy.
CROSS_ENTROPY = {
    **{key: dict(alpha=0) for key in ('mbls', 'ls', 'ecp', 'nacl')},
    **{key: dict(gamma=0) for key in ('fl', 'dual focal', 'inverse focal', 'bsce')},
    'flsd': dict(schedule=[(1, 0.0)]),
    'acls': dict(alpha=0, alpha_others=0),
}
