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
    """A loss and its oracle.

    Attributes:
        build: Function from options to the loss.
        oracle: Function from logits, target and weights to the loss of every row, ``(N, *)``, or to
            one number for a batch term.
        shapes: Shapes of logits to test.
        soft: Whether the target may be probabilities.
        batch: Whether the loss is a term of a whole batch.
    """

    build: Callable
    oracle: Callable
    shapes: tuple = ((7, 5), (1, 2), (2, 4, 3, 5), (3, 1000))
    soft: bool = True
    batch: bool = False


def draw(shape, dtype=torch.float64, scale=4.0, ignore=False, soft=False, seed=0):
    """Return logits that require a gradient, and a target."""
    torch.manual_seed(seed)
    logits = (scale * torch.randn(shape, dtype=torch.float64)).to(dtype)
    target = torch.randint(shape[1], (shape[0], *shape[2:]))
    if ignore:
        target.view(-1)[::4] = IGNORED
    if soft:
        target = torch.randn(shape, dtype=torch.float64).softmax(dim=1)
    return logits.requires_grad_(), target


def arrays(logits, target, kernel=None):
    """Return logits and class shares of the target, ``(M, K)``, and which of the M rows are valid.

    With a kernel, the shares are those of the labels around each pixel.
    """
    logits = logits.detach().double()
    valid = torch.ones(logits[:, 0].shape, dtype=torch.bool)
    if not target.is_floating_point():
        valid = target != IGNORED
        one_hot = [target.unsqueeze(1) == k for k in range(logits.shape[1])]
        target = torch.cat(one_hot, dim=1).double()
    if kernel is not None:
        around = ndimage.convolve(target.numpy(), kernel[None, None], mode='constant')
        target = torch.from_numpy(around / np.maximum(around.sum(axis=1, keepdims=True), 1e-9))
    return as_rows(logits), as_rows(target), valid.flatten().numpy()


def as_rows(maps):
    """Return ``(N, K, *)`` maps as a ``(M, K)`` array."""
    return maps.movedim(1, -1).reshape(-1, maps.shape[1]).numpy()


def row_oracle(row, kernel=None, **options):
    """Return an oracle of a loss by `row(logits, class shares, class weights)`.

    With a kernel, `row` also takes the class shares around the pixel, before the weights.
    """

    def oracle(logits, target, weights=None):
        z, shares, valid = arrays(logits, target)
        columns = [z, shares]
        if kernel is not None:
            columns.append(arrays(logits, target, kernel)[1])
        weights = np.ones(z.shape[1]) if weights is None else np.array(weights)
        values = []
        for is_valid, *cells in zip(valid, *columns, strict=True):
            values.append(row(*cells, weights, **options) if is_valid else 0.0)
        return torch.tensor(values, dtype=torch.float64).view(logits[:, 0].shape)

    return oracle


def batch_oracle(function, per_image=False, **options):
    """Return an oracle by `function(logits, shares, weights)` of all valid rows.

    With `per_image`, it is the mean of the function over images with a valid pixel.
    """

    def oracle(logits, target, weight=None):
        if not per_image or logits.ndim == 2:
            return batch_value(logits, target, weight)
        values = []
        for image, image_target in zip(logits, target, strict=True):
            if (image_target != IGNORED).any():
                values.append(batch_value(image[None], image_target[None]))
        return sum(values) / len(values)

    def batch_value(logits, target, weight=None):
        z, shares, valid = arrays(logits, target)
        weight = np.ones(len(z)) if weight is None else weight.flatten().numpy()
        return function(z[valid], shares[valid], weight[valid], **options)

    return oracle


def cross_entropy(z, y, w):
    """Return the cross-entropy of one row; classes with a share of 0 are left out, also at -inf."""
    return -(w * y)[y > 0] @ log_softmax(z)[y > 0]


def margin_row(z, y, w, margin, alpha, class_reduction='mean'):
    """Return the loss of one row by Eq. 7 of the paper."""
    excess = np.maximum(0, z.max() - z[z > -math.inf] - margin).sum()
    size = len(z) if class_reduction == 'mean' else 1
    return cross_entropy(z, y, w) + alpha * excess / size


