"""Figures of tested runs, out of the files that their tests left."""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from matplotlib.figure import Figure

from mmcalib.checks import UserError
from mmcalib.metrics import CalibrationStatistics
from mmcalib.metrics.keys import CLEAN, ECE, NLL, QUALITIES
from mmcalib.record import Record, digest, loss_label, read_json
from mmcalib.reports.runs import read_runs
from mmcalib.reports.shifted import ShiftedTests, measures_of, shifted_tests
from mmcalib.samples.boundary import RANGE_NAMES
from mmcalib.visualization import (
    ConfidenceMaps,
    ConfidenceView,
    ShiftedModel,
    draw_boundary_curves,
    draw_confidence_maps,
    draw_image_risk,
    draw_reliability,
    draw_risk_coverage,
    draw_severity_boxes,
    draw_severity_lines,
    draw_sweeps,
    read_image_scores,
)
from mmcalib.visualization.confidence_maps import BROKEN_FILE
from mmcalib.work_dir import MAPS, RESULTS, STATISTICS, SWEEP

SHIFT_FIGURES = ('boxes', 'lines')


@dataclass(frozen=True)
class Kind:
    """A kind of figure.

    Attributes:
        file: Name of the file of a work dir that it is drawn from; empty for the work dir itself.
        hint: Where such files come from.
        load: Reads one.
        draw: Draws what was read, by the names of the runs.
    """

    file: str
    hint: str
    load: Callable[[Path], object]
    draw: Callable[..., Figure]


def load(kind: str, path: str | Path) -> object:
    """Return what a figure of a kind is drawn from: a file, or that of a work dir.

    Raises:
        FileNotFoundError: If it is not there, saying how to get it.
        ValueError: If it is cut off, or another one.
    """
    found = FIGURES[kind]
    file = Path(path, found.file) if Path(path).is_dir() else Path(path)
    if not (file.is_file() if found.file else file.is_dir()):
        raise FileNotFoundError(f'there is no {file}: {found.hint}')
    return found.load(file)


def folders_of(kind: str, root: str | Path) -> Iterator[Path]:
    """Yield the work dirs below a folder that a figure of a kind can be drawn from."""
    if kind != 'robustness':
        yield from (path.parent for path in Path(root).rglob(FIGURES[kind].file))
        return
    for path in Path(root).rglob(f'*/{CLEAN}/{RESULTS}'):
        if 'shift' in Record.read(path).evaluation:
            yield path.parents[2]


def draw(kind: str, runs: Mapping[str, object], **options) -> Figure:
    """Draw what :func:`load` returned of some runs, by their names.

    Raises:
        ValueError: If there is nothing to draw, or an option is not for this kind.
    """
    function = FIGURES[kind].draw
    for name in sorted(options.keys() - inspect.signature(function).parameters.keys()):
        raise UserError(f'--{name.replace("_", "-")} is not for {kind}: leave it out')
    return function(runs, **options)


def _read_statistics(file: Path) -> CalibrationStatistics:
    try:
        statistics = CalibrationStatistics.load(file)
    except BROKEN_FILE as error:
        raise UserError(f'{file} cannot be read ({error}): test that run again') from error
    if statistics.narrow_bins.ndim != 2 or len(statistics.narrow_bins) != 3:
        raise UserError(f'{file} holds no table of confidences: test that run again')
    for what, bins, names in (
        ('classes', statistics.class_bins, statistics.classes),
        ('distances', statistics.distance_bins, RANGE_NAMES),
    ):
        if bins is not None and (bins.ndim != 3 or bins.shape[:2] != (3, len(names or ()))):
            raise UserError(f'{file} holds no table of {what}: test that run again')
    return statistics


def names_of(runs: Sequence[str], names: Sequence[str] | None = None) -> list[str]:
    """Return the names of runs: the given ones, else their losses.

    Runs of one loss have their seeds behind it where these differ, else their paths.

    Raises:
        ValueError: If there are not as many names as runs.
    """
    if names is not None:
        if len(set(names)) != len(runs):
            raise UserError(f'{len(runs)} runs require as many names, got {sorted(set(names))}')
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


def _images(runs: Mapping[str, tuple]) -> Figure:
    if len(runs) > 1:  # whose images are in no common order
        raise UserError(f'a figure of images shows one file, got {len(runs)}: draw one for each')
    ((name, scores),) = runs.items()
    return draw_image_risk(*scores, name=name)


