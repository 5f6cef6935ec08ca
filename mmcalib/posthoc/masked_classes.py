"""Classes that a model masks by a large negative logit, which some scalings cannot take."""

from __future__ import annotations

import torch
from torch import Tensor

from mmcalib.errors import UserError
from mmcalib.posthoc.fit_rows import split_rows
from mmcalib.posthoc.logits import gaps_to_top
from mmcalib.posthoc.temperature_search import TEMPERATURE_BOUNDS
from mmcalib.texts import named_classes

# No network has a class so many temperatures below the highest logit in every row.
FAR = 1000.0


def check_no_masked_class(logits: Tensor, temperature: float) -> None:
    """Raise a UserError for a class that is masked in every row: a wrong number would be fitted.

    A logit such as -1e9 moves the mean of a row's logits, in whose rounding the others vanish.

    Args:
        logits: ``(M, K)``.
        temperature: The temperature of the least NLL.
    """
    # The lower bound, where no prediction is wrong, is no unit of the logits.
    if logits.shape[1] == 1 or temperature == TEMPERATURE_BOUNDS[0]:
        return
    limit = FAR * temperature
    lowest, highest = logits.aminmax()
    if highest - lowest <= limit:  # One pass spares nearly all fits the gaps of each row.
        return
    gaps_of_parts = [gaps_to_top(part).amax(dim=0) for (part,) in split_rows(logits)]
    least_gaps = -torch.stack(gaps_of_parts).amax(dim=0)
    is_masked = least_gaps > limit
    if not is_masked.any():
        return
    classes = is_masked.nonzero().flatten().tolist()
    verb = 'is' if len(classes) == 1 else 'are'
    raise UserError(
        f'{named_classes(classes)} {verb} masked, {least_gaps[is_masked].min().item():.3g} or more '
        'below the highest logit of every row: leave masked classes out of logits and labels, or '
        'take a temperature'
    )


def check_not_infinite(logits: Tensor, scaled: Tensor, method: str) -> None:
    """Raise a UserError for predictions with a logit of -inf whose scaled ones are NaN.

    Args:
        logits: ``(N, K, *)``.
        scaled: The scaled logits.
        method: The method that cannot take such logits.
    """
    if not scaled.isnan().any():
        return
    is_masked = (logits == -float('inf')).any(dim=1)
    if (is_masked & scaled.isnan().any(dim=1)).any():
        raise UserError(
            f'a class is masked by a logit of -inf, which {method} scaling cannot take: leave '
            'masked classes out of the logits, here and in the fit, or take a temperature'
        )