def smoothing_row(z, y, w, alpha):
    """Return the loss of one row by Eq. 3 of the paper."""
    uniform = -log_softmax(z)[z > -math.inf].sum() / len(z)
    return (1 - alpha) * cross_entropy(z, y, w) + alpha * uniform


def penalty_row(z, y, w, alpha, class_reduction='mean'):
    size = len(z) if class_reduction == 'mean' else 1
    return cross_entropy(z, y, w) - alpha * entr(softmax(z)).sum() / size


def focal_row(z, y, w, gamma):
    """Return the focal loss of one row; `gamma` is a number, or a function of the probability."""
    p = softmax(z)
    power = np.vectorize(gamma)(p) if callable(gamma) else gamma
    return cross_entropy(z, y, w * (1 - p) ** power)


def inverse_focal_row(z, y, w, gamma):
    return cross_entropy(z, y, w * (1 + softmax(z)) ** gamma)


def brier_row(z, y, w):
    return ((softmax(z) - y) ** 2).sum() * (w @ y)


def dual_focal_row(z, y, w, gamma):
    p = softmax(z)
    label_prob = p[y.argmax()]
    next_prob = p[p < label_prob].max(initial=0)
    return (1 - label_prob + next_prob) ** gamma * cross_entropy(z, y, w)


def bsce_row(z, y, w, gamma, norm):
    return (abs(softmax(z) - y) ** norm).sum() ** gamma * cross_entropy(z, y, w)


def acls_row(z, y, w, margin, alpha, alpha_others):
    top = z.max()
    others = np.delete(z, z.argmax())
    squares = np.maximum(0, top - others[others > -math.inf] - margin) ** 2
    penalty = alpha * max(0, top - margin) ** 2 + alpha_others * squares.sum() / len(others)
    return cross_entropy(z, y, w) + penalty


def ada_focal_row(z, y, w, gammas, edges):
    p = softmax(z)[y.argmax()]
    gamma = gammas[np.searchsorted(edges, p, side='right')]
    base = 1 - p if gamma > 0 else 1 + p
    return base ** abs(gamma) * cross_entropy(z, y, w)


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
    """Return the mean over classes of their calibration error over non-empty bins [lo, hi)."""
    errors = []
    for p, is_label in zip(softmax(z, axis=1).T, y.T, strict=True):
        position = np.clip(p * bins - 0.5, 0, bins - 1) if soft else np.floor(p * bins)
        membership = np.maximum(0, 1 - abs(position[:, None] - range(bins)))
        count = membership.sum(axis=0)
        gaps = abs(membership.T @ (p - is_label)) / np.maximum(count, 1e-30)
        weight = np.minimum(count, 1)
        errors.append(gaps @ weight / weight.sum())
    return np.mean(errors)


MULTIPLIERS = torch.arange(1000.0) % 4 / 4


class AnyCALSLoss(losses.CALSLoss):
    """CALS with learnt multipliers for as many classes as a call has."""

    def prepare_call(self, pred, *call):
        self.multipliers = MULTIPLIERS[: pred.shape[1]].to(pred.device)
        return super().prepare_call(pred, *call)


def learnt_ada_focal(**options):
    loss = losses.AdaFocalLoss(num_bins=3, **options)
    loss.gammas.copy_(torch.tensor(ADA['gammas']))
    loss.edges.copy_(torch.tensor(ADA['edges']))
    return loss


def row_case(kind, row, row_options=None, kernel=None, **options):
    """Return a case with a loop over rows, whose options are the loss's unless given."""
    oracle = row_oracle(row, kernel, **(options if row_options is None else row_options))

    def build(**changes):
        return kind(**{**options, **changes})

    if kernel is None:
        return Case(build, oracle)
    return Case(build, oracle, shapes=((2, 4, 5, 6), (1, 3, 1, 1)), soft=False)


def batch_case(kind, function, function_options, **options):
    per_image = kind is ACE and options.get('per_image', True)
    return Case(
        build=lambda **changes: kind(**options, **changes),
        oracle=batch_oracle(function, per_image, **function_options),
        shapes=((7, 5), (2, 4, 3, 5)),
        batch=True,
    )


