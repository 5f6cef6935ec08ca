"""The tested runs below some folders, out of the records that their tests leave."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from numbers import Real
from pathlib import Path

from mmcalib.files import RESULTS, SWEEP, VALIDATION_RESULTS
from mmcalib.metrics.names import OOD
from mmcalib.openmmlab.datasets.with_ood_sets import OOD_GROUPS
from mmcalib.reports import shifts
from mmcalib.reports.metric_columns import CLEAN
from mmcalib.runs.record import Record, model_label
from mmcalib.runs.work_dir import EARLIER

# The files that tell of a run. Of a folder without a test, the first of them says why.
LEFT_OUT = {
    RESULTS: '',
    VALIDATION_RESULTS: 'not tested, only validated',
    'last_checkpoint': f'unfinished or not tested, no {RESULTS}',
}
ROLE = re.compile(r'best|epoch_\d+|iter_\d+|last weights')  # of a checkpoint, by its name
# Of an evaluation, what makes no other table.
NOT_COMPARED = ('limit', 'shift', 'ood')
# Of an evaluation: what unseen classes are told from the others by.
OF_OOD = ('dataset', 'data_options', 'pipeline', 'inference', 'tta')


@dataclass
class TestedRun:
    """What a tested run has for one table.

    Attributes:
        path: Its folder.
        record: Of its test.
        metrics: The figures for the table, by key.
        evaluation: How they were measured.
        kind: What the table is of, if not of the test data alone, such as ``'under shift'``.
        about: The details of that, such as the corruptions.
        suffix: Tells the run from others of one record.
        tests: On shifted data, see :func:`~mmcalib.reports.shifts.tests_in`.
    """

    path: str
    record: Record
    metrics: dict[str, float]
    evaluation: dict
    kind: str = ''
    about: str = ''
    suffix: str = ''
    tests: list[dict] = field(default_factory=list)

    @property
    def config(self) -> dict:
        """What decided about the training, of the first member."""
        return self.record.model['members'][0]['training']

    @property
    def network(self) -> dict:
        """The trained model without its losses, and what normalises its inputs."""
        return {key: part for key, part in self.config['model'].items() if key != 'train_cfg'}

    @property
    def checkpoint(self) -> str:
        """Which checkpoints of their trainings were tested, by their names."""
        found = {ROLE.match(member['file']) for member in self.record.model['members']}
        return ' & '.join(sorted({role[0] if role else 'renamed' for role in found}))

    @property
    def label(self) -> str:
        """The loss and the steps after the training."""
        return model_label(self.record.model, experiment=self.record.experiment) + self.suffix


def find_runs(folders: Sequence[str | Path]) -> tuple[list[TestedRun], list[str]]:
    """Return the tested runs below some folders, and a line for each reason to leave others out.

    Tests of a model on shifted data are a run together; each score by which unseen classes were
    told from the others is one, and each evaluation of a sweep on validation data. What later
    trainings have set aside is no run.

    Raises:
        FileNotFoundError: If there is no tested run.
    """
    runs, others = [], defaultdict(list)
    found = {
        path.parent
        for root in map(Path, folders)
        for path in root.rglob('*')
        if path.name in LEFT_OUT and f'/{EARLIER}' not in f'/{path.relative_to(root)}'
    }
    for folder in sorted(found):
        here = [name for name in LEFT_OUT if (folder / name).is_file()]
        # A sweep chooses by the results on validation data, and tests the chosen value alone.
        wanted = (RESULTS, VALIDATION_RESULTS) if sweep_of(folder) else (RESULTS,)
        if not {*here} & {*wanted}:
            others[LEFT_OUT[here[0]]].append(str(folder))
        for name in (name for name in here if name in wanted):
            try:
                read = list(read_runs(folder / name))
            except (OSError, ValueError) as error:
                others[f'unreadable {name}'].append(f'{folder} ({error})')
                continue
            why = _unfit(read[0].record) if read else ''
            if why:
                others[why].append(str(folder))
            elif not read and not (folder.parent / CLEAN / RESULTS).is_file():
                others['under shift, but without its test of clean data'].append(str(folder.parent))
            else:
                runs += read
    said = {why: ', '.join(dict.fromkeys(paths)) for why, paths in others.items()}
    lines = [f'In no table, {why}: {paths}.' for why, paths in said.items()]
    if not runs:
        where = ', '.join(map(str, folders))
        raise FileNotFoundError(' '.join([f'no {RESULTS} to report below {where}.', *lines]))
    return runs, lines


def sweep_of(folder: str | Path) -> Path | None:
    """Return the folder of the sweep that a training is part of, by its value or value and seed."""
    above = [*Path(folder).parents][:2]
    return next((parent for parent in above if (parent / SWEEP).is_file()), None)


def _unfit(record: Record) -> str:
    """Return why no figure of a test may stand beside those of others."""
    if record.limit:
        return 'smoke runs with --limit'
    finished = all(member['finished'] is not False for member in record.model['members'])
    return '' if finished else 'training unfinished'


def read_runs(path: Path) -> Iterator[TestedRun]:
    """Yield what a ``results.json`` has for tables; tests under shift are read with the clean one.

    Raises:
        OSError: If it cannot be opened.
        ValueError: If it is cut off or another file.
    """
    record = Record.read(path)
    folder, shift = str(path.parent), record.evaluation.get('shift')
    how = {key: part for key, part in record.evaluation.items() if key not in NOT_COMPARED}
    if shift:
        if shift['kind'] == 'clean':
            folder = path.parents[1]
            tests = shifts.tests_in(folder)
            about = dict(kind='under shift', about=f'under {shifts.words(tests)}', tests=tests)
            yield TestedRun(str(folder), record, shifts.columns(tests), how, **about)
        return
    unseen = record.evaluation.get('ood', ())
    prefixes = tuple(f'{metric["prefix"]}/' for metric in unseen)
    rest = {
        key: value
        for key, value in record.metrics.items()
        if isinstance(value, Real) and not key.startswith(prefixes)  # a confusion matrix is none
    }
    if rest or not unseen:
        yield TestedRun(folder, record, rest, how)
    for metric in unseen:
        yield from _against_unseen(folder, record, metric)


def _against_unseen(folder: str, record: Record, metric: dict) -> Iterator[TestedRun]:
    """Yield what each score tells of unseen classes, whose keys are ``ood/svhn/AUROC`` and so on.

    A mean over a group of one set is that set's, and left out.
    """
    counts = metric['counts']
    sets = {name: n for name, n in counts.items() if name not in ('ID', 'OOD')}
    evaluation = {key: record.evaluation[key] for key in OF_OOD if key in record.evaluation}
    if sets:  # behind the samples of the test data
        evaluation['dataset'] = {**evaluation.get('dataset', {}), 'samples': counts['ID']}
        about = 'against ' + ', '.join(f'{n:,} of {name}' for name, n in sets.items())
    else:
        label = '' if metric['ood_index'] is None else f' of label {metric["ood_index"]}'
        about = f'against {counts.get("OOD", 0):,}{label}, {counts["ID"]:,} others'
    about = dict(kind='against unseen classes', about=about)
    for score in metric['scores']:
        start = f'{metric["prefix"]}/{score}/'
        found = {
            OOD + key.removeprefix(start): value
            for key, value in record.metrics.items()
            if key.startswith(start)
            and isinstance(value, Real)
            and not (len(sets) == 1 and key.removeprefix(start).split('/')[0] in OOD_GROUPS)
        }
        yield TestedRun(folder, record, found, evaluation, suffix=f' by {score}', **about)
