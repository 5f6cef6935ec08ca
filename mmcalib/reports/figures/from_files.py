"""Figures of tested runs, drawn from the files that their tests left."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from mmcalib.errors import UserError, warn
from mmcalib.files import MAPS, RESULTS, STATISTICS, SWEEP
from mmcalib.metrics import CalibrationStatistics
from mmcalib.metrics.metric_text import ECE, NLL, QUALITIES
from mmcalib.reports.figures.severity import draw_severity
from mmcalib.reports.figures.sweep import draw_sweep
from mmcalib.reports.metric_columns import CLEAN
from mmcalib.reports.reported_runs import ReportedRun, read_runs
from mmcalib.reports.row_labels import distinct_names
from mmcalib.reports.shifts import (
    common_metrics,
    corruption_tests,
    corruptions_with_severities,
)
from mmcalib.reports.tables import Row, table_rows
from mmcalib.runs.labels import model_label
from mmcalib.runs.record import Record, check_shape, read_json
from mmcalib.texts import command_text
from mmcalib.visualization import (
    ConfidenceMaps,
    draw_boundary_curves,
    draw_confidence_maps,
    draw_image_calibration,
    draw_image_risk,
    draw_reliability,
    draw_risk_coverage,
    read_image_scores,
)

# A figure of a sweep is drawn from these parts of its file, see mmcalib.runs.record.check_shape.
SWEEP_ROW = {'value': object, 'val': [dict], 'test': [dict], 'chosen': bool}
SWEEP_SHAPE = {'loss': str, 'parameter': str, 'rows': [SWEEP_ROW]}
# How to get a file, with the names of commands in braces.
STATISTICS_HINT = "{test} writes it to the work dir, and CalibrationMetric(out_file='….npz')"
MAPS_HINT = 'a test of segmentation with a ConfidenceMapHook in default_hooks leaves it there'
SHIFT_HINT = 'name the work dir of {robustness}'


@dataclass(frozen=True)
class ShiftFigure:
    """Figure of tests under shift: its caption, and the metrics that it may have."""

    caption: str
    keys: Sequence[str]


SHIFT_FIGURES = {
    'boxes': ShiftFigure('Corruptions by severity', (*QUALITIES, ECE, NLL)),
    'lines': ShiftFigure('Mean over corruptions by severity', (ECE, NLL)),
}


def figure_from_files(
    kind: str, paths: Sequence[str | Path], names: Sequence[str] | None = None, **drawing
) -> Figure:
    """Draw a figure of tested runs.

    Args:
        kind: Key of :data:`FIGURE_KINDS`.
        paths: Work dirs, or the files in them.
        names: Name of each run, None for its loss.
        drawing: Options of the function that draws this kind.

    Raises:
        FileNotFoundError: If a file is missing, saying how to get it.
        ValueError: If one is broken, or there is nothing to draw.
    """
    names = run_names(paths, names)
    contents = [read_file(kind, path) for path in paths]
    return draw_figure(kind, dict(zip(names, contents, strict=True)), **drawing)


def read_file(kind: str, path: str | Path) -> Any:
    """Return what a kind of figure is drawn from: the content of a file, or of one in a work dir.

    Raises:
        FileNotFoundError: If it is not there, saying how to get it.
        ValueError: If it is cut off, or another one.
    """
    figure_kind = FIGURE_KINDS[kind]
    is_file_named = Path(path).suffix and not Path(path).is_dir()
    file = Path(path) if is_file_named else Path(path, figure_kind.file)
    exists = file.is_file() if figure_kind.file else file.is_dir()
    if not exists:
        raise FileNotFoundError(f'there is no {file}: {hint_text(figure_kind.hint)}')
    return figure_kind.read(file)


def draw_figure(kind: str, runs: Mapping[str, Any], **drawing) -> Figure:
    """Draw what :func:`read_file` returned for some runs, by their names.

    Raises:
        ValueError: If there is nothing to draw.
    """
    return FIGURE_KINDS[kind].draw(runs, **drawing)


def run_names(paths: Sequence[str | Path], names: Sequence[str] | None = None) -> list[str]:
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
    short_paths = distinct_paths(paths)
    labels = []
    seeds = []
    for path, short_path in zip(paths, short_paths, strict=True):
        record = _record_in(Path(path) if Path(path).is_dir() else Path(path).parent)
        if record is None:
            labels.append(short_path)
            seeds.append({'seed': None})
        else:
            labels.append(model_label(record.model, experiment=record.experiment))
            seeds.append({'seed': record.seed})
    labels = distinct_names(labels, seeds)
    return distinct_names(labels, [{'path': short_path} for short_path in short_paths])


def _record_in(folder: Path) -> Record | None:
    """Return the record of a test, None if it is broken: the file of a figure may be whole."""
    try:
        return Record.read(folder / RESULTS)
    except (OSError, ValueError):
        return None


def distinct_paths(paths: Sequence[str | Path]) -> list[str]:
    """Return paths without the folders that all of them begin and end with."""
    parts = [list(Path(path).parts) for path in paths]
    if len(paths) > 1:
        for end in (0, -1):
            while min(map(len, parts)) > 1 and len({path_parts[end] for path_parts in parts}) == 1:
                for path_parts in parts:
                    del path_parts[end]
    return [str(Path(*path_parts)) for path_parts in parts]


def draw_robustness(
    runs: Mapping[str, Sequence[ReportedRun]],
    *,
    figure: str = 'boxes',
    only: Sequence[str] | None = None,
) -> Figure:
    """Draw quality, ECE and NLL by severity, as boxes over corruptions or lines of their means.

    Args:
        runs: Tests under shift; those that differ only in their seed are drawn as one.
        figure: Key of :data:`SHIFT_FIGURES`.
        only: Labels of the rows to draw, in this order; None for all.
    """
    all_runs = []
    for runs_below in runs.values():
        all_runs += runs_below
    rows, _ = table_rows(all_runs)
    rows_by_label = {row.label: row for row in rows}
    labels = list(rows_by_label) if only is None else only
    metrics_by_severity = {}
    tests = []
    for label in labels:
        if label not in rows_by_label:
            raise UserError(
                f'--only: no checkpoint is named {label!r}; there are {list(rows_by_label)}'
            )
        row_tests = _drawn_tests(rows_by_label[label])
        tests += row_tests
        corruptions = corruptions_with_severities(corruption_tests(row_tests))
        if len(corruptions) > 1:
            warn(
                f'{label} has {"; ".join(corruptions)}, so its severities are of other '
                'corruptions: finish its run for a trend'
            )
        metrics_by_severity[label] = defaultdict(list)
        for test in row_tests:
            metrics_by_severity[label][test['severity']].append(test['metrics'])
    measured = common_metrics(tests)
    keys = [key for key in SHIFT_FIGURES[figure].keys if key in measured]
    return draw_severity(metrics_by_severity, keys, figure=figure)


def _drawn_tests(row: Row) -> list[Mapping]:
    """Return the tests on clean data and on corruptions, of all seeds of a row."""
    tests = []
    for run in row.runs:
        tests += [run.tests[0], *corruption_tests(run.tests)]
    return tests


def read_shifted_runs(folder: Path) -> list[ReportedRun]:
    """Return the tests under shift below a folder, a run for each model.

    Raises:
        FileNotFoundError: If there is none.
    """
    paths = sorted(folder.rglob(f'{CLEAN}/{RESULTS}'))
    if not paths:
        raise FileNotFoundError(f'there is no test below {folder}: {hint_text(SHIFT_HINT)}')
    runs = []
    for path in paths:
        runs += read_runs(path)
    return runs


def hint_text(hint: str) -> str:
    """Return a hint with the commands whose names are in braces."""
    return re.sub(r'\{(\w+)\}', lambda match: command_text(match[1]), hint)


def read_sweep(path: Path) -> dict:
    """Return the content of a ``sweep.json``.

    Raises:
        ValueError: If it is cut off, or something else.
    """
    content = read_json(path)
    try:
        check_shape(content, SWEEP_SHAPE)
    except TypeError as error:
        raise UserError(f'{path} is not of a sweep ({error}): sweep again') from error
    return content


@dataclass(frozen=True)
class FigureKind:
    """Kind of figure, and how it is drawn from what tests leave.

    Attributes:
        file: Name of the file in a work dir; empty for the work dir itself.
        read: Function that returns the content of such a file.
        draw: Function that draws contents by the names of their runs.
        hint: How to get the file, for an error, with the names of commands in braces.
    """

    file: str
    read: Callable[[Path], Any]
    draw: Callable[..., Figure]
    hint: str


FIGURE_KINDS = {
    'reliability': FigureKind(
        STATISTICS, CalibrationStatistics.load, draw_reliability, STATISTICS_HINT
    ),
    'by-image': FigureKind(
        STATISTICS, CalibrationStatistics.load, draw_image_calibration, STATISTICS_HINT
    ),
    'risk': FigureKind(STATISTICS, CalibrationStatistics.load, draw_risk_coverage, STATISTICS_HINT),
    'boundary': FigureKind(
        STATISTICS, CalibrationStatistics.load, draw_boundary_curves, STATISTICS_HINT
    ),
    'maps': FigureKind(MAPS, ConfidenceMaps.load, draw_confidence_maps, MAPS_HINT),
    'worst': FigureKind(
        MAPS, ConfidenceMaps.load, partial(draw_confidence_maps, worst=True), MAPS_HINT
    ),
    'images': FigureKind(
        'images.csv',
        read_image_scores,
        draw_image_risk,
        "a test with ImageScoreMetric(out_file='images.csv') in its evaluator writes it",
    ),
    'robustness': FigureKind('', read_shifted_runs, draw_robustness, SHIFT_HINT),
    'sweep': FigureKind(SWEEP, read_sweep, draw_sweep, '{sweep} writes it'),
}
