"""Figures of tested runs, out of the files that their tests left."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from mmcalib.metrics import CalibrationStatistics
from mmcalib.reports.runs import read_runs
from mmcalib.samples.boundary_distance import RANGE_NAMES
from mmcalib.visualization import (
    ConfidenceMaps,
    ConfidenceView,
    boundary_curve_of,
    draw_boundary_curves,
    draw_confidence_maps,
    draw_image_risk,
    draw_reliability,
    draw_risk_coverage,
    read_image_scores,
    reliability_of,
    risk_coverage_of,
)
from mmcalib.visualization.saved_confidence_maps import BROKEN_FILE
from mmcalib.work_dir_files import MAPS, RESULTS, STATISTICS


def read_statistics(path: str | Path) -> CalibrationStatistics:
    """Return the statistics in a file, or in a work dir.

    Raises:
        FileNotFoundError: If there are none, saying how to get them.
        ValueError: If the file is cut off, or another one.
    """
    hint = (
        "tools/test.py writes them to the work dir, and CalibrationMetric(out_file='….npz') to "
        'its file'
    )
    file = _find(path, STATISTICS, 'statistics', hint)
    try:
        statistics = CalibrationStatistics.load(file)
    except BROKEN_FILE as error:
        raise ValueError(f'{file} cannot be read ({error}): test that run again') from error
    if statistics.narrow_bins.ndim != 2 or len(statistics.narrow_bins) != 3:
        raise ValueError(f'{file} holds no table of confidences: test that run again')
    for what, bins, names in (
        ('classes', statistics.class_bins, statistics.classes),
        ('distances', statistics.distance_bins, RANGE_NAMES),
    ):
        if bins is not None and (bins.ndim != 3 or bins.shape[:2] != (3, len(names or ()))):
            raise ValueError(f'{file} holds no table of {what}: test that run again')
    return statistics


def read_maps(path: str | Path) -> ConfidenceMaps:
    """Return the confidence maps in a file, or in a work dir.

    Raises:
        FileNotFoundError: If there are none, saying how to get them.
        ValueError: If the file is cut off, or another one.
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
    """Return the names of runs: the given ones, else their losses.

    Runs of one loss have their seeds behind it where these differ, else their paths.

    Raises:
        ValueError: If there are not as many names as runs.
    """
    if names is not None:
        if len(names) != len(runs):
            raise ValueError(f'{len(runs)} runs require as many names, got {len(names)}')
        return list(names)
    found = [_loss_and_seed(Path(run)) for run in runs]
    losses = [loss for loss, _ in found]
    return [
        loss
        if losses.count(loss) == 1
        else f'{loss}, seed {seed}'
        if seed is not None and found.count((loss, seed)) == 1
        else f'{loss}, {run}'
        for run, (loss, seed) in zip(runs, found, strict=True)
    ]


def _loss_and_seed(run: Path) -> tuple[str, int | None]:
    try:
        first = next(read_runs((run if run.is_dir() else run.parent) / RESULTS))
    except (OSError, ValueError):  # the file of a figure can be whole without it
        return str(run), None
    return first.label, first.seed


def reliability_figure(
    runs: Sequence[str | Path],
    names: Sequence[str],
    *,
    num_bins: int | None = None,
    equal_mass: bool = False,
    overlay: bool = False,
    zoom: Sequence[float] | None = None,
) -> Figure:
    """Draw the reliability diagrams of tested runs, side by side or in one panel.

    Options are those of :func:`~mmcalib.visualization.reliability_bands.reliability_of` and
    :func:`~mmcalib.visualization.reliability_diagram.draw_reliability`.
    """
    diagrams = [
        reliability_of(
            read_statistics(run),
            name,
            num_bins=num_bins,
            equal_mass=equal_mass,
        )
        for run, name in zip(runs, names, strict=True)
    ]
    return draw_reliability(diagrams, overlay=overlay, zoom=zoom)


def risk_coverage_figure(
    runs: Sequence[str | Path], names: Sequence[str], *, overlay: bool = False
) -> Figure:
    """Draw the risk–coverage curves of tested runs, side by side or in one panel."""
    evaluations = [
        risk_coverage_of(read_statistics(run), name) for run, name in zip(runs, names, strict=True)
    ]
    return draw_risk_coverage(evaluations, overlay=overlay)


def image_risk_figure(files: Sequence[str | Path], names: Sequence[str]) -> Figure:
    """Draw the images of one test in the order of their scores, and their risks.

    Raises:
        ValueError: If there are several files, whose images are in no common order.
    """
    if len(files) > 1:
        raise ValueError(f'a figure of images shows one file, got {len(files)}: draw one for each')
    return draw_image_risk(*read_image_scores(files[0]), name=names[0])


def boundary_curve_figure(runs: Sequence[str | Path], names: Sequence[str]) -> Figure:
    """Draw ECE against the distance from the nearest boundary, all tested runs in one figure."""
    curves = [
        boundary_curve_of(read_statistics(run), name) for run, name in zip(runs, names, strict=True)
    ]
    return draw_boundary_curves(curves)


def confidence_map_figure(
    runs: Sequence[str | Path],
    names: Sequence[str],
    *,
    worst: bool = False,
    images: Sequence[str] | None = None,
) -> Figure:
    """Draw the images that all runs have, below one another, or the worst of each run.

    Args:
        runs: Work dirs of tests.
        names: Of the runs.
        worst: The worst-calibrated images of each run instead.
        images: The file names of those to draw; all by default.

    Raises:
        ValueError: If the runs have other classes, no image in common, or none of such a name.
    """
    maps = [read_maps(run) for run in runs]
    for name, others in zip(names[1:], maps[1:], strict=True):
        if others.classes != maps[0].classes:
            raise ValueError(
                f'{name} has other classes than {names[0]}: compare runs on the same data'
            )
    views = [each.worst if worst else each.views for each in maps]
    if images:
        views = _of_images(views, images)
    if len(runs) > 1 and not worst:
        views = _shared(views, names)
    drawn = [
        view.renamed(f'{name}, {view.name}') if len(runs) > 1 else view
        for name, found in zip(names, views, strict=True)
        for view in found
    ]
    if not worst:  # an image of one run below that of another
        drawn.sort(key=lambda view: view.index)
    return draw_confidence_maps(drawn, classes=maps[0].classes, palette=maps[0].palette)


def _of_images(
    runs: Sequence[Sequence[ConfidenceView]], images: Sequence[str]
) -> list[list[ConfidenceView]]:
    """Return the views of some images, of each run."""
    there = dict.fromkeys(view.name for views in runs for view in views)
    for image in images:
        if image not in there:
            raise ValueError(f'no image {image!r} was drawn; there are {", ".join(there)}')
    return [[view for view in views if view.name in images] for views in runs]


def _shared(
    runs: Sequence[Sequence[ConfidenceView]], names: Sequence[str]
) -> list[list[ConfidenceView]]:
    """Return the images that all runs have, of each run.

    Raises:
        ValueError: If they have none in common.
    """
    known = [{(view.index, view.name) for view in views} for views in runs]
    common = set.intersection(*known)
    if not common:
        raise ValueError(
            f'the runs {", ".join(names)} have no image in common: give their ConfidenceMapHook '
            'the same indices or interval, and compare tests of the same data'
        )
    return [[view for view in views if (view.index, view.name) in common] for views in runs]
