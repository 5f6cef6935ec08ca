"""Classes that a model masks by -inf or a large negative logit, which some scalings cannot take."""

from __future__ import annotations

from torch import Tensor

from mmcalib.errors import UserError
from mmcalib.posthoc.logits import gaps_to_top
from mmcalib.predictions.image_predictions import class_columns
from mmcalib.texts import named_classes

# A masked class is at least one of these below the highest logit of its prediction, and no class is
# between a tenth of it and it. The logits of a network have no such void, if many predictions have
# a second class above it.
MASK_DEPTHS = (5e3, 5e4, 5e5, 5e6, 5e7)
VOID = 0.1
MANY = 0.25


def masked_logits(logits: Tensor) -> Tensor | None:
    """Return where logits ``(N, K, *)`` mask their class; None if none does.

    A mask is -inf, or a number such as -1e9 that is far below all other logits.
    """
    lowest, highest = logits.aminmax()
    if logits.shape[1] == 1 or not highest - lowest >= MASK_DEPTHS[0]:
        return None
    gaps = gaps_to_top(logits)
    for depth in MASK_DEPTHS:
        is_masked = gaps <= -depth
        lowest_of_others = gaps.masked_fill(is_masked, 0).amin()
        has_second_class = (~is_masked).sum(dim=1) > 1
        is_void = lowest_of_others > -VOID * depth and has_second_class.float().mean() > MANY
        if is_masked.any() and is_void:
            return is_masked
    is_masked = logits == -float('inf')
    return is_masked if is_masked.any() else None


def check_no_masked_class(logits: Tensor, method: str) -> None:
    """Raise a UserError if a class is masked in any prediction: a wrong number would be learned.

    A logit such as -1e9 moves the mean of a prediction's logits, in whose rounding the others
    vanish, and is a large input of a matrix.

    Args:
        logits: ``(N, K, *)``.
        method: The method that cannot take it.
    """
    is_masked = masked_logits(logits)
    if is_masked is None:
        return
    masked_columns = class_columns(is_masked)
    classes = masked_columns.any(dim=1).nonzero().flatten().tolist()
    num_masked = int(masked_columns.any(dim=0).sum())
    verb = 'is' if len(classes) == 1 else 'are'
    raise UserError(
        f'{named_classes(classes)} {verb} masked in {num_masked} of {masked_columns.shape[1]} '
        f'predictions, by logits such as {logits.amin().item():.3g}, which {method} scaling cannot '
        'take: leave masked classes out of the logits, or take a temperature'
    )
