"""Results of tests on shifted data: ``robustness.json`` and its table."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import mmengine

from mmcalib.metrics.keys import (
    AECE,
    AUGRC,
    CLEAN,
    ECE,
    MEAN,
    NLL,
    QUALITIES,
    WORST,
    metric_heading,
    number_text,
    worst,
)
from mmcalib.record import read_json
from mmcalib.reports.formats import table_text
from mmcalib.transforms.corruption_names import BENCHMARK, GROUPS
from mmcalib.work_dir import ROBUSTNESS, whole_file

# The metrics that are compared.
MEASURES = (*QUALITIES, ECE, AECE, NLL, AUGRC)
KINDS = ('clean', 'corruption', 'data')


def write_robustness(folder: str | Path, content: Mapping) -> None:
    """Write a ``robustness.json`` as a whole or not at all."""
    with whole_file(Path(folder, ROBUSTNESS)) as path:
        mmengine.dump(content, path, indent=1)


def read_robustness(path: str | Path) -> dict:
    """Read a ``robustness.json``, by its path or that of its folder.

    Raises:
        FileNotFoundError: If there is none.
        ValueError: If it is cut off.
    """
    path = Path(path, ROBUSTNESS) if Path(path).is_dir() else Path(path)
    if not path.is_file():
        raise FileNotFoundError(f'there is no {path}: tools/test_robustness.py writes it')
    return read_json(path, 'run tools/test_robustness.py again; it keeps finished tests')


def measures_of(entries: Sequence[Mapping]) -> list[str]:
    """Return the keys that all tests of all checkpoints have, in the order of tables."""
    tests = [test['metrics'] for entry in entries for test in entry['tests']]
    return [key for key in MEASURES if all(key in metrics for metrics in tests)]


def clean_metrics(entry: Mapping) -> dict[str, float]:
    """Return the metrics of a checkpoint on clean data."""
    return next(test['metrics'] for test in entry['tests'] if test['kind'] == 'clean')


def corrupted_tests(entry: Mapping) -> list[dict]:
    """Return the tests of a checkpoint that stand for it: without those held out, if others are."""
    tests = [test for test in entry['tests'] if test['kind'] == 'corruption']
    return [test for test in tests if test['name'] in BENCHMARK] or tests


def mean_and_worst(tests: Sequence[Mapping], key: str) -> tuple[float, float]:
    """Return mean and worst value of a metric over tests, NaN if one of them is NaN."""
    values = [test['metrics'][key] for test in tests]
    if any(math.isnan(value) for value in values):
        return math.nan, math.nan
    return statistics.fmean(values), worst(key, values)


def files_of(entries: Sequence[Mapping]) -> list[str | None]:
    """Return the name of each checkpoint of a call that has another's label and seed, else None.

    Of files of one name it is the path.
    """
    keys = [(entry['label'], entry.get('seed')) for entry in entries]
    paths = [str(entry.get('checkpoint')) for entry in entries]
    names = [(*key, Path(path).name) for key, path in zip(keys, paths, strict=True)]
    return [
        None if keys.count(key) == 1 else path if names.count(name) > 1 else name[-1]
        for key, path, name in zip(keys, paths, names, strict=True)
    ]


def made_by(test: Mapping) -> tuple[str | None, int]:
    """Return the stored set that a test's corrupted images are of, or None and their seed."""
    return test.get('stored'), test.get('seed', 0)


def shifts_text(entry: Mapping) -> str:
    """Return the corruptions and severities behind mean and worst, and their source, in words."""
    tests = corrupted_tests(entry)
    if not tests:
        return 'no corruption'
    severities = defaultdict(list)
    for test in tests:
        severities[test['name']].append(test['severity'])
    names = defaultdict(list)  # those of equal severities: calls may have had others
    for name, found in severities.items():
        names[tuple(sorted(found))].append(name)
    parts = []
    for found, alike in names.items():
        full = [name for name in BENCHMARK if name in alike] == list(BENCHMARK)
        what = 'the 15 corruptions of ImageNet-C' if full else ', '.join(alike)
        parts.append(f'{what} at severity {", ".join(map(str, found))}')
    text = '; '.join(parts)
    stored, seed = made_by(tests[0])
    if stored is not None:
        return f'stored set {stored}: {text}'
    return f'{text}, seed {seed}' if seed else text


def robustness_table(content: Mapping) -> str:
    """Return the tables of all checkpoints as text: clean, and mean and worst of each group."""
    entries, parts = content['checkpoints'], []
    for entry, file in zip(entries, files_of(entries), strict=True):
        keys = measures_of([entry])
        seed = [] if entry.get('seed') is None else [f'seed {entry["seed"]}']
        title = ', '.join([entry['label'], *seed, file or Path(entry['checkpoint']).name])
        rows = [
            [name, *(number_text(v, key) for key, v in zip(keys, values, strict=True))]
            for name, values in _rows(entry, keys)
        ]
        parts.append(f'{title}\n{table_text(["", *map(metric_heading, keys)], rows)}')
    return '\n\n'.join(parts)


def _rows(entry: Mapping, keys: Sequence[str]) -> Iterator[tuple[str, list[float]]]:
    clean = clean_metrics(entry)
    yield CLEAN, [clean[key] for key in keys]
    groups = {
        group: [t for t in entry['tests'] if t['kind'] == 'corruption' and t['name'] in names]
        for group, names in GROUPS.items()
    }
    if sum(bool(part) for group, part in groups.items() if group != 'holdout') > 1:
        groups['overall'] = corrupted_tests(entry)
    for group, part in groups.items():
        if not part:
            continue
        both = [mean_and_worst(part, key) for key in keys]
        yield f'{group}, {MEAN}', [mean for mean, _ in both]
        yield f'{group}, {WORST}', [last for _, last in both]
    for test in entry['tests']:
        if test['kind'] == 'data':
            yield test['name'], [test['metrics'][key] for key in keys]
