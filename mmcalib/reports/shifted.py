"""Models tested on shifted data, out of the records that ``tools/test_robustness.py`` leaves."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

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
from mmcalib.record import Record, model_label
from mmcalib.reports.formats import table_text
from mmcalib.transforms.corruption_names import BENCHMARK, CORRUPTIONS, GROUPS
from mmcalib.work_dir import RESULTS

# The metrics that are compared.
MEASURES = (*QUALITIES, ECE, AECE, NLL, AUGRC)
KINDS = ('clean', 'corruption', 'data')
# Of a record's evaluation, what one test of a model has otherwise than another.
OF_A_SHIFT = ('dataset', 'data_options', 'pipeline', 'shift')


@dataclass
class ShiftedTests:
    """A model's record on clean data, and its tests on shifted data measured alike.

    Attributes:
        folder: Of the tests, a work dir.
        clean: The record.
        tests: Each ``kind``, ``name``, ``severity``, ``seed`` or ``stored``, and ``metrics``; the
            clean one first.
        file: Tells it from others of one loss and seed, empty if nothing need do so.
    """

    folder: Path
    clean: Record
    tests: list[dict]
    file: str = ''

    @property
    def name(self) -> str:
        label = model_label(self.clean.model, experiment=self.clean.experiment)
        return ', '.join(filter(None, [label, self.file]))

    @property
    def corrupted(self) -> list[dict]:
        """The tests that stand for it: without the corruptions held out, if there are others."""
        tests = [test for test in self.tests if test['kind'] == 'corruption']
        return [test for test in tests if test['name'] in BENCHMARK] or tests

    @property
    def source(self) -> dict:
        """The ``seed`` or the ``stored`` set of the corruptions."""
        first = self.corrupted[0] if self.corrupted else {}
        return {key: first[key] for key in ('seed', 'stored') if key in first}


def shifted_tests(folder: str | Path) -> list[ShiftedTests]:
    """Return the models tested under shift in a work dir, the first tested first.

    A test that was measured otherwise than the clean data, or whose corruptions are of another seed
    or set than the newest, is left out; so are weights that others have replaced at their path.

    Raises:
        FileNotFoundError: If there is none.
        ValueError: If a record cannot be read.
    """
    by_path = {}
    for path in Path(folder).glob(f'*/{CLEAN}/{RESULTS}'):
        found = _tests_of(path.parents[1], Path(folder))
        key = tuple(member['checkpoint'] for member in found.clean.model['members'])
        if key not in by_path or by_path[key].clean.date < found.clean.date:
            by_path[key] = found
    if not by_path:
        raise FileNotFoundError(f'{folder} has no test: tools/test_robustness.py leaves them')
    models = sorted(by_path.values(), key=lambda found: found.clean.date)
    keys = [(found.name, found.clean.seed) for found in models]
    paths = [str(found.clean.model['members'][0]['checkpoint']) for found in models]
    names = [(*key, Path(path).name) for key, path in zip(keys, paths, strict=True)]
    for found, key, path, name in zip(models, keys, paths, names, strict=True):
        if keys.count(key) > 1:  # of files of one name it is the path
            found.file = path if names.count(name) > 1 else name[-1]
    return models


def _tests_of(folder: Path, work_dir: Path) -> ShiftedTests:
    records = [Record.read(path) for path in sorted(folder.glob(f'*/{RESULTS}'))]
    (clean,) = [each for each in records if each.evaluation['shift']['kind'] == 'clean']
    records = [each for each in records if _how(each) == _how(clean)]
    of_corruptions = [r for r in records if r.evaluation['shift']['kind'] == 'corruption']
    newest = max(of_corruptions, key=lambda record: record.date, default=clean)
    source = {k: newest.evaluation['shift'].get(k) for k in ('seed', 'stored')}
    tests = [{**each.evaluation['shift'], 'metrics': each.metrics} for each in records]
    tests = [
        test
        for test in tests
        if test['kind'] != 'corruption' or {k: test.get(k) for k in source} == source
    ]
    return ShiftedTests(work_dir, clean, sorted(tests, key=_place))


def _how(record: Record) -> dict:
    return {key: value for key, value in record.evaluation.items() if key not in OF_A_SHIFT}


def _place(test: Mapping) -> tuple[int, int, int, str]:
    kind, name, severity = test['kind'], test['name'], test['severity']
    number = CORRUPTIONS.index(name) if kind == 'corruption' else 0
    return KINDS.index(kind), number, severity, name


def measures_of(models: Sequence[ShiftedTests]) -> list[str]:
    """Return the keys that all tests of all models have, in the order of tables."""
    found = [test['metrics'] for model in models for test in model.tests]
    return [key for key in MEASURES if all(key in metrics for metrics in found)]


def mean_and_worst(tests: Sequence[Mapping], key: str) -> tuple[float, float]:
    """Return mean and worst value of a metric over tests, NaN if one of them is NaN."""
    values = [test['metrics'][key] for test in tests]
    if any(math.isnan(value) for value in values):
        return math.nan, math.nan
    return statistics.fmean(values), worst(key, values)


def columns(model: ShiftedTests) -> dict[str, float]:
    """Return a model's metrics by key and ``clean``, ``mean``, ``worst`` or the name of data."""
    found, corrupted = {}, model.corrupted
    for key in measures_of([model]):
        found[f'{key} {CLEAN}'] = model.clean.metrics[key]
        if corrupted:
            ends = mean_and_worst(corrupted, key)
            found |= {f'{key} {end}': v for end, v in zip((MEAN, WORST), ends, strict=True)}
        others = [test for test in model.tests if test['kind'] == 'data']
        found |= {f'{key} {test["name"]}': test['metrics'][key] for test in others}
    return found


