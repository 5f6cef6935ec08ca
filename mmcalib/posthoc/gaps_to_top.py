"""How far the logits lie below the highest: what argmax-keeping scalings are maps of.

A gap that is 0 stays 0 and one that is not stays below it, so ties and the smallest differences
come out in the same order; of logits as they are, a division may round two to one number.
"""

from __future__ import annotations

from torch import Tensor

from mmcalib.posthoc.logit_scaler import with_other_class


def gaps_to_top(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Return logits less the highest, and the predicted class.

    Args:
        logits: ``(N, K, …)``; with K = 1 those of a sigmoid, which count as (0, z).

    Returns:
        ``(N, K, …)``, at most 0, two classes where K = 1; ``(N, …)`` int64, the first of a tie.
    """
    logits = with_other_class(logits)
    return logits - logits.amax(dim=1, keepdim=True), logits.argmax(dim=1)


def of_given_head(scaled: Tensor, logits: Tensor) -> Tensor:
    """Return scaled gaps for the head that `logits` are of: a sigmoid's is their difference."""
    return scaled if logits.shape[1] > 1 else scaled[:, 1:] - scaled[:, :1]
