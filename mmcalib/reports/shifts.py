"""Tests of one model on shifted data, read from the records of ``tools/test_robustness.py``.

A test is a dict with ``kind``, ``name``, ``severity``, ``seed`` or ``stored``, and ``metrics``.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from numbers import Real
from pathlib import Path

from mmcalib.choices import BENCHMARK, CORRUPTION_GROUPS, CORRUPTIONS
from mmcalib.files import RESULTS
from mmcalib.metrics.metric_text import AECE, AUGRC, ECE, NLL, QUALITIES, worst_value
from mmcalib.reports.metric_columns import CLEAN, MEAN, WORST
from mmcalib.runs.record import CONTENT, Record

COMPARED_METRICS = (*QUALITIES, ECE, AECE, NLL, AUGRC)
SHIFT_KINDS = ('clean', 'corruption', 'data')
# Parts of an evaluation in which tests of one model under shift may differ.
SHIFTED_PARTS = (CONTENT, 'dataset', 'data_options', 'pipeline', 'shift')


def tests_in(folder: Path) -> list[dict]:
    """Return the tests of a model: on clean data, then on corruptions, then on other data.

    Tests that were evaluated otherwise than the clean data, or whose corruptions are of another
    seed or set than the newest ones, are left out.

    Raises:
        ValueError: If a record cannot be read.
    """
    tests = _read_tests(folder)
    (clean,) = [test for test in tests if test['kind'] == 'clean']
    tests = [test for test in tests if test['evaluation'] == clean['evaluation']]
    corruptions = [test for test in tests if test['kind'] == 'corruption']
    if corruptions:
        newest = corruption_source(corruptions[-1])
        tests = [
            test
            for test in tests
            if test['kind'] != 'corruption' or corruption_source(test) == newest
        ]
    return sorted(tests, key=_sort_key)


def _read_tests(folder: Path) -> list[dict]:
    """Return the tests below a folder, the oldest first; a test without a shift is none of them."""
    records = [Record.read(path) for path in sorted(folder.glob(f'*/{RESULTS}'))]
    records.sort(key=lambda record: record.date)
    tests = []
    for record in records:
        if not record.evaluation.get('shift'):
            continue
        evaluation = {
            key: value for key, value in record.evaluation.items() if key not in SHIFTED_PARTS
        }
        outcome = {'metrics': record.metrics, 'evaluation': evaluation}
        tests.append(record.evaluation['shift'] | outcome)
    return tests


def _sort_key(test: Mapping) -> tuple[int, int, int, str]:
    kind = test['kind']
    name = test['name']
    corruption = CORRUPTIONS.index(name) if kind == 'corruption' else 0
    return SHIFT_KINDS.index(kind), corruption, test['severity'], name


def corruption_source(test: Mapping) -> dict:
    """Return the ``seed`` or the ``stored`` set of a corruption."""
    return {key: test[key] for key in ('seed', 'stored') if key in test}


def corruption_tests(tests: Sequence[Mapping]) -> list[Mapping]:
    """Return the tests on corruptions, without those held out if there are others."""
    corruptions = [test for test in tests if test['kind'] == 'corruption']
    return [test for test in corruptions if test['name'] in BENCHMARK] or corruptions


def tests_by_group(tests: Sequence[Mapping]) -> dict[str, list[Mapping]]:
    """Return the tests on each group of corruptions, and on all if they are of several groups."""
    corruptions = [test for test in tests if test['kind'] == 'corruption']
    by_group = {}
    for group, names in CORRUPTION_GROUPS.items():
        by_group[group] = [test for test in corruptions if test['name'] in names]
    benchmark_groups = [group for group, part in by_group.items() if part and group != 'holdout']
    if len(benchmark_groups) > 1:
        by_group['overall'] = corruption_tests(tests)
    return by_group


def common_metrics(tests: Sequence[Mapping]) -> list[str]:
    """Return the keys of the compared metrics that all tests have, in the order of tables."""
    return [
        key
        for key in COMPARED_METRICS
        if all(isinstance(test['metrics'].get(key), Real) for test in tests)
    ]


def metrics_by_part(
    tests: Sequence[Mapping], by_group: Mapping[str, Sequence[Mapping]]
) -> dict[str, dict[str, float]]:
    """Return metrics by key, for clean data, mean and worst of each group, and other data.

    Args:
        tests: Tests of a model, the clean one first.
        by_group: Tests of each group of corruptions, by what stands before ``mean`` and ``worst``.
    """
    keys = common_metrics(tests)
    metrics = {CLEAN: {key: mean_over_tests(tests[:1], key) for key in keys}}
    for group, group_tests in by_group.items():
        if group_tests:
            start = f'{group}, ' if group else ''
            metrics[f'{start}{MEAN}'] = {key: mean_over_tests(group_tests, key) for key in keys}
        if len(group_tests) > 1:  # A lone one is the mean.
            metrics[f'{start}{WORST}'] = {key: worst_over_tests(group_tests, key) for key in keys}
    for test in tests:
        if test['kind'] == 'data':
            metrics[test['name']] = {key: mean_over_tests([test], key) for key in keys}
    return metrics


def shift_columns(tests: Sequence[Mapping]) -> dict[str, float]:
    """Return metrics by key and ``clean``, ``mean``, ``worst`` or the name of other data."""
    metrics = metrics_by_part(tests, {'': corruption_tests(tests)})
    columns = {}
    for key in common_metrics(tests):
        for part, values in metrics.items():
            columns[f'{key} {part}'] = values[key]
    return columns


def mean_over_tests(tests: Sequence[Mapping], key: str) -> float:
    """Return the mean of a metric over tests, NaN if one of them is NaN."""
    return statistics.fmean(test['metrics'][key] for test in tests)


def worst_over_tests(tests: Sequence[Mapping], key: str) -> float:
    """Return the worst value of a metric over tests, NaN if one of them is NaN."""
    values = [test['metrics'][key] for test in tests]
    # min and max ignore NaN, or not, by its position.
    return math.nan if any(map(math.isnan, values)) else worst_value(key, values)


def shift_description(tests: Sequence[Mapping]) -> str:
    """Return the corruptions and severities behind mean and worst, and their source."""
    corruptions = corruption_tests(tests)
    if not corruptions:
        return 'no corruption'
    text = '; '.join(corruptions_with_severities(corruptions))
    source = corruption_source(corruptions[0])
    if 'stored' in source:
        return f'stored set {source["stored"]}: {text}'
    return f'{text}, seed {source["seed"]}' if source.get('seed') else text


def corruptions_with_severities(corruptions: Sequence[Mapping]) -> list[str]:
    """Return ``snow, fog at severity 1, 5`` for each list of severities that corruptions have."""
    severities = defaultdict(list)
    for test in corruptions:
        severities[test['name']].append(str(test['severity']))
    names_by_severities = defaultdict(list)
    for name, texts in severities.items():
        names_by_severities[', '.join(texts)].append(name)
    parts = []
    for text, names in names_by_severities.items():
        is_benchmark = set(BENCHMARK) <= set(names)
        listed = 'the 15 corruptions of ImageNet-C' if is_benchmark else ', '.join(names)
        parts.append(f'{listed} at severity {text}')
    return parts
