"""Predictions measured as they are and scaled, each by the scaling of its fold."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from mmcalib.calibration.draw import LogitRows, alone
from mmcalib.metrics.counts import Tally, count_outcomes, tables_by_group
from mmcalib.metrics.definitions import metric_value
from mmcalib.metrics.intervals import bootstrap_weights, resampled_metrics
from mmcalib.metrics.measure import DEFAULT_METRICS
from mmcalib.metrics.names import PREFIX, better_rule, number_text
from mmcalib.metrics.outcomes import Outcomes, compute_outcomes
from mmcalib.posthoc.logits import with_other_class
from mmcalib.posthoc.scaler import LogitScaler
from mmcalib.predictions.image_predictions import ImagePredictions

NUM_BOOTSTRAP = 200  # which tell a standard error to 5 %


def before_and_after(
    images: Iterable[LogitRows],
    scalers: Sequence[LogitScaler],
    fold_of: Tensor | None = None,
    *,
    num_bins: int = 15,
    threshold: float | None = 0.5,
    num_groups: int = 0,
    gather: Callable[[Any], list] = alone,
) -> dict:
    """Measure predictions as they are and scaled.

    Args:
        images: Outcomes of one image or several.
        scalers: Fitted: of each fold, or one.
        fold_of: ``(n,)`` int64, the fold of each image; None if there is one scaler.
        num_bins: Of ECE and AECE.
        threshold: Above which probability a sigmoid predicts its class; None if the classes stay
            as they are.
        num_groups: How many independent groups the places are of, for standard errors; 0 for none.
        gather: Returns the shares of all processes.

    Returns:
        Metrics ``before`` and ``after`` by name, in percent but for NLL and Brier;
        ``num_predictions``, how many there are; ``changed``, of how many of them the predicted
        class is another; ``errors``, the standard errors ``before`` and ``after``, if asked for.
    """
    changed = 0
    tallies = [Tally(num_bins), Tally(num_bins)]
    no_bins = torch.zeros(num_groups, 3, num_bins, device='cpu')
    no_sums = torch.zeros(num_groups, 2, device='cpu')
    tables = [(no_bins, no_sums) for _ in tallies]
    for several in images:
        places = several.places
        folds = torch.zeros_like(places) if fold_of is None else fold_of[places]
        for fold in folds.unique().tolist():
            rows = several if fold_of is None else several.only(folds == fold)
            scaled = scalers[fold].transform(rows.logits)
            own = rows.predicted
            own = predicted_of(rows.logits, rows.labels) if own is None else own
            predicted = predicted_by(scalers[fold], scaled, own, threshold)
            changed += int(((predicted != own) & (rows.labels >= 0)).sum())
            shown = rows.logits if rows.shown is None else rows.shown
            pairs = (shown, own), (scaled, predicted)
            for place, (logits, classes) in enumerate(pairs):
                predictions = read(logits, classes, rows.labels)
                counts = count_outcomes(predictions, num_bins)
                tallies[place].add(counts)
                if num_groups:
                    groups = rows.places.repeat_interleave(rows.labels[0].numel())
                    groups = groups[(rows.labels >= 0).flatten()]
                    more = tables_by_group(predictions, groups, num_groups, num_bins)
                    tables[place] = [a + b for a, b in zip(tables[place], more, strict=True)]
    shares = gather(([tally.sums()[0] for tally in tallies], changed))
    figures = {}
    for place, when in enumerate(('before', 'after')):
        total = Tally(num_bins)
        for sums, _ in shares:
            total.add(sums[place])
        (counts,) = total.sums()
        figures[when] = {name: metric_value(name, counts) for name in DEFAULT_METRICS}
    changed = sum(own for _, own in shares)
    if num_groups:
        figures['errors'] = dict(zip(('before', 'after'), map(errors_of, tables), strict=True))
    return {**figures, 'num_predictions': int(counts.count), 'changed': changed}


def worse_figures(before: Mapping[str, float], after: Mapping[str, float]) -> str:
    """Return ``NLL from 0.3000 to 0.3100`` of each metric that is worse as printed, or nothing."""
    worse = []
    for name in before:
        key = f'{PREFIX}{name}'
        old, new = (number_text(figures[name], key) for figures in (before, after))
        more, less = (after, before) if better_rule(key) == 'less' else (before, after)
        if old != new and more[name] > less[name]:
            worse.append(f'{name} from {old} to {new}')
    return ', '.join(worse)


def predicted_of(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the classes that logits ``(M, K)`` predict, shaped as labels."""
    return (logits > 0).long() if labels.ndim == 2 else with_other_class(logits).argmax(dim=1)


def predicted_by(
    scaler: LogitScaler, scaled: Tensor, predicted: Tensor, threshold: float | None
) -> Tensor:
    """Return the classes that scaled logits ``(M, K)`` predict, where `predicted` were."""
    if scaled.shape[1] == 1 or predicted.ndim == 2:
        above = lambda: (scaled.sigmoid() > threshold).long().view_as(predicted)  # noqa: E731
        return predicted if threshold is None else above()
    # Two scaled logits may be rounded to one number.
    return predicted if scaler.keeps_argmax else scaled.argmax(dim=1)


def read(logits: Tensor, predicted: Tensor, labels: Tensor) -> Outcomes:
    """Return what metrics count of logits ``(M, K)``, of which labels below 0 have no prediction.

    A binary one is read as metrics read it, from the probability of class 1, whose rounding they
    know; of several labels, each is such a one.
    """
    if labels.ndim == 2:
        logits, predicted, labels = logits.reshape(-1, 1), predicted.flatten(), labels.flatten()
    predictions = ImagePredictions(predicted, logits=logits, labels=labels)
    return compute_outcomes(predictions, required={'brier'})


def errors_of(tables: Sequence[Tensor]) -> dict[str, float]:
    """Return the standard errors of metrics over groups, by a bootstrap.

    AECE, whose bins are not fixed, has none.
    """
    weights = torch.cat([*bootstrap_weights(len(tables[0]), num_bootstrap=NUM_BOOTSTRAP, seed=0)])
    draws = resampled_metrics(DEFAULT_METRICS, *tables, weights)
    return {name: values.std().item() for name, values in draws.items()}
