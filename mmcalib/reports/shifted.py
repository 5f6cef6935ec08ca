"""Models tested on shifted data, out of the records that ``tools/test_robustness.py`` leaves."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mmcalib.metrics.keys import AECE, AUGRC, CLEAN, ECE, MEAN, NLL, QUALITIES, WORST, worst
from mmcalib.record import Record, model_label, paths_of
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
        folder: Of the tests, in their work dir.
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
        return {k: v for t in self.corrupted[:1] for k, v in t.items() if k in ('seed', 'stored')}

    def rows(self, groups: Mapping[str, Sequence[dict]]) -> dict[str, dict[str, float]]:
        """Return metrics by their keys: of clean data, mean and worst of each group, other data."""
        parts = {CLEAN: [self.tests[0]]}
        parts |= {f'{g}{end}': part for g, part in groups.items() for end in (MEAN, WORST) if part}
        parts |= {test['name']: [test] for test in self.tests if test['kind'] == 'data'}
        return {
            name: {key: summary(tests, key, name.endswith(WORST)) for key in measures_of([self])}
            for name, tests in parts.items()
        }

    @property
    def columns(self) -> dict[str, float]:
        """Metrics by key and ``clean``, ``mean``, ``worst`` or the name of other data."""
        rows = self.rows({'': self.corrupted})
        return {f'{key} {name}': rows[name][key] for key in measures_of([self]) for name in rows}

    @property
    def groups(self) -> dict[str, list[dict]]:
        """The tests of each group of corruptions, and of all if there are several."""
        tests = [test for test in self.tests if test['kind'] == 'corruption']
        groups = {f'{g}, ': [t for t in tests if t['name'] in names] for g, names in GROUPS.items()}
        several = sum(bool(part) for name, part in groups.items() if name != 'holdout, ') > 1
        return {**groups, 'overall, ': self.corrupted * several}

    @property
    def shifts(self) -> str:
        """The corruptions and severities behind mean and worst, and their source, in words."""
        severities, names = defaultdict(list), defaultdict(list)
        for test in self.corrupted:
            severities[test['name']].append(str(test['severity']))
        for name, found in severities.items():  # of several calls they may differ
            names[', '.join(found)].append(name)
        parts = []
        for found, alike in names.items():
            full = {*BENCHMARK} <= {*alike}
            what = 'the 15 corruptions of ImageNet-C' if full else ', '.join(alike)
            parts.append(f'{what} at severity {found}')
        text, source = '; '.join(parts) or 'no corruption', self.source
        if 'stored' in source:
            return f'stored set {source["stored"]}: {text}'
        return f'{text}, seed {source["seed"]}' if source.get('seed') else text


def shifted_tests(folder: str | Path) -> list[ShiftedTests]:
    """Return the models tested under shift in a work dir, the first tested first.

    A test that was measured otherwise than the clean data, or whose corruptions are of another seed
    or set than the newest, is left out; so are weights that others have replaced at their path.

    Raises:
        FileNotFoundError: If there is none.
        ValueError: If a record cannot be read.
    """
    folders = [path.parents[1] for path in Path(folder).glob(f'*/{CLEAN}/{RESULTS}')]
    if not folders:
        raise FileNotFoundError(f'{folder} has no test: tools/test_robustness.py leaves them')
    found = sorted(map(_tests_of, folders), key=lambda model: model.clean.date)
    models = [*{(*paths_of(model.clean.model),): model for model in found}.values()]
    names = [(model.name, model.clean.seed) for model in models]
    for model, name in zip(models, names, strict=True):
        if names.count(name) > 1:
            model.file = model.folder.name
    return models


def _tests_of(folder: Path) -> ShiftedTests:
    records = [Record.read(path) for path in sorted(folder.glob(f'*/{RESULTS}'))]
    (clean,) = [each for each in records if each.evaluation['shift']['kind'] == 'clean']
    records = [each for each in records if _how(each) == _how(clean)]
    of_corruptions = [r for r in records if r.evaluation['shift']['kind'] == 'corruption']
    newest = max(of_corruptions, key=lambda record: record.date, default=clean)
    tests = [
        {**each.evaluation['shift'], 'metrics': each.metrics}
        for each in records
        if each.evaluation['shift']['kind'] != 'corruption' or _source(each) == _source(newest)
    ]
    return ShiftedTests(folder, clean, sorted(tests, key=_place))


def _how(record: Record) -> dict:
    return {key: value for key, value in record.evaluation.items() if key not in OF_A_SHIFT}


def _source(record: Record) -> list:
    return [record.evaluation['shift'].get(key) for key in ('seed', 'stored')]


def _place(test: Mapping) -> tuple[int, int, int, str]:
    kind, name = test['kind'], test['name']
    number = CORRUPTIONS.index(name) if kind == 'corruption' else 0
    return KINDS.index(kind), number, test['severity'], name


def measures_of(models: Sequence[ShiftedTests]) -> list[str]:
    """Return the keys that all tests of all models have, in the order of tables."""
    found = [test['metrics'] for model in models for test in model.tests]
    return [key for key in MEASURES if all(key in metrics for metrics in found)]


def summary(tests: Sequence[Mapping], key: str, is_worst: bool) -> float:
    """Return mean or worst value of a metric over tests, NaN if one of them is NaN."""
    values = [test['metrics'][key] for test in tests]
    if any(math.isnan(value) for value in values):
        return math.nan
    return worst(key, values) if is_worst else statistics.fmean(values)