def shifts_text(model: ShiftedTests) -> str:
    """Return the corruptions and severities behind mean and worst, and their source, in words."""
    severities = defaultdict(list)
    for test in model.corrupted:
        severities[test['name']].append(test['severity'])
    names = defaultdict(list)  # those of equal severities: calls may have had others
    for name, found in severities.items():
        names[tuple(found)].append(name)
    parts = []
    for found, alike in names.items():
        full = [name for name in BENCHMARK if name in alike] == list(BENCHMARK)
        what = 'the 15 corruptions of ImageNet-C' if full else ', '.join(alike)
        parts.append(f'{what} at severity {", ".join(map(str, found))}')
    text, source = '; '.join(parts) or 'no corruption', model.source
    if 'stored' in source:
        return f'stored set {source["stored"]}: {text}'
    return f'{text}, seed {source["seed"]}' if source.get('seed') else text


def robustness_table(models: Sequence[ShiftedTests]) -> str:
    """Return the tables of models as text: clean, and mean and worst of each group."""
    parts = []
    for model in models:
        keys, seed = measures_of([model]), model.clean.seed
        file = model.file or Path(model.clean.model['members'][0]['checkpoint']).name
        label = model_label(model.clean.model, experiment=model.clean.experiment)
        title = ', '.join([label, *([] if seed is None else [f'seed {seed}']), file])
        rows = [
            [name, *(number_text(v, key) for key, v in zip(keys, values, strict=True))]
            for name, values in _rows(model, keys)
        ]
        parts.append(f'{title}\n{table_text(["", *map(metric_heading, keys)], rows)}')
    return '\n\n'.join(parts)


def _rows(model: ShiftedTests, keys: Sequence[str]) -> Iterator[tuple[str, list[float]]]:
    yield CLEAN, [model.clean.metrics[key] for key in keys]
    groups = {
        group: [t for t in model.tests if t['kind'] == 'corruption' and t['name'] in names]
        for group, names in GROUPS.items()
    }
    if sum(bool(part) for group, part in groups.items() if group != 'holdout') > 1:
        groups['overall'] = model.corrupted
    for group, part in groups.items():
        if part:
            both = [mean_and_worst(part, key) for key in keys]
            for end, values in zip((MEAN, WORST), zip(*both, strict=True), strict=True):
                yield f'{group}, {end}', values
    for test in model.tests:
        if test['kind'] == 'data':
            yield test['name'], [test['metrics'][key] for key in keys]
