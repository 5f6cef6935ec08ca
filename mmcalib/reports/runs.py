"""The tested runs below some folders, out of the records that their tests leave."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from numbers import Real
from pathlib import Path

from mmcalib.metrics.keys import CLEAN, OOD
from mmcalib.record import Record, model_label
from mmcalib.reports.shifted import shifted_tests
from mmcalib.samples import OOD_GROUPS
from mmcalib.work_dir import EARLIER, RESULTS, SWEEP, VALIDATION_RESULTS

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
class Run:
    """What a tested run has for one table.

    Attributes:
        path: Its folder.
        record: Of its test.
        metrics: The figures for the table, by key.
        evaluation: How they were measured.
        kind: What the table is of, if not of the test data alone, such as ``'under shift'``.
        about: The details of that, such as the corruptions.
        suffix: Tells the run from others of one record.
    """

    path: str
    record: Record
    metrics: dict[str, float]
    evaluation: dict
    kind: str = ''
    about: str = ''
    suffix: str = ''

    @property
    def members(self) -> list[dict]:
        """The networks of the tested model."""
        return self.record.model['members']

    @property
    def config(self) -> dict:
        """What decided about the training, of the first member."""
        return self.members[0]['training']

    @property
    def network(self) -> dict:
        """The trained model without its losses, and what normalises its inputs."""
        return {key: part for key, part in self.config['model'].items() if key != 'train_cfg'}

    @property
    def epochs(self) -> int | None:
        """The planned length of the training, None if it is not in epochs."""
        return (self.config.get('train_cfg') or {}).get('max_epochs')

    @property
    def checkpoint(self) -> str:
        """Which checkpoints of their trainings were tested, by their names."""
        found = {ROLE.match(member['file']) for member in self.members}
        return ' & '.join(sorted({role[0] if role else 'renamed' for role in found}))

    @property
    def label(self) -> str:
        """The loss and the steps after the training."""
        return model_label(self.record.model, experiment=self.record.experiment) + self.suffix


def find_runs(folders: Sequence[str | Path]) -> tuple[list[Run], dict[str, list[str]]]:
    """Return the tested runs below some folders, and the paths of the others by what they lack.

    Tests on shifted data are runs of their own; so is each score by which unseen classes were told
    from the others, and each evaluation of a sweep on validation data. What later trainings have
    set aside is no run.

    Raises:
        FileNotFoundError: If there is no tested run.
    """
    runs, others = [], defaultdict(list)
    paths = {
        path
        for root in map(Path, folders)
        for path in root.rglob('*')
        if path.name in LEFT_OUT and f'/{EARLIER}' not in f'/{path.relative_to(root)}'
    }
    for path in sorted(paths):
        folder = str(path.parent)
        first = next(name for name in LEFT_OUT if path.with_name(name).is_file())
        # A sweep chooses by the results on validation data, and tests the chosen value alone.
        of_sweep = path.name == VALIDATION_RESULTS and (path.parents[1] / SWEEP).is_file()
        if path.name != RESULTS and not of_sweep:
            if path.name == first:
                others[LEFT_OUT[first]].append(folder)
            continue
        try:
            found = list(read_runs(path))
        except (OSError, ValueError) as error:
            others[f'unreadable {path.name}'].append(f'{folder} ({error})')
            continue
        if any(run.record.limit for run in found):
            others['smoke runs with --limit'].append(folder)
        else:
            runs += found
    if not runs:
        found = ''.join(f'; {reason}: {", ".join(paths)}' for reason, paths in others.items())
        raise FileNotFoundError(f'no {RESULTS} below {", ".join(map(str, folders))}{found}')
    return runs, dict(others)


def read_runs(path: Path) -> Iterator[Run]:
    """Yield what a ``results.json`` has for tables.

    Tests under shift are a run together, at the first of their clean tests.

    Raises:
        OSError: If it cannot be opened.
        ValueError: If it is cut off or another file.
    """
    record = Record.read(path)
    if 'shift' in record.evaluation:
        folder = path.parents[2]
        first = path == min(folder.glob(f'*/{CLEAN}/{RESULTS}'), default=None)
        for model in shifted_tests(folder) if first else ():
            if len(model.tests) > 1:
                about = dict(kind='under shift', about=f'under {model.shifts}')
                about['suffix'] = f', {model.file}' if model.file else ''
                how = _compared(model.clean)
                yield Run(str(folder), model.clean, model.columns, how, **about)
        return
    unseen = record.evaluation.get('ood', ())
    prefixes = tuple(f'{metric["prefix"]}/' for metric in unseen)
    rest = {
        key: value
        for key, value in record.metrics.items()
        if isinstance(value, Real) and not key.startswith(prefixes)  # a confusion matrix is none
    }
    if rest or not unseen:
        yield Run(str(path.parent), record, rest, _compared(record))
    for metric in unseen:
        yield from _against_unseen(str(path.parent), record, metric)


def _compared(record: Record) -> dict:
    return {key: part for key, part in record.evaluation.items() if key not in NOT_COMPARED}


def _against_unseen(folder: str, record: Record, metric: dict) -> Iterator[Run]:
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
            and not (len(sets) == 1 and key.removeprefix(start).split('/')[0] in OOD_GROUPS)
        }
        yield Run(folder, record, found, evaluation, suffix=f' by {score}', **about)
