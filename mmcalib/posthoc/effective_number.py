"""How many independent predictions the pixels of images amount to."""

from __future__ import annotations

from torch import Tensor


def effective_number(slopes: Tensor, groups: Tensor | None) -> float:
    r"""Return how many independent rows would determine a parameter as well as dependent ones.

    .. math:: N_\mathrm{eff} = N \sum_i s_i^2 \Big/ \sum_g \Big(\sum_{i \in g} s_i\Big)^2

    with the slope :math:`s_i` of each row's NLL in the parameter, less their mean: the ratio of the
    variance that independent rows would have to that of independent groups. It is N divided by the
    design effect of cluster sampling.

    Source: Kish, Survey Sampling, 1965; the variances are those of White, 1980, and Liang and
    Zeger, 1986.

    Args:
        slopes: ``(N,)``.
        groups: ``(N,)`` integers, the image of each row. None if all are independent.

    Returns:
        From 1 to N.
    """
    count = len(slopes)
    if groups is None:
        return float(count)
    slopes = slopes - slopes.mean()
    independent = slopes.square().sum().item()
    sums = group_sums(slopes, groups)
    if len(sums) == 1 or independent == 0:
        return float(len(sums))
    return min(max(count * independent / sums.square().sum().item(), 1.0), float(count))


def group_sums(values: Tensor, groups: Tensor) -> Tensor:
    """Return the sum of ``(N,)`` values for each group, in the order of the groups' numbers."""
    index = groups.unique(return_inverse=True)[1].to(values.device)
    return values.new_zeros(int(index.max()) + 1).index_add_(0, index, values)
