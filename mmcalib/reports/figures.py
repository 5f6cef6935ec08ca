"""Figures of tested runs, out of the files that their tests left."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from matplotlib.figure import Figure

from mmcalib import visualization as drawing
from mmcalib.checks import UserError
from mmcalib.metrics import CalibrationStatistics
from mmcalib.metrics.keys import ECE, NLL, QUALITIES
from mmcalib.record import digest, read_json
from mmcalib.reports.runs import read_runs
from mmcalib.reports.shifted import ShiftedTests, measures_of, shifted_tests
from mmcalib.visualization.confidence_maps import BROKEN_FILE
from mmcalib.work_dir import MAPS, RESULTS, STATISTICS, SWEEP

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
    file = Path(path, name) if Path(path).is_dir() else Path(path)
    if not (file.is_file() if name else file.is_dir()):
        raise FileNotFoundError(f'there is no {file}: {HINTS[name]}')
    try:
        return read(file)
    except UserError:
        raise
    except BROKEN_FILE as error:
        raise UserError(f'{file} cannot be read ({error}): test that run again') from error


def draw(kind: str, runs: Mapping[str, object], **options) -> Figure:
    """Draw what :func:`load` returned of some runs, by their names.

    Raises:
        ValueError: If there is nothing to draw.
    """
    _, _, function = FIGURES[kind]
    return function(runs, **options)


def names_of(runs: Sequence[str | Path], names: Sequence[str] | None = None) -> list[str]:
    """Return the names of runs: the given ones, else their losses.

    Runs of one loss have their seeds behind it where these differ, else their paths.

    Raises:
        ValueError: If there are not as many names as runs.
    """
    if names is not None:
        if len(set(names)) != len(runs):
            raise UserError(f'{len(runs)} runs require as many names, got {sorted(set(names))}')
        return list(names)
    found = [_label_and_seed(Path(run)) for run in runs]
    labels = [label for label, _ in found]
    names = []
    for (label, seed), run in zip(found, runs, strict=True):
        apart = run if seed is None or found.count((label, seed)) > 1 else f'seed {seed}'
        names.append(f'{label}, {apart}' if labels.count(label) > 1 else label)
    return names


def _label_and_seed(run: Path) -> tuple[str, int | None]:
    try:
        first = next(read_runs((run if run.is_dir() else run.parent) / RESULTS))
    except (OSError, ValueError):  # the file of a figure can be whole without it
        return str(run), None
    return first.label, first.record.seed


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
    models = [model for found in runs.values() for model in found]
    tested = {(model.name, _tested(model)) for model in models}
    names = [name for name, _ in tested]
    named = defaultdict(list)  # the seeds of a name that were tested alike are drawn as one
    for model in models:
        more = f', {model.folder.parent}' if names.count(model.name) > 1 else ''
        named[model.name + more].append(model)
    for name in only or ():
        if name not in named:
            raise UserError(f'--only: no checkpoint is named {name!r}; there are {[*named]}')
    named = {name: named[name] for name in only or named}
    keys = measures_of([model for found in named.values() for model in found])
    values = {}
    for name, found in named.items():
        values[name] = defaultdict(list)
        for test in (test for model in found for test in (model.tests[0], *model.corrupted)):
            values[name][test['severity']].append(test['metrics'])
    _, wanted = SHIFT_FIGURES[figure]
    return drawing.draw_severity(values, [key for key in wanted if key in keys], figure=figure)


def _tested(model: ShiftedTests) -> str:
    """Return a digest of the training, the data, the protocol and the shifts of a model."""
    tests = sorted([test['name'], test['severity']] for test in model.corrupted)
    how = {key: part for key, part in model.clean.evaluation.items() if key != 'shift'}
    trained = [member['training'] for member in model.clean.model['members']]
    return digest([how, trained, tests, model.source])


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
    'robustness': ('', shifted_tests, _robustness),
    'sweep': (SWEEP, read_json, drawing.draw_sweep),
}