def flsd(p):
    return 5.0 if p < 0.2 else 3.0


def steps(p):
    if p < 0.1:
        return 4.0
    if p < 0.6:
        return 2.0
    return 0.5


GAUSS = np.exp(-np.array([[2, 1, 2], [1, 0, 1], [2, 1, 2]]) / (2 * 0.8**2))
GAUSS[1, 1] = GAUSS.sum() - 1
MBLS = losses.MarginLabelSmoothingLoss
ECP = losses.ConfidencePenaltyLoss
BSCE = losses.BSCELoss
FLSD = losses.SampleDependentFocalLoss
NACL = losses.NACLLoss
ACE = losses.L1ACELoss
SCHEDULE = [(0.1, 4.0), (0.6, 2.0), (1, 0.5)]
CALS = dict(rho=2.0, margin=3.0)
ADA = dict(gammas=[-2.0, 1.5, 0.5], edges=[0.1, 0.7])
ROWS = {
    'mbls': row_case(MBLS, margin_row, margin=6.0, alpha=0.3),
    'mbls m=0, sum': row_case(MBLS, margin_row, margin=0.0, alpha=0.05, class_reduction='sum'),
    'ls': row_case(losses.LabelSmoothingLoss, smoothing_row, alpha=0.2),
    'fl': row_case(losses.SoftmaxFocalLoss, focal_row, gamma=3.0),
    'fl below 1': row_case(losses.SoftmaxFocalLoss, focal_row, gamma=0.5),
    'flsd': row_case(FLSD, focal_row, dict(gamma=flsd)),
    'flsd, own schedule': row_case(FLSD, focal_row, dict(gamma=steps), schedule=SCHEDULE),
    'ecp': row_case(ECP, penalty_row, alpha=0.4),
    'ecp, sum': row_case(ECP, penalty_row, alpha=0.4, class_reduction='sum'),
    'brier': row_case(losses.BrierLoss, brier_row),
    'dual focal': row_case(losses.DualFocalLoss, dual_focal_row, gamma=2.5),
    'inverse focal': row_case(losses.InverseFocalLoss, inverse_focal_row, gamma=1.5),
    'bsce': row_case(BSCE, bsce_row, dict(gamma=0.7, norm=2), gamma=0.7, detach_weight=False),
    'bsce, norm 1': row_case(
        BSCE, bsce_row, dict(gamma=2.0, norm=1), gamma=2.0, norm=1, detach_weight=False
    ),
    'cals': row_case(AnyCALSLoss, cals_row, CALS, num_classes=2, **CALS),
    'acls': row_case(losses.ACLSLoss, acls_row, margin=2.0, alpha=0.3, alpha_others=0.4),
    'ada focal': Case(learnt_ada_focal, row_oracle(ada_focal_row, **ADA), soft=False),
    'svls': row_case(losses.SVLSLoss, svls_row, {}, GAUSS, sigma=0.8),
    'nacl': row_case(NACL, nacl_row, kernel=np.ones((3, 3)), alpha=0.3),
    'nacl, wide': row_case(
        NACL, nacl_row, dict(alpha=0.3), np.ones((5, 5)), alpha=0.3, kernel_size=5
    ),
}
ROWS['dual focal'].soft = False
BATCHES = {
    'mdca': batch_case(losses.MDCALoss, mdca, {}),
    'l1 ace': batch_case(ACE, l1_ace, dict(bins=6), num_bins=6),
    'l1 ace, soft': batch_case(ACE, l1_ace, dict(bins=5, soft=True), num_bins=5, binning='soft'),
    'l1 ace, all': batch_case(ACE, l1_ace, dict(bins=6), num_bins=6, per_image=False),
}
CASES = {**ROWS, **BATCHES}
# With these options a loss is cross-entropy.
CROSS_ENTROPY = {
    **{key: dict(alpha=0) for key in ('mbls', 'ls', 'ecp', 'nacl')},
    **{key: dict(gamma=0) for key in ('fl', 'dual focal', 'inverse focal', 'bsce')},
    'flsd': dict(schedule=[(1, 0.0)]),
    'acls': dict(alpha=0, alpha_others=0),
}
