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
    files_of,
    made_by,
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
SHEET_SEVERITY = 3  # or the nearest that was tested
Entry = tuple[Path, Mapping]


def robustness_figure(
    paths: Sequence[str | Path],
    what: str,
    *,
    severity: int | None = None,
    only: Sequence[str] | None = None,
) -> Figure:
    """Draw one of :data:`FIGURES` of the checkpoints in some folders or ``robustness.json``.

    Args:
        paths: Where the results are.
        what: Boxes over corruptions by severity, of the quality, ECE and NLL; lines of the mean
            ECE and NLL; or the sheet of one image under all corruptions.
        severity: Of the sheet; None for 3 or what was tested that is nearest to it.
        only: Names of the checkpoints to draw, as figures have them; None for all.

    Raises:
        FileNotFoundError: If there are no results.
        ValueError: If they cannot be read, have nothing to draw, none of a name, or are of one
            loss and were not tested alike.
    """
    entries = _named(list(_entries(paths)), only)
    _check_alike(entries)
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
    """Yield the folder of each checkpoint and what is said of it, with its ``name`` in figures."""
    for path in paths:
        folder = Path(path) if Path(path).is_dir() else Path(path).parent
        entries = read_robustness(path)['checkpoints']
        for entry, file in zip(entries, files_of(entries), strict=True):
            yield folder, {**entry, 'name': ', '.join(filter(None, [entry['label'], file]))}


def _named(entries: list[Entry], only: Sequence[str] | None) -> list[Entry]:
    """Return the checkpoints of some names, in the order of these."""
    if only is None:
        return entries
    known = list(dict.fromkeys(entry['name'] for _, entry in entries))
    for name in only:
        if name not in known:
            raise ValueError(f'--only: no checkpoint is named {name!r}; there are {known}')
    return [pair for name in dict.fromkeys(only) for pair in entries if pair[1]['name'] == name]


def _check_alike(entries: Sequence[Entry]) -> None:
    """Raise a ValueError if checkpoints of one name, as of several seeds, were not tested alike."""
    first = {}
    for folder, entry in entries:
        trained = (entry.get('trained') or {}).get('digest')
        tests = {(test['name'], test['severity'], made_by(test)) for test in corrupted_tests(entry)}
        alike = [entry.get('evaluation'), trained, tests]
        who = f'seed {entry.get("seed")} in {folder}'
        other, known = first.setdefault(entry['name'], (who, alike))
        if known == alike:
            continue
        what = ['on other data or by another protocol', 'after another training', 'on other shifts']
        how = next(text for text, a, b in zip(what, known, alike, strict=True) if a != b)
        raise ValueError(
            f'{entry["name"]}, {who}, was tested {how} than {other}, but both would share a box '
            'or line: test both alike, or draw them from separate folders'
        )


def _models(entries: Sequence[Entry]) -> list[ShiftedModel]:
    """Return the checkpoints, those of other seeds as one."""
    values, before = defaultdict(lambda: defaultdict(list)), {}
    for _, entry in entries:
        name = entry['name']
        plain = not entry.get('loss') or not entry.get('calibration')
        before[name] = name if plain else loss_label(entry['loss'])
        values[name][0].append(clean_metrics(entry))
        for test in corrupted_tests(entry):
            values[name][test['severity']].append(test['metrics'])
    return [ShiftedModel(name, before[name], found) for name, found in values.items()]


def _views(entries: Sequence[Entry], severity: int | None) -> dict[str, dict]:
    """Return the views of the first checkpoint of each name, by the names of the corruptions."""
    tests = [test for _, entry in entries for test in entry['tests'] if 'map' in test]
    tested = sorted({test['severity'] for test in tests} - {0})
    if severity is not None and tested and severity not in tested:
        known = ', '.join(map(str, tested))
        raise ValueError(f'there is no map for severity {severity}, only for {known}')
    if severity is None:
        severity = min(tested, key=lambda each: abs(each - SHEET_SEVERITY), default=0)
    found = {}
    for folder, entry in entries:
        views = found.setdefault(entry['name'], {})
        if views:
            continue
        for test in entry['tests']:
            of_sheet = test['kind'] == 'clean' or test['severity'] == severity
            if 'map' in test and of_sheet:
                (view,) = ConfidenceMaps.load(folder / test['map']).views
                severe = f' {severity}' if test['severity'] else ''
                views[f'{test["name"]}{severe}'] = view
    return found
