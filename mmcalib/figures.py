"""Figures of evaluations: from what they leave, to what mmcalib.visualization draws."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import Tensor

from mmcalib import report
from mmcalib.metrics import CalibrationStatistics
from mmcalib.metrics.bootstrap import drawn_weights, tails_of
from mmcalib.record import RESULTS
from mmcalib.visualization import (
    ConfidenceMaps,
    ConfidenceView,
    Reliability,
    draw_confidence_maps,
    draw_reliability,
)

# What a test leaves in a work dir.
STATISTICS = 'calibration.npz'
MAPS = 'confidence_maps.npz'
TITLED = ('ECE', 'AECE')
COVERAGE = 0.95
DRAWS = 200
FEWEST = 5
SEED = 0


def reliability(
    statistics: CalibrationStatistics,
    name: str,
    *,
    num_bins: int | None = None,
    equal_mass: bool = False,
) -> Reliability:
    """Return what a diagram shows of an evaluation.

    Its errors are those that were printed, whatever the bins of the diagram. Where these are the
    metric's own, of equal width, each has a 95 % bootstrap interval over images.

    Args:
        statistics: Of the metric, or loaded.
        name: Of the run.
        num_bins: B; the metric's own number if None.
        equal_mass: Bins of equal count in place of equal width.

    Raises:
        ValueError: If `num_bins` is below 1, or nothing was evaluated.
    """
    num_bins = statistics.num_bins if num_bins is None else num_bins
    if num_bins < 1:
        raise ValueError(f'num_bins must be at least 1, got {num_bins!r}')
    if statistics.num_predictions == 0:
        raise ValueError(f'{name!r} has no predictions, so there is no diagram of it')
    table, band = statistics.bins(num_bins, equal_mass=equal_mass), None
    images = statistics.image_bins
    if images is not None and not equal_mass and images.shape[-1] == num_bins:
        table, band = images.sum(dim=0), accuracy_band(images)
    notes = []
    if statistics.metrics.keys() & set(TITLED):
        own = num_bins == statistics.num_bins and not equal_mass
        notes.append(f'{"" if own else "errors of "}{statistics.num_bins} bins')
    notes += [f'protocol {statistics.protocol}' if statistics.protocol != 'pooled' else '']
    return Reliability(
        name=name,
        table=table,
        equal_mass=equal_mass,
        histogram=statistics.bins(num_bins) if equal_mass else None,
        errors={key: statistics.metrics[key] for key in TITLED if key in statistics.metrics},
        band=band,
        note=', '.join(note for note in notes if note),
    )


def accuracy_band(image_bins: Tensor) -> Tensor:
    """Return the ``(2, B)`` bounds of each bin's accuracy, by a percentile bootstrap over images.

    They are NaN for bins that fewer than 5 images reach: too few to tell how much they vary.

    Args:
        image_bins: ``(n, 3, B)`` bins of each image.
    """
    flat = image_bins[:, :2].flatten(1)
    draws = []
    for weights in drawn_weights(len(image_bins), num_bootstrap=DRAWS, seed=SEED):
        count, correct = (weights @ flat).view(len(weights), 2, -1).unbind(dim=1)
        draws.append(correct / count)
    band = torch.cat(draws).nanquantile(tails_of(COVERAGE), dim=0)
    band[:, (image_bins[:, 0] > 0).sum(dim=0) < FEWEST] = torch.nan
    return band


def find_statistics(path: str | Path) -> Path:
    """Return the file of statistics that a path names, or that a work dir holds.

    Raises:
        FileNotFoundError: If there is none, saying how to get it.
    """
    hint = (
        'tools/test.py leaves them in the work dir, and so does '
        "CalibrationMetric(out_file='….npz') where it is told to"
    )
    return _find(path, STATISTICS, 'statistics', hint)


def find_maps(path: str | Path) -> ConfidenceMaps:
    """Return the confidence maps in a file, or in a work dir.

    Raises:
        FileNotFoundError: If there are none, saying how to get them.
    """
    hint = (
        'they are of segmentation, where a test with a ConfidenceMapHook in default_hooks leaves '
        'them in the work dir'
    )
    return ConfidenceMaps.load(_find(path, MAPS, 'confidence maps', hint))


def _find(path: str | Path, name: str, what: str, hint: str) -> Path:
    """Return the file that a path names, or the one of that name in the work dir that it names."""
    file = Path(path, name) if Path(path).is_dir() else Path(path)
    if not file.is_file():
        raise FileNotFoundError(f'there are no {what} {str(file)!r}: {hint}')
    return file


def names_of(runs: Sequence[str], names: Sequence[str] | None = None) -> list[str]:
    """Return what to call runs: the given names, else their losses where these differ.

    Raises:
        ValueError: If there are not as many names as runs.
    """
    if names is not None:
        if len(names) != len(runs):
            raise ValueError(f'{len(runs)} runs need as many names, got {len(names)}')
        return list(names)
    losses = [_loss(Path(run)) for run in runs]
    return losses if len(set(losses)) == len(losses) else [str(run) for run in runs]


def _loss(run: Path) -> str:
    results = (run if run.is_dir() else run.parent) / RESULTS
    return report.read(results).label if results.is_file() else str(run)


def draw_reliabilities(
    runs: Sequence[str | Path],
    names: Sequence[str],
    *,
    num_bins: int | None = None,
    equal_mass: bool = False,
    overlay: bool = False,
    zoom: Sequence[float] | None = None,
) -> Figure:
    """Draw the reliability diagrams of tested runs, side by side or in one panel.

    Options are those of :func:`reliability` and
    :func:`~mmcalib.visualization.reliability.draw_reliability`.
    """
    diagrams = [
        reliability(
            CalibrationStatistics.load(find_statistics(run)),
            name,
            num_bins=num_bins,
            equal_mass=equal_mass,
        )
        for run, name in zip(runs, names, strict=True)
    ]
    return draw_reliability(diagrams, overlay=overlay, zoom=zoom)


def draw_maps(runs: Sequence[str | Path], names: Sequence[str], *, worst: bool = False) -> Figure:
    """Draw the images that all runs have, below one another, or the worst of each run."""
    maps = [find_maps(run) for run in runs]
    for name, others in zip(names[1:], maps[1:], strict=True):
        if others.classes != maps[0].classes:
            raise ValueError(f'{name} has other classes than {names[0]}: compare runs of one set')
    if worst:
        views = [
            view.renamed(f'{name}, {view.name}' if len(runs) > 1 else view.name)
            for name, each in zip(names, maps, strict=True)
            for view in each.worst
        ]
    elif len(runs) > 1:
        views = side_by_side([each.views for each in maps], names)
    else:
        views = maps[0].views
    return draw_confidence_maps(views, classes=maps[0].classes, palette=maps[0].palette)


def side_by_side(
    runs: Sequence[Sequence[ConfidenceView]], names: Sequence[str]
) -> list[ConfidenceView]:
    """Return the images that all runs have, each once for every run, for one figure.

    Raises:
        ValueError: If they have none in common.
    """
    by_index = [{view.index: view for view in views} for views in runs]
    common = sorted(set.intersection(*(set(views) for views in by_index)))
    if not common:
        raise ValueError(
            f'the runs {", ".join(names)} have no image in common: give their ConfidenceMapHook '
            'the same indices or interval'
        )
    return [
        view.renamed(f'{name}, {view.name}')
        for index in common
        for name, view in zip(names, (views[index] for views in by_index), strict=True)
    ]
