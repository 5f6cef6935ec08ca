"""Figures of tested runs, out of the files that their tests left."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from matplotlib.figure import Figure

from mmcalib import visualization as drawing
from mmcalib.errors import UserError
from mmcalib.files import MAPS, RESULTS, STATISTICS, SWEEP
from mmcalib.metrics import CalibrationStatistics
from mmcalib.metrics.names import ECE, NLL, QUALITIES
from mmcalib.reports.metric_columns import CLEAN
from mmcalib.reports.row_labels import distinct
from mmcalib.reports.shifts import corrupted, measures_of
from mmcalib.reports.tables import rows_of
from mmcalib.reports.tested_runs import TestedRun, read_runs
from mmcalib.runs.record import Record, check_shape, model_label, read_json

# What a figure of a sweep is drawn from, see mmcalib.runs.record.check_shape.
ROW = {'value': object, 'val': [dict], 'test': [dict], 'chosen': bool}
SWEEP_SHAPE = {'loss': str, 'parameter': str, 'rows': [ROW]}
# Of tests under shift: the caption of a figure, and its metrics.
SHIFT_FIGURES = {
    'boxes': ('Corruptions by severity', (*QUALITIES, ECE, NLL)),
    'lines': ('Mean over corruptions by severity', (ECE, NLL)),
}


def figure(
    kind: str, paths: Sequence[str | Path], names: Sequence[str] | None = None, **options
) -> Figure:
    """Draw a figure of tested runs.

    Args:
        kind: One of :data:`FIGURES`.
        paths: Work dirs, or the files in them.
        names: Of the runs; None for their losses.
        options: Of the kind's drawing.

    Raises:
        FileNotFoundError: If a file is missing, saying how to get it.
        ValueError: If one is broken, or there is nothing to draw.
    """
    names = names_of(paths, names)
    found = [load(kind, path) for path in paths]
    return draw(kind, dict(zip(names, found, strict=True)), **options)


def load(kind: str, path: str | Path) -> object:
    """Return what a figure of a kind is drawn from: a file, or that of a work dir.

    Raises:
        FileNotFoundError: If it is not there, saying how to get it.
        ValueError: If it is cut off, or another one.
    """
    name, read, _ = FIGURES[kind]
    path = Path(path)
    is_named = path.suffix and not path.is_dir()
    file = path if is_named else path / name
    if not (file.is_file() if name else file.is_dir()):
        raise FileNotFoundError(f'there is no {file}: {HINTS[name]}')
    return read(file)


def _record_in(folder: Path) -> Record | None:
    """Return the record of a test, without which the file of a figure can be whole."""
    try:
        return Record.read(folder / RESULTS)
    except (OSError, ValueError):
        return None


def draw(kind: str, runs: Mapping[str, object], **options) -> Figure:
    """Draw what :func:`load` returned of some runs, by their names.

    Raises:
        ValueError: If there is nothing to draw.
    """
    _, _, function = FIGURES[kind]
    return function(runs, **options)


def names_of(paths: Sequence[str | Path], names: Sequence[str] | None = None) -> list[str]:
    """Return the names of runs: the given ones, else their losses.

    Runs of one loss have their seeds behind it where these differ, else their paths, without the
    folders that all of them begin and end with.

    Raises:
        ValueError: If there are not as many names as runs.
    """
    if names is not None:
        if len(set(names)) != len(paths):
            raise UserError(f'{len(paths)} runs require as many names, got {sorted(set(names))}')
        return list(names)
    short = _told_apart([Path(path) for path in paths])
    found = [_record_in(path if path.is_dir() else path.parent) for path in map(Path, paths)]
    labels = [
        model_label(each.model, experiment=each.experiment) if each else path
        for each, path in zip(found, short, strict=True)
    ]
    seeds = [{'seed': each and each.seed} for each in found]
    return distinct(distinct(labels, seeds), [{'path': path} for path in short])


def _told_apart(paths: Sequence[Path]) -> list[str]:
    """Return paths without the folders that all of them begin and end with."""
    parts = [[*path.parts] for path in paths]
    for end in (0, -1):
        while min(map(len, parts)) > 1 < len(parts) and len({each[end] for each in parts}) == 1:
            for each in parts:
                del each[end]
    return [str(Path(*each)) for each in parts]


def _robustness(
    runs: Mapping[str, Sequence[TestedRun]],
    *,
    figure: str = 'boxes',
    only: Sequence[str] | None = None,
) -> Figure:
    """Draw quality, ECE and NLL by severity, as boxes over corruptions or lines of their means.

    Args:
        runs: Tests under shift; those that differ only in their seed are drawn as one.
        figure: One of :data:`SHIFT_FIGURES`.
        only: Labels of the rows to draw, in this order; None for all.
    """
    rows, _ = rows_of([run for found in runs.values() for run in found])
    rows = {row.label: row for row in rows}
    for name in only or ():
        if name not in rows:
            raise UserError(f'--only: no checkpoint is named {name!r}; there are {[*rows]}')
    drawn, tests = {}, []
    for name in only or rows:
        drawn[name] = defaultdict(list)
        for test in (t for run in rows[name].runs for t in (run.tests[0], *corrupted(run.tests))):
            drawn[name][test['severity']].append(test['metrics'])
            tests.append(test)
    _, wanted = SHIFT_FIGURES[figure]
    keys = [key for key in wanted if key in measures_of(tests)]
    return drawing.draw_severity(drawn, keys, figure=figure)


def _shifted(folder: Path) -> list[TestedRun]:
    paths = sorted(folder.rglob(f'{CLEAN}/{RESULTS}'))
    if not paths:
        raise FileNotFoundError(f'there is no test below {folder}: {HINTS[""]}')
    return [run for path in paths for run in read_runs(path)]


def read_sweep(path: Path) -> dict:
    """Return what a ``sweep.json`` holds.

    Raises:
        ValueError: If it is cut off, or something else.
    """
    content = read_json(path)
    try:
        check_shape(content, SWEEP_SHAPE)
    except TypeError as error:
        raise UserError(f'{path} is not of a sweep ({error}): run tools/sweep.py again') from error
    return content


# By the file of a work dir: where it comes from.
HINTS = {
    STATISTICS: "tools/test.py writes it to the work dir, and CalibrationMetric(out_file='….npz')",
    MAPS: 'a test of segmentation with a ConfidenceMapHook in default_hooks leaves it there',
    'images.csv': "a test with ImageScoreMetric(out_file='images.csv') in its evaluator writes it",
    '': 'name the work dir of tools/test_robustness.py',
    SWEEP: 'tools/sweep.py writes it',
}
# By kind: the file of a work dir, or none for the work dir itself; its reader; its drawing.
FIGURES = {
    'reliability': (STATISTICS, CalibrationStatistics.load, drawing.draw_reliability),
    'by-image': (STATISTICS, CalibrationStatistics.load, drawing.draw_image_calibration),
    'risk': (STATISTICS, CalibrationStatistics.load, drawing.draw_risk_coverage),
    'boundary': (STATISTICS, CalibrationStatistics.load, drawing.draw_boundary_curves),
    'maps': (MAPS, drawing.ConfidenceMaps.load, drawing.draw_confidence_maps),
    'worst': (
        MAPS,
        drawing.ConfidenceMaps.load,
        partial(drawing.draw_confidence_maps, worst=True),
    ),
    'images': ('images.csv', drawing.read_image_scores, drawing.draw_image_risk),
    'robustness': ('', _shifted, _robustness),
    'sweep': (SWEEP, read_sweep, drawing.draw_sweep),
}
