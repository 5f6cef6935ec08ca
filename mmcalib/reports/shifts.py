"""Tests of one model on shifted data, out of the records that ``tools/test_robustness.py`` leaves.

A test has ``kind``, ``name``, ``severity``, ``seed`` or ``stored``, and ``metrics``.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from numbers import Real
from pathlib import Path

from mmcalib.files import RESULTS
from mmcalib.metrics.names import AECE, AUGRC, ECE, NLL, QUALITIES, worst_value
from mmcalib.names import BENCHMARK, CORRUPTIONS, GROUPS
from mmcalib.reports.metric_columns import CLEAN, MEAN, WORST
from mmcalib.runs.record import Record

# The metrics that are compared.
MEASURES = (*QUALITIES, ECE, AECE, NLL, AUGRC)
KINDS = ('clean', 'corruption', 'data')
# Of a record's evaluation, what one test of a model has otherwise than another.
OF_A_SHIFT = ('dataset', 'data_options', 'pipeline', 'shift')


def tests_in(folder: Path) -> list[dict]:
    """Return the tests of a model, the clean one first, then corruptions, then other data.

    A test that was measured otherwise than the clean data, or whose corruptions are of another seed
    or set than the newest, is left out.

    Raises:
        ValueError: If a record cannot be read.
    """
    records = [Record.read(path) for path in sorted(folder.glob(f'*/{RESULTS}'))]
    # A work dir of another test may lie among them.
    records = [record for record in records if record.evaluation.get('shift')]
    records.sort(key=lambda record: record.date)
    tests = [
        {**each.evaluation['shift'], 'metrics': each.metrics, 'how': _how(each)} for each in records
    ]
    (clean,) = [test for test in tests if test['kind'] == 'clean']
    tests = [test for test in tests if test['how'] == clean['how']]
    sources = [source(test) for test in tests if test['kind'] == 'corruption']
    kept = [test for test in tests if test['kind'] != 'corruption' or source(test) == sources[-1]]
    return sorted(kept, key=_place)


def _how(record: Record) -> dict:
    return {key: value for key, value in record.evaluation.items() if key not in OF_A_SHIFT}


def _place(test: Mapping) -> tuple[int, int, int, str]:
    kind, name = test['kind'], test['name']
    number = CORRUPTIONS.index(name) if kind == 'corruption' else 0
    return KINDS.index(kind), number, test['severity'], name


def source(test: Mapping) -> dict:
    """Return the ``seed`` or the ``stored`` set of a corruption."""
    return {key: test[key] for key in ('seed', 'stored') if key in test}


def corrupted(tests: Sequence[Mapping]) -> list[Mapping]:
    """Return the tests that stand for all: without corruptions held out, if there are others."""
    tests = [test for test in tests if test['kind'] == 'corruption']
    return [test for test in tests if test['name'] in BENCHMARK] or tests


def groups(tests: Sequence[Mapping]) -> dict[str, list[Mapping]]:
    """Return the tests of each group of corruptions, and of all if there are several."""
    of_all = [test for test in tests if test['kind'] == 'corruption']
    found = {f'{g}, ': [t for t in of_all if t['name'] in names] for g, names in GROUPS.items()}
    several = sum(bool(part) for name, part in found.items() if name != 'holdout, ') > 1
    return {**found, 'overall, ': corrupted(tests) * several}


def measures_of(tests: Sequence[Mapping]) -> list[str]:
    """Return the keys that all tests have, in the order of tables."""
    return [key for key in MEASURES if all(isinstance(t['metrics'].get(key), Real) for t in tests)]


def rows(
    tests: Sequence[Mapping], parts: Mapping[str, Sequence[Mapping]]
) -> dict[str, dict[str, float]]:
    """Return metrics by their keys: of clean data, mean and worst of each part, other data."""
    named = {CLEAN: tests[:1]}
    named |= {f'{name}{end}': part for name, part in parts.items() for end in (MEAN, WORST) if part}
    named |= {test['name']: [test] for test in tests if test['kind'] == 'data'}
    return {
        name: {key: _summary(part, key, name.endswith(WORST)) for key in measures_of(tests)}
        for name, part in named.items()
    }


def columns(tests: Sequence[Mapping]) -> dict[str, float]:
    """Return metrics by key and ``clean``, ``mean``, ``worst`` or the name of other data."""
    found = rows(tests, {'': corrupted(tests)})
    return {f'{key} {name}': found[name][key] for key in measures_of(tests) for name in found}


def _summary(tests: Sequence[Mapping], key: str, is_worst: bool) -> float:
    """Return mean or worst value of a metric over tests, NaN if one of them is NaN."""
    values = [test['metrics'][key] for test in tests]
    if any(map(math.isnan, values)):
        return math.nan
    return worst_value(key, values) if is_worst else statistics.fmean(values)


def words(tests: Sequence[Mapping]) -> str:
    """Return the corruptions and severities behind mean and worst, and their source."""
    severities, alike, tests = defaultdict(list), defaultdict(list), corrupted(tests)
    for test in tests:
        severities[test['name']].append(str(test['severity']))
    for name, found in severities.items():  # of several calls they may differ
        alike[', '.join(found)].append(name)
    parts = []
    for found, names in alike.items():
        full = {*BENCHMARK} <= {*names}
        what = 'the 15 corruptions of ImageNet-C' if full else ', '.join(names)
        parts.append(f'{what} at severity {found}')
    text, made = '; '.join(parts) or 'no corruption', source(tests[0]) if tests else {}
    if 'stored' in made:
        return f'stored set {made["stored"]}: {text}'
    return f'{text}, seed {made["seed"]}' if made.get('seed') else text
