r"""The predictions that a scaling is fitted to, and the slopes of their negative log-likelihood.

They are :class:`~mmcalib.predictions.image_predictions.ImagePredictions` of rows ``(M, K)``, all of
which are valid; their ``images`` are the groups, whose rows are not independent.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mmcalib.errors import UserError
from mmcalib.posthoc.logits import gaps_to_top
from mmcalib.predictions.arrays import as_tensor
from mmcalib.predictions.contract import Contract, check_no_shares
from mmcalib.predictions.image_predictions import ImagePredictions

# Parts of so many logits fit a cache: a temperature of 200,000 × 21 takes 0.55 s, in one part 1.2.
PART_VALUES = 250_000


def read_rows(
    logits: Any,
    labels: Any,
    groups: Any = None,
    ignore_index: int | None = None,
    valid: Tensor | None = None,
) -> ImagePredictions:
    """Return the valid predictions in arrays, see :meth:`mmcalib.posthoc.LogitScaler.fit`."""
    labels = as_tensor('labels', labels)
    check_no_shares(labels)
    if labels.is_floating_point() or labels.is_complex():
        raise TypeError(f'labels must be integers, got {labels.dtype}')
    contract = Contract(door='fit', ignore_index=ignore_index, takes_several_labels=False)
    predictions = contract.read(as_tensor('logits', logits), labels, valid=valid)
    columns = {
        'predicted': predictions.predicted.flatten(),
        'logits': predictions.logits.movedim(1, -1).flatten(0, -2),
        'labels': predictions.labels.flatten(),
        'images': read_groups(groups, predictions.labels).flatten(),
    }
    valid = columns['labels'] >= 0
    for name, values in columns.items():
        if not valid.all():
            columns[name] = values[valid]
        elif values.is_inference():  # Autograd does not take tensors of inference mode.
            columns[name] = values.clone()
    if not columns['logits'].numel():
        raise UserError(
            f'there is nothing to fit: no prediction of {tuple(predictions.logits.shape)} counts'
        )
    columns['images'] = columns['images'].cpu()
    return ImagePredictions(**columns)


def read_groups(groups: Any, labels: Tensor) -> Tensor:
    """Return the index of each prediction's group, shaped as the labels.

    Args:
        groups: ``(N,)`` numbers or names. None if each row is a group of its own; the pixels of a
            map are always of one group.
        labels: ``(N, *)``.
    """
    if groups is None:
        groups = np.arange(len(labels))
    elif torch.is_tensor(groups):
        groups = groups.cpu()
    group_index = torch.from_numpy(np.unique(groups, return_inverse=True)[1])
    if len(group_index) != len(labels):
        raise ValueError(f'groups must be ({len(labels)},), one for each row or map')
    pixel_axes = [1] * (labels.ndim - 1)
    return group_index.to(labels.device).view(-1, *pixel_axes).expand(labels.shape)


def split_rows(logits: Tensor, *columns: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Yield logits ``(M, K)`` and other values of each row, in parts that fit a cache."""
    size = max(PART_VALUES // logits.shape[1], 1)
    parts = [values.split(size) for values in (logits, *columns)]
    return zip(*parts, strict=True)


def logits_for_passes(logits: Tensor) -> Tensor:
    """Return logits ``(M, K)`` in the precision of a fit's passes.

    Of logits in float32 it is float32, which is faster. The highest logit of each prediction is
    taken away, which softmaxes ignore, and which keeps the digits of the others.
    """
    if logits.dtype != torch.float32:
        return logits.double()
    gaps = logits if logits.shape[1] == 1 else gaps_to_top(logits)
    return gaps if gaps.sum().isfinite() else logits.double()


@torch.no_grad()
def nll_derivatives(rows: ImagePredictions, beta: float | Tensor) -> tuple[Tensor, Tensor]:
    """Return the slope and the curvature of each row's NLL in 1/T, at 1/T = `beta`, ``(M,)`` each.

    The slope is the mean of the logits under the softmax less the true class's logit, and the
    curvature is their variance. Both are float64. Of logits in float32 each row is computed in
    float32, which takes 0.4 to 0.8 of the time and changes a temperature by less than 1e-6 of it.

    Args:
        rows: The predictions.
        beta: 1/T, a number for all rows, or ``(M,)``.
    """
    if not torch.is_tensor(beta):
        beta = torch.full_like(rows.labels, beta, dtype=torch.float64)
    if rows.logits.dtype == torch.float32:
        slopes, curvatures = _nll_derivatives(rows, beta, torch.float32)
        # Masked classes are infinite, and differences of logits near 3e38 beyond float32.
        if curvatures.sum().isfinite():
            return slopes, curvatures
    return _nll_derivatives(rows, beta, torch.float64)


def _nll_derivatives(
    rows: ImagePredictions, beta: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    slopes = []
    curvatures = []
    for logits, labels, part_beta in split_rows(rows.logits, rows.labels, beta.to(dtype)):
        gaps = gaps_to_top(logits.to(dtype))
        if dtype == torch.float64:  # A masked class adds nothing, where 0 times -inf would be NaN.
            gaps = gaps.clamp_(min=torch.finfo(dtype).min)
        terms = (gaps * part_beta[:, None]).exp_()
        total = terms.sum(dim=1)
        mean = terms.mul_(gaps).sum(dim=1) / total
        mean_square = terms.mul_(gaps).sum(dim=1) / total
        label_gap = gaps.gather(1, labels[:, None])[:, 0]
        slopes.append((mean - label_gap).double())
        curvatures.append((mean_square - mean.square()).double())
    return torch.cat(slopes), torch.cat(curvatures)


def effective_weights(
    rows: ImagePredictions, beta: float, *, by_predicted_class: bool = False
) -> Tensor:
    """Return how many effective predictions each row counts as, ``(M,)``.

    Args:
        rows: The predictions.
        beta: The 1/T of the slopes, see :func:`effective_number`.
        by_predicted_class: Whether the predictions of each class have an effective number of their
            own.
    """
    slopes, _ = nll_derivatives(rows, beta)
    if not by_predicted_class:
        number = effective_number(slopes, rows.images)
        return torch.full_like(slopes, number / len(slopes))
    weights = torch.empty_like(slopes)
    for label in rows.predicted.unique():
        is_label = rows.predicted == label
        number = effective_number(slopes[is_label], rows.images[is_label.cpu()])
        weights[is_label] = number / int(is_label.sum())
    return weights


def effective_number(slopes: Tensor, groups: Tensor) -> float:
    r"""Return how many independent rows would determine a parameter as well as dependent ones.

    .. math:: N_\mathrm{eff} = N \sum_i s_i^2 \Big/ \sum_g \Big(\sum_{i \in g} s_i\Big)^2

    with the slope :math:`s_i` of each row's NLL in the parameter, less their mean: the ratio of the
    variance that independent rows would have to that of independent groups. It is N divided by the
    design effect of cluster sampling.

    Source: Kish, Survey Sampling, 1965; the variances are those of White, 1980, and Liang and
    Zeger, 1986.

    Args:
        slopes: ``(N,)``.
        groups: ``(N,)`` integers, the image of each row.

    Returns:
        From 1 to N.
    """
    slopes = slopes - slopes.mean()
    independent_variance = slopes.square().sum().item()
    sums = group_sums(slopes, groups)
    if len(sums) in (1, len(slopes)) or independent_variance == 0:
        return float(len(sums))
    number = len(slopes) * independent_variance / sums.square().sum().item()
    return min(max(number, 1.0), float(len(slopes)))


def group_sums(values: Tensor, groups: Tensor) -> Tensor:
    """Return the sum of ``(N,)`` values for each group, in the order of the groups' numbers."""
    group_index = groups.unique(return_inverse=True)[1].to(values.device)
    num_groups = int(group_index.max()) + 1
    return values.new_zeros(num_groups).index_add_(0, group_index, values)
