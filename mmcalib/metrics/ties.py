"""Ties: predictions are ranked by a code of their confidence, and those of one code are tied."""

from __future__ import annotations

import torch
from torch import Tensor

# The bits of the float32 number 1/2.
CODE_OF_HALF = 0x3F000000
# Above this confidence, float32 tells 1 - confidence to fewer than 12 bits.
NEARLY_ONE = 1 - 2.0**-12


def confidence_code(conf: Tensor, sum_of_others: Tensor | None = None) -> Tensor:
    """Return integers by which predictions are ranked, ``(M,)`` int32; equal ones are tied.

    They count the float32 numbers up to the confidence; above one half, those down to 1 -
    confidence. So the codes are fine relative to both, and neither the type of float nor the order
    of the classes parts predictions that are tied.

    Args:
        conf: ``(M,)`` probability of the predicted class.
        sum_of_others: ``(M,)`` float64 sum of the probabilities of the other classes. It replaces
            1 - confidence next to a confidence of 1, where it tells saturated predictions apart.
    """
    code = conf.float().view(torch.int32)
    code_of_others = (1 - conf).float().view(torch.int32)
    if sum_of_others is not None:
        exact_code = sum_of_others.float().view(torch.int32)
        code_of_others = torch.where(conf > NEARLY_ONE, exact_code, code_of_others)
    return torch.where(conf < 0.5, code, 2 * CODE_OF_HALF - code_of_others)


def odds_of_code(code: Tensor) -> Tensor:
    """Return confidence / (1 - confidence), float64, of :func:`confidence_code`."""
    is_below_half = code < CODE_OF_HALF
    conf = torch.where(is_below_half, code, CODE_OF_HALF).view(torch.float32).double()
    others = torch.where(is_below_half, CODE_OF_HALF, 2 * CODE_OF_HALF - code)
    others = others.view(torch.float32).double()
    return torch.where(is_below_half, conf / (1 - conf), (1 - others) / others)
