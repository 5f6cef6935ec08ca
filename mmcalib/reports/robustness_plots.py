"""Figures of tests on shifted data, out of what tools/test_robustness.py left."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure

from mmcalib.metric_keys import ECE, NLL, QUALITIES
from mmcalib.reports.loss_labels import loss_label
from mmcalib.reports.robustness_results import (
    clean_metrics,
    corrupted_tests,
    measures_of,
    read_robustness,
)
from mmcalib.visualization import (
    ConfidenceMaps,
    ShiftedModel,
    draw_corruption_sheet,
    draw_severity_boxes,
    draw_severity_lines,
)

FIGURES = ('boxes', 'lines', 'sheet')
Entry = tuple[Path, Mapping]


def robustness_figure(paths: Sequence[str | Path], what: str, *, severity: int = 3) -> Figure:
    """Draw one of :data:`FIGURES` of the checkpoints in some folders or ``robustness.json``.

    Args:
        paths: Where the results are.
        what: Boxes over corruptions by severity, of the quality, ECE and NLL; lines of the mean
            ECE and NLL; or the sheet of one image under all corruptions.
        severity: Of the sheet.

    Raises:
        FileNotFoundError: If there are no results.
        ValueError: If they cannot be read, or have nothing to draw.
    """
    entries = list(_entries(paths))
    if what == 'sheet':
        return draw_corruption_sheet(_views(entries, severity))
    keys = measures_of([entry for _, entry in entries])
    if what == 'boxes':
        wanted = [key for key in (*QUALITIES, ECE, NLL) if key in keys]
        return draw_severity_boxes(_models(entries), wanted)
    return draw_severity_lines(_models(entries), [key for key in (ECE, NLL) if key in keys])


def figures_of(path: str | Path) -> list[str]:
    """Return which of :data:`FIGURES` can be drawn: no sheet of classifiers, none of clean data.

    Raises:
        FileNotFoundError: If there are no results.
        ValueError: If they cannot be read.
    """
    tests = [test for _, entry in _entries([path]) for test in corrupted_tests(entry)]
    if not tests:
        return []
    return [name for name in FIGURES if name != 'sheet' or any('map' in test for test in tests)]


def _entries(paths: Sequence[str | Path]) -> Iterator[Entry]:
    for path in paths:
        folder = Path(path) if Path(path).is_dir() else Path(path).parent
        for entry in read_robustness(path)['checkpoints']:
            yield folder, entry


def _models(entries: Sequence[Entry]) -> list[ShiftedModel]:
    """Return the checkpoints, those of other seeds as one."""
    values, before = defaultdict(lambda: defaultdict(list)), {}
    for _, entry in entries:
        label = entry['label']
        before[label] = loss_label(entry['loss']) if entry.get('loss') else label
        values[label][0].append(clean_metrics(entry))
        for test in corrupted_tests(entry):
            values[label][test['severity']].append(test['metrics'])
    return [ShiftedModel(label, before[label], found) for label, found in values.items()]


def _views(entries: Sequence[Entry], severity: int) -> dict[str, dict]:
    """Return the views of the first checkpoint of each label, by the names of the corruptions."""
    found = {}
    for folder, entry in entries:
        views = found.setdefault(entry['label'], {})
        if views:
            continue
        for test in entry['tests']:
            of_sheet = test['kind'] == 'clean' or test['severity'] == severity
            if 'map' in test and of_sheet:
                (view,) = ConfidenceMaps.load(folder / test['map']).views
                severe = f' {severity}' if test['severity'] else ''
                views[f'{test["name"]}{severe}'] = view
    return found