def _maps(
    runs: Mapping[str, ConfidenceMaps],
    *,
    worst: bool = False,
    images: Sequence[str] | None = None,
) -> Figure:
    """Draw the images that all runs have, below one another, or the worst of each run."""
    (first, maps), *others = runs.items()
    for name, other in others:
        if other.classes != maps.classes:
            raise UserError(f'{name} has other classes than {first}: compare runs on the same data')
    views = [each.worst if worst else each.views for each in runs.values()]
    if images:
        views = _of_images(views, images)
    if others and not worst:
        views = _shared(views, list(runs))
    drawn = [
        view.renamed(f'{name}, {view.name}') if others else view
        for name, found in zip(runs, views, strict=True)
        for view in found
    ]
    if not worst:  # an image of one run below that of another
        drawn.sort(key=lambda view: view.index)
    return draw_confidence_maps(drawn, classes=maps.classes, palette=maps.palette)


def _of_images(
    runs: Sequence[Sequence[ConfidenceView]], images: Sequence[str]
) -> list[list[ConfidenceView]]:
    """Return the views of some images, of each run."""
    there = dict.fromkeys(view.name for views in runs for view in views)
    for image in images:
        if image not in there:
            raise UserError(f'no image {image!r} was drawn; there are {", ".join(there)}')
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
        raise UserError(
            f'the runs {", ".join(names)} have no image in common: give their ConfidenceMapHook '
            'the same indices or interval, and compare tests of the same data'
        )
    return [[view for view in views if (view.index, view.name) in common] for views in runs]


def _sweep(runs: Mapping[str, Mapping]) -> Figure:
    return draw_sweeps(list(runs.values()))


def _robustness(
    runs: Mapping[str, Sequence[ShiftedTests]],
    *,
    figure: str = 'boxes',
    only: Sequence[str] | None = None,
) -> Figure:
    """Draw quality, ECE and NLL by severity, as boxes over corruptions or lines of their means.

    Args:
        runs: Of :func:`~mmcalib.reports.shifted.shifted_tests`.
        figure: One of :data:`SHIFT_FIGURES`.
        only: Names of the models to draw, in this order; None for all.
    """
    named = _named([model for found in runs.values() for model in found])
    if only is not None:
        known = list(dict.fromkeys(name for name, _ in named))
        for name in only:
            if name not in known:
                raise UserError(f'--only: no checkpoint is named {name!r}; there are {known}')
        named = [each for name in only for each in named if each[0] == name]
    keys, models = measures_of([model for _, model in named]), _models(named)
    if figure == 'boxes':
        return draw_severity_boxes(models, [key for key in (*QUALITIES, ECE, NLL) if key in keys])
    return draw_severity_lines(models, [key for key in (ECE, NLL) if key in keys])


def _named(models: Sequence[ShiftedTests]) -> list[tuple[str, ShiftedTests]]:
    """Return models with names; those of one name, as of several seeds, were tested alike."""
    found = defaultdict(set)
    for model in models:
        found[model.name].add(_tested(model))
    return [(f'{m.name}, {m.folder}' if len(found[m.name]) > 1 else m.name, m) for m in models]


def _tested(model: ShiftedTests) -> str:
    """Return a digest of the training, the data, the protocol and the shifts of a model."""
    tests = sorted([test['name'], test['severity']] for test in model.corrupted)
    how = {key: part for key, part in model.clean.evaluation.items() if key != 'shift'}
    trained = [member['training'] for member in model.clean.model['members']]
    return digest([how, trained, tests, model.source])


def _models(named: Iterable[tuple[str, ShiftedTests]]) -> list[ShiftedModel]:
    """Return what is drawn of models, those of other seeds as one."""
    values, before = defaultdict(lambda: defaultdict(list)), {}
    for name, model in named:
        record = model.clean
        before[name] = loss_label(record.loss) if record.loss and record.calibration else name
        values[name][0].append(record.metrics)
        for test in model.corrupted:
            values[name][test['severity']].append(test['metrics'])
    return [ShiftedModel(name, before[name], found) for name, found in values.items()]


OF_STATISTICS = "tools/test.py writes it to the work dir, and CalibrationMetric(out_file='….npz')"
OF_MAPS = (
    'a test of segmentation with a ConfidenceMapHook in default_hooks leaves it in the work dir'
)
FIGURES = {
    'reliability': Kind(STATISTICS, OF_STATISTICS, _read_statistics, draw_reliability),
    'risk': Kind(STATISTICS, OF_STATISTICS, _read_statistics, draw_risk_coverage),
    'boundary': Kind(STATISTICS, OF_STATISTICS, _read_statistics, draw_boundary_curves),
    'maps': Kind(MAPS, OF_MAPS, ConfidenceMaps.load, _maps),
    'worst': Kind(MAPS, OF_MAPS, ConfidenceMaps.load, partial(_maps, worst=True)),
    'images': Kind('images.csv', 'an ImageScoreMetric writes it', read_image_scores, _images),
    'robustness': Kind(
        '', 'name the work dir of tools/test_robustness.py', shifted_tests, _robustness
    ),
    'sweep': Kind(SWEEP, 'tools/sweep.py writes it', read_json, _sweep),
}
