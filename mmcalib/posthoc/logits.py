"""Logits of a softmax and of a sigmoid: their gaps, predicted class and log-odds."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mmcalib.errors import warn
from mmcalib.predictions.arrays import as_tensor
from mmcalib.tensors import SUM_TOLERANCE, at_least_single, check_range

# Fewer logits of a sigmoid may all lie in [0, 1] by chance.
FEW_SIGMOID_LOGITS = 10
# A class is masked if its logit lies so many temperatures below the highest one.
MASKED = -1e6
# A bare confidence stays so far from 0 and 1, whatever its type of float: half a step of float64.
LEAST_CONF = 2.0**-53


def with_other_class(logits: Tensor) -> Tensor:
    """Return ``(M, K, *)`` logits as they are, and ``(M, 1, *)`` ones with a 0 for the other class.

    The softmax over (0, z) is the sigmoid of z.
    """
    if logits.shape[1] > 1:
        return logits
    return torch.cat([torch.zeros_like(logits), logits], dim=1)


def without_other_class(logits: Tensor, *, num_logits: int) -> Tensor:
    """Return logits of all classes as K logits again: as they are, or the log-odds if K = 1.

    Args:
        logits: ``(M, K, *)``, or ``(M, 2, *)`` if K = 1.
        num_logits: K.
    """
    return log_odds(logits) if num_logits == 1 else logits


def log_odds(logits: Tensor) -> Tensor:
    """Return the log-odds ``(M, 1, *)`` of class 1 of two, whose logits are ``(M, 1 or 2, *)``."""
    if logits.shape[1] == 1:
        return logits
    return logits[:, 1:] - logits[:, :1]


def gaps_to_top(logits: Tensor) -> Tensor:
    """Return logits less the highest one of each prediction, which keeps digits of differences.

    Args:
        logits: ``(M, K, *)``; with K = 1 those of a sigmoid, which count as (0, z).

    Returns:
        ``(M, K, *)``, at most 0; two classes if K = 1.
    """
    logits = with_other_class(logits)
    return logits - logits.amax(dim=1, keepdim=True)


def top_class(logits: Tensor) -> Tensor:
    """Return the ``(M, *)`` class of the highest logit, the first one of a tie."""
    return with_other_class(logits).argmax(dim=1)


def confidence_log_odds(conf: Any, least_conf: float | None) -> Tensor:
    """Return the log-odds ``(N, 1)`` of confidences, in float64 on the CPU.

    Those of 0 and 1 are finite.

    Args:
        conf: ``(N,)`` from 0 to 1.
        least_conf: The confidence that stands for 0, and its difference to 1 for 1. None for half a
            step of the type of float.
    """
    values = as_tensor('conf', conf).cpu()
    check_range(values, 'conf')
    if least_conf is None:
        dtype = values.dtype if values.is_floating_point() else torch.float64
        least_conf = torch.finfo(dtype).eps / 2
    return values.double().clamp(least_conf, 1 - least_conf).logit()[:, None]


def warn_if_probabilities(logits: Tensor) -> None:
    """Warn if logits look like the outputs of a softmax or a sigmoid.

    Those of a softmax lie in [0, 1] and sum to 1; many of a sigmoid all lie in [0, 1].
    """
    if not logits.numel() or logits.min() < 0 or not logits.max() <= 1:
        return
    if logits.shape[1] == 1:
        look_like_probabilities = len(logits) >= FEW_SIGMOID_LOGITS
    else:
        sums = at_least_single(logits).sum(dim=1)
        look_like_probabilities = (sums - 1).abs().max() < SUM_TOLERANCE
    if look_like_probabilities:
        warn(
            'the logits look like probabilities: all lie in [0, 1]. Give raw logits, or the '
            'logarithm of the probabilities (for K = 1, their log-odds)'
        )
