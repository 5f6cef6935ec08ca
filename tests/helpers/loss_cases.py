"""Every loss with an oracle that goes through its rows, for the tests of what holds for all."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import references
import torch
from scipy import ndimage
from scipy.special import entr, log_softmax, softmax

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


def arrays(logits, target, kernel=None):
    """Return logits and shares of the target, ``(M, K)``, and which of the M rows count.

    With a kernel, the shares are those of the labels around each pixel.
    """
    logits = logits.detach().double()
    valid = torch.ones(logits[:, 0].shape, dtype=torch.bool)
    if not target.is_floating_point():
        valid, labels = target != IGNORED, target.unsqueeze(1)
        target = torch.cat([labels == k for k in range(logits.shape[1])], dim=1).double()
    if kernel is not None:
        around = ndimage.convolve(target.numpy(), kernel[None, None], mode='constant')
        target = torch.from_numpy(around / np.maximum(around.sum(axis=1, keepdims=True), 1e-9))
    rows = (x.movedim(1, -1).reshape(-1, x.shape[1]).numpy() for x in (logits, target))
    return *rows, valid.flatten().numpy()


def by_rows(row, kernel=None, **options):
    """By `row(logits, label's shares, weights of the classes)`, and the shares around a pixel."""

    def oracle(logits, target, weights=None):
        z, shares, valid = arrays(logits, target)
        columns = [z, shares] if kernel is None else [z, shares, arrays(logits, target, kernel)[1]]
        weights = np.ones(z.shape[1]) if weights is None else np.array(weights)
        found = [
            row(*each, weights, **options) if counts else 0.0
            for counts, *each in zip(valid, *columns, strict=True)
        ]
        return torch.tensor(found, dtype=torch.float64).view(logits[:, 0].shape)

    return oracle


def by_batch(function, per_image=False, **options):
    """By `function(logits, shares, weights)` of all valid rows, or the mean of it over images."""

    def oracle(logits, target, weight=None):
        if per_image and logits.ndim > 2:
            images = [(x, t) for x, t in zip(logits, target, strict=True) if (t != IGNORED).any()]
            return sum(of_all(x[None], t[None]) for x, t in images) / len(images)
        return of_all(logits, target, weight)

    def of_all(logits, target, weight=None):
        z, shares, valid = arrays(logits, target)
        weight = np.ones(len(z)) if weight is None else weight.flatten().numpy()
        return function(z[valid], shares[valid], weight[valid], **options)

    return oracle


def cross_entropy(z, y, w):
    """Of one row; a share of 0 counts for nothing."""
    return -(w * y)[y > 0] @ log_softmax(z)[y > 0]


def margin_row(z, y, w, margin, alpha, class_reduction='mean'):
    """Eq. 7 of the paper."""
    excess = np.maximum(0, z.max() - z[z > -math.inf] - margin).sum()
    size = len(z) if class_reduction == 'mean' else 1
    return cross_entropy(z, y, w) + alpha * excess / size


def smoothing_row(z, y, w, alpha):
    """Eq. 3 of the paper."""
    uniform = -log_softmax(z)[z > -math.inf].sum() / len(z)
    return (1 - alpha) * cross_entropy(z, y, w) + alpha * uniform


def penalty_row(z, y, w, alpha, class_reduction='mean'):
    size = len(z) if class_reduction == 'mean' else 1
    return cross_entropy(z, y, w) - alpha * entr(softmax(z)).sum() / size


def focal_row(z, y, w, gamma):
    """`gamma` is a number, or a function of the probability."""
    p = softmax(z)
    power = np.vectorize(gamma)(p) if callable(gamma) else gamma
    return cross_entropy(z, y, w * (1 - p) ** power)


def inverse_focal_row(z, y, w, gamma):
    return cross_entropy(z, y, w * (1 + softmax(z)) ** gamma)


def brier_row(z, y, w):
    return ((softmax(z) - y) ** 2).sum() * (w @ y)


def dual_focal_row(z, y, w, gamma):
    p = softmax(z)
    own = p[y.argmax()]
    return (1 - own + p[p < own].max(initial=0)) ** gamma * cross_entropy(z, y, w)


def bsce_row(z, y, w, gamma, norm):
    return (abs(softmax(z) - y) ** norm).sum() ** gamma * cross_entropy(z, y, w)


def acls_row(z, y, w, margin, alpha, alpha_others):
    top, others = z.max(), np.delete(z, z.argmax())
    squares = np.maximum(0, top - others[others > -math.inf] - margin) ** 2
    penalty = alpha * max(0, top - margin) ** 2 + alpha_others * squares.sum() / len(others)
    return cross_entropy(z, y, w) + penalty


def ada_focal_row(z, y, w, gammas, edges):
    p = softmax(z)[y.argmax()]
    gamma = gammas[np.searchsorted(edges, p, side='right')]
    return (1 - p if gamma > 0 else 1 + p) ** abs(gamma) * cross_entropy(z, y, w)


def cals_row(z, y, w, rho, margin):
    penalty = references.cals_penalty(z, MULTIPLIERS[: len(z)].numpy(), rho, margin)
    return cross_entropy(z, y, w) + penalty.sum()


def svls_row(z, y, near, w):
    return cross_entropy(z, near, w)


def nacl_row(z, y, near, w, alpha):
    distance = abs(near - z)[z > -math.inf].sum() / len(z)
    return cross_entropy(z, y, w) + alpha * distance


def mdca(z, y, w):
    return abs(np.average(softmax(z, axis=1) - y, axis=0, weights=w)).mean()


def l1_ace(z, y, w, bins, soft=False):
    """Average calibration error of each class over its non-empty bins [lo, hi), then over K."""
    errors = []
    for p, own in zip(softmax(z, axis=1).T, y.T, strict=True):
        place = np.clip(p * bins - 0.5, 0, bins - 1) if soft else np.floor(p * bins)
        part = np.maximum(0, 1 - abs(place[:, None] - range(bins)))  # of each row in each bin
        count = part.sum(axis=0)
        gaps, filled = abs(part.T @ (p - own)) / np.maximum(count, 1e-30), np.minimum(count, 1)
        errors.append(gaps @ filled / filled.sum())
    return np.mean(errors)


MULTIPLIERS = torch.arange(1000.0) % 4 / 4


class AnyCALSLoss(losses.CALSLoss):
    """Has learnt the multipliers of as many classes as a call has."""

    def prepare_call(self, pred, *call):
        self.multipliers = MULTIPLIERS[: pred.shape[1]].to(pred.device)
        return super().prepare_call(pred, *call)


def learnt_ada_focal(**options):
    loss = losses.AdaFocalLoss(num_bins=3, **options)
    loss.gammas.copy_(torch.tensor(ADA['gammas']))
    loss.edges.copy_(torch.tensor(ADA['edges']))
    return loss


def of(kind, row, as_row=None, kernel=None, **options):
    """A case whose loop takes the options of the loss, or those of `as_row`."""
    oracle = by_rows(row, kernel, **(options if as_row is None else as_row))
    more = {} if kernel is None else dict(shapes=((2, 4, 5, 6), (1, 3, 1, 1)), soft=False)
    return Case(lambda **own: kind(**{**options, **own}), oracle, **more)


def of_batches(kind, function, as_function, **options):
    per_image = kind is ACE and options.get('per_image', True)
    oracle = by_batch(function, per_image, **as_function)
    return Case(lambda **own: kind(**options, **own), oracle, ((7, 5), (2, 4, 3, 5)), batch=True)


def flsd(p):
    return 5.0 if p < 0.2 else 3.0


def steps(p):
    return 4.0 if p < 0.1 else 2.0 if p < 0.6 else 0.5


GAUSS = np.exp(-np.array([[2, 1, 2], [1, 0, 1], [2, 1, 2]]) / (2 * 0.8**2))
GAUSS[1, 1] = GAUSS.sum() - 1
MBLS, ECP, BSCE = losses.MarginLabelSmoothingLoss, losses.ConfidencePenaltyLoss, losses.BSCELoss
FLSD, NACL, ACE = losses.SampleDependentFocalLoss, losses.NACLLoss, losses.L1ACELoss
SCHEDULE = [(0.1, 4.0), (0.6, 2.0), (1, 0.5)]
CALS, ADA = dict(rho=2.0, margin=3.0), dict(gammas=[-2.0, 1.5, 0.5], edges=[0.1, 0.7])
ROWS = {
    'mbls': of(MBLS, margin_row, margin=6.0, alpha=0.3),
    'mbls m=0, sum': of(MBLS, margin_row, margin=0.0, alpha=0.05, class_reduction='sum'),
    'ls': of(losses.LabelSmoothingLoss, smoothing_row, alpha=0.2),
    'fl': of(losses.SoftmaxFocalLoss, focal_row, gamma=3.0),
    'fl below 1': of(losses.SoftmaxFocalLoss, focal_row, gamma=0.5),
    'flsd': of(FLSD, focal_row, dict(gamma=flsd)),
    'flsd, own schedule': of(FLSD, focal_row, dict(gamma=steps), schedule=SCHEDULE),
    'ecp': of(ECP, penalty_row, alpha=0.4),
    'ecp, sum': of(ECP, penalty_row, alpha=0.4, class_reduction='sum'),
    'brier': of(losses.BrierLoss, brier_row),
    'dual focal': of(losses.DualFocalLoss, dual_focal_row, gamma=2.5),
    'inverse focal': of(losses.InverseFocalLoss, inverse_focal_row, gamma=1.5),
    'bsce': of(BSCE, bsce_row, dict(gamma=0.7, norm=2), gamma=0.7, detach_weight=False),
    'bsce, norm 1': of(
        BSCE, bsce_row, dict(gamma=2.0, norm=1), gamma=2.0, norm=1, detach_weight=False
    ),
    'cals': of(AnyCALSLoss, cals_row, CALS, num_classes=2, **CALS),
    'acls': of(losses.ACLSLoss, acls_row, margin=2.0, alpha=0.3, alpha_others=0.4),
    'ada focal': Case(learnt_ada_focal, by_rows(ada_focal_row, **ADA), soft=False),
    'svls': of(losses.SVLSLoss, svls_row, {}, GAUSS, sigma=0.8),
    'nacl': of(NACL, nacl_row, kernel=np.ones((3, 3)), alpha=0.3),
    'nacl, wide': of(NACL, nacl_row, dict(alpha=0.3), np.ones((5, 5)), alpha=0.3, kernel_size=5),
}
ROWS['dual focal'].soft = False
BATCHES = {
    'mdca': of_batches(losses.MDCALoss, mdca, {}),
    'l1 ace': of_batches(ACE, l1_ace, dict(bins=6), num_bins=6),
    'l1 ace, soft': of_batches(ACE, l1_ace, dict(bins=5, soft=True), num_bins=5, binning='soft'),
    'l1 ace, all': of_batches(ACE, l1_ace, dict(bins=6), num_bins=6, per_image=False),
}
CASES = {**ROWS, **BATCHES}
# With these options a loss is cross-entropy.
CROSS_ENTROPY = {
    **{key: dict(alpha=0) for key in ('mbls', 'ls', 'ecp', 'nacl')},
    **{key: dict(gamma=0) for key in ('fl', 'dual focal', 'inverse focal', 'bsce')},
    'flsd': dict(schedule=[(1, 0.0)]),
    'acls': dict(alpha=0, alpha_others=0),
}
