"""Predictions measured as they are and scaled, each by the scaling of its fold."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from mmcalib.metrics.counts import EXACT, Counts, of_map, round_if_many
from mmcalib.metrics.definitions import value_of
from mmcalib.posthoc.draw import LogitRows, alone
from mmcalib.posthoc.scaler import LogitScaler

COMPARED = ('ECE', 'AECE', 'NLL', 'Brier', 'accuracy')


def before_and_after(
    images: Iterable[LogitRows],
    scalers: Sequence[LogitScaler],
    fold_of: Tensor | None = None,
    *,
    num_bins: int = 15,
    threshold: float | None = 0.5,
    gather: Callable[[Any], list] = alone,
) -> dict:
    """Measure predictions as they are and scaled.

    Args:
        images: Predictions of one image or several.
        scalers: Fitted: of each fold, or one.
        fold_of: ``(n,)`` int64, the fold of each image; None if there is one scaler.
        num_bins: Of ECE and AECE.
        threshold: Above which probability a sigmoid predicts its class; None if the classes stay
            as they are.
        gather: Returns the shares of all processes.

    Returns:
        Metrics ``before`` and ``after`` by name, in percent but for NLL and Brier;
        ``num_predictions``, how many there are; ``changed``, of how many of them the predicted
        class is another.
    """
    found, changed, total = ([], []), 0, 0
    for several in images:
        places = several.places
        folds = torch.zeros_like(places) if fold_of is None else fold_of[places]
        for fold in folds.unique().tolist():
            rows = several if fold_of is None else several.only(folds == fold)
            scaled = scalers[fold].transform(rows.logits)
            predicted = predicted_by(scalers[fold], scaled, rows.predicted, threshold)
            changed += int((predicted != rows.predicted).sum())
            total += len(predicted)
            shown = rows.logits if rows.shown is None else rows.shown
            before, after = (shown, rows.predicted), (scaled, predicted)
            for parts, (logits, classes) in zip(found, (before, after), strict=True):
                parts.append(counts_of(logits, classes, rows.labels, num_bins))
                if total > EXACT:
                    parts[:] = [part.round() for part in parts]
    shares = gather((found, changed))
    figures = {}
    for place, when in enumerate(('before', 'after')):
        parts = [part for own, _ in shares for part in own[place]]
        round_if_many(parts)
        counts = Counts.total(parts, num_bins)
        figures[when] = {name: value_of(name, counts) for name in COMPARED}
    changed = sum(own for _, own in shares)
    return {**figures, 'num_predictions': int(counts.count), 'changed': changed}


def predicted_by(
    scaler: LogitScaler, scaled: Tensor, predicted: Tensor, threshold: float | None
) -> Tensor:
    """Return the classes that scaled logits ``(M, K)`` predict, where `predicted` were."""
    if scaled.shape[1] == 1:
        return predicted if threshold is None else (scaled[:, 0].sigmoid() > threshold).long()
    # Two scaled logits may be rounded to one number.
    return predicted if scaler.keeps_argmax else scaled.argmax(dim=1)


def counts_of(logits: Tensor, predicted: Tensor, labels: Tensor, num_bins: int) -> Counts:
    """Count predictions of logits ``(M, K)``."""
    # As metrics read a binary segmentation: the probability of class 1, whose rounding they know.
    planes = (logits.sigmoid() if logits.shape[1] == 1 else logits).T[:, None]
    classes = predicted[None], labels[None], torch.ones_like(labels[None], dtype=torch.bool)
    found = of_map(planes, *classes, num_bins=num_bins, wanted={'brier'})
    return Counts.of(found._replace(left_out=None), num_bins)
