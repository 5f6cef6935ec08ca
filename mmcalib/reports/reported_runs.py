"""Tested runs below some folders, read from the records that their tests leave."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from pathlib import Path

from mmcalib.choices import OOD_GROUPS
from mmcalib.files import EARLIER, EARLY_STOP, RESULTS, SWEEP, VALIDATION_RESULTS
from mmcalib.metrics.metric_text import OOD
from mmcalib.reports.compare_tests import unprinted_metrics
from mmcalib.reports.contents import unify_data, unify_trainings
from mmcalib.reports.metric_columns import CLEAN
from mmcalib.reports.shifts import shift_columns, shift_description, tests_in
from mmcalib.runs.labels import record_label
from mmcalib.runs.record import Record
from mmcalib.texts import command_text

# Files that mark the folder of a run.
FILES_OF_RUN = (RESULTS, VALIDATION_RESULTS, EARLY_STOP, 'last_checkpoint')
CHECKPOINT_ROLE = re.compile(r'best|epoch_\d+|iter_\d+|last weights')
# Parts of an evaluation that make no other table.
NOT_COMPARED = ('limit', 'shift', 'ood')
# Parts of an evaluation that decide how OOD classes are told from the others.
OOD_EVALUATION = ('dataset', 'data_options', 'pipeline', 'inference', 'tta')


@dataclass
class ReportedRun:
    """Part of a tested run that stands in one table.

    Attributes:
        path: Folder of the run.
        record: Record of its test.
        metrics: Values for the table, by key.
        evaluation: How they were measured.
        kind: Kind of the table, such as ``'under shift'``; empty for the test data alone.
        details: Details of that, such as the corruptions.
        suffix: Text that tells it from other parts of the same record.
        tests: Tests on shifted data, see :func:`~mmcalib.reports.shifts.tests_in`.
    """

    path: str
    record: Record
    metrics: dict[str, float]
    evaluation: dict
    kind: str = ''
    details: str = ''
    suffix: str = ''
    tests: list[dict] = field(default_factory=list)

    @property
    def config(self) -> dict:
        """Config of what decided about the training, of the first member."""
        return self.record.model['members'][0]['training']

    @property
    def network(self) -> dict:
        """Config of the trained model without its losses."""
        return {key: part for key, part in self.config['model'].items() if key != 'train_cfg'}

    @property
    def checkpoint(self) -> str:
        """Roles of the tested checkpoints in their trainings, by their names."""
        roles = set()
        for member in self.record.model['members']:
            match = CHECKPOINT_ROLE.match(member['file'])
            roles.add(match[0] if match else 'renamed')
        return ' & '.join(sorted(roles))

    @property
    def label(self) -> str:
        """Name of the loss and of the steps after the training."""
        return record_label(self.record) + self.suffix


def find_runs(folders: Sequence[str | Path]) -> tuple[list[ReportedRun], list[str]]:
    """Return the tested runs below some folders, and a line for each reason to exclude others.

    Tests of a model on shifted data are one run together. Each score that tells OOD classes from
    the others is a run, and so is each evaluation of a sweep on validation data. Trainings that
    later ones have set aside are no runs.

    Raises:
        FileNotFoundError: If there is no tested run.
    """
    runs = []
    excluded = defaultdict(list)
    for folder in _run_folders(folders):
        files = [name for name in FILES_OF_RUN if (folder / name).is_file()]
        records = [name for name in files if name in _reported_files(folder)]
        if not records:
            excluded[_untested_reason(files[0])].append(str(folder))
        for name in records:
            try:
                runs_of_record = list(read_runs(folder / name))
            except (OSError, ValueError) as error:
                excluded[f'unreadable {name}'].append(f'{folder} ({error})')
                continue
            reason = _reason_to_exclude(runs_of_record[0].record) if runs_of_record else ''
            if reason:
                excluded[reason].append(str(folder))
            elif runs_of_record:
                runs += runs_of_record
            elif not (folder.parent / CLEAN / RESULTS).is_file():
                reason = 'under shift, but without its test of clean data'
                excluded[reason].append(str(folder.parent))
    unify_trainings([run.record for run in runs])
    unify_data([run.evaluation for run in runs])
    lines = []
    for reason, paths in excluded.items():
        lines.append(f'In no table, {reason}: {", ".join(dict.fromkeys(paths))}.')
    if not runs:
        searched = ', '.join(map(str, folders))
        raise FileNotFoundError(' '.join([f'no {RESULTS} to report below {searched}.', *lines]))
    return runs, lines


def _run_folders(folders: Sequence[str | Path]) -> list[Path]:
    """Return the folders of runs below some folders, without those that were set aside."""
    run_folders = set()
    for folder in map(Path, folders):
        for path in folder.rglob('*'):
            if path.name in FILES_OF_RUN and f'/{EARLIER}' not in f'/{path.relative_to(folder)}':
                run_folders.add(path.parent)
    return sorted(run_folders)


def _reported_files(folder: Path) -> tuple[str, ...]:
    """Return the records of a folder that tables have.

    A sweep chooses by the results on validation data, and tests the chosen value alone.
    """
    return (RESULTS, VALIDATION_RESULTS) if sweep_folder(folder) else (RESULTS,)


def sweep_folder(folder: str | Path) -> Path | None:
    """Return the folder of the sweep that a training is part of, None if it is of no sweep.

    The training is in a folder named after its value, or in one of its seed below that.
    """
    for parent in list(Path(folder).parents)[:2]:
        if (parent / SWEEP).is_file():
            return parent
    return None


def _reason_to_exclude(record: Record) -> str:
    """Return why no value of a test may stand beside those of others, empty if all may.

    This prevents a wrong number.
    """
    if record.limit:
        return 'smoke runs with --limit'
    if any(member['finished'] is False for member in record.model['members']):
        return f'training unfinished ({command_text("train")} CONFIG --resume ends and tests it)'
    return ''


def _untested_reason(file: str) -> str:
    """Return why a run has no test, by the first of its files."""
    if file == EARLY_STOP:
        return f'stopped early and not tested ({command_text("test")} CONFIG CHECKPOINT)'
    if file == 'last_checkpoint':
        tool = command_text('train')
        return f'unfinished or not tested ({tool} CONFIG --resume ends and tests it)'
    return 'not tested, only validated'


def read_runs(path: Path) -> Iterator[ReportedRun]:
    """Yield what a ``results.json`` has for tables; tests under shift are read with the clean one.

    Raises:
        OSError: If it cannot be opened.
        ValueError: If it is cut off or another file.
    """
    record = Record.read(path)
    shift = record.evaluation.get('shift')
    if not shift:
        yield from _runs_without_shift(path.parent, record)
    elif shift['kind'] == 'clean':
        folder = path.parents[1]
        tests = tests_in(folder)
        yield ReportedRun(
            path=str(folder),
            record=record,
            metrics=shift_columns(tests),
            evaluation=_compared_evaluation(record),
            kind='under shift',
            details=f'under {shift_description(tests)}',
            tests=tests,
        )


def _compared_evaluation(record: Record) -> dict:
    return {key: part for key, part in record.evaluation.items() if key not in NOT_COMPARED}


def _runs_without_shift(folder: Path, record: Record) -> Iterator[ReportedRun]:
    """Yield the metrics of the test data, then those of each score of OOD classes."""
    ood_metrics = record.evaluation.get('ood', ())
    ood_prefixes = tuple(f'{ood_metric["prefix"]}/' for ood_metric in ood_metrics)
    metrics = {
        key: value
        for key, value in record.metrics.items()
        if isinstance(value, Real) and not key.startswith(ood_prefixes)  # A matrix is no number.
    }
    metrics |= unprinted_metrics(folder, record)
    if metrics or not ood_metrics:
        yield ReportedRun(str(folder), record, metrics, _compared_evaluation(record))
    for ood_metric in ood_metrics:
        yield from _ood_runs(folder, record, ood_metric)


def _ood_runs(folder: Path, record: Record, ood_metric: Mapping) -> Iterator[ReportedRun]:
    """Yield what each score tells of OOD classes, whose keys are ``ood/svhn/AUROC`` and so on."""
    counts = ood_metric['counts']
    ood_sets = {name: count for name, count in counts.items() if name not in ('ID', 'OOD')}
    evaluation = {key: record.evaluation[key] for key in OOD_EVALUATION if key in record.evaluation}
    if ood_sets:
        # The data set of the record has the samples of the OOD sets too.
        data = evaluation.get('dataset', {})
        evaluation['dataset'] = {**data, 'samples': counts['ID']}
        opponents = ', '.join(f'{count:,} of {name}' for name, count in ood_sets.items())
    else:
        label = '' if ood_metric['ood_index'] is None else f' of label {ood_metric["ood_index"]}'
        opponents = f'{counts.get("OOD", 0):,}{label}, {counts["ID"]:,} others'
    for score in ood_metric['scores']:
        yield ReportedRun(
            path=str(folder),
            record=record,
            metrics=_ood_values(record, f'{ood_metric["prefix"]}/{score}/', len(ood_sets)),
            evaluation=evaluation,
            kind='against unseen classes',
            details=f'against {opponents}',
            suffix=f' by {score}',
        )


def _ood_values(record: Record, prefix: str, num_sets: int) -> dict[str, float]:
    """Return the values of one score, without means over a group that has a single set."""
    values = {}
    for key, value in record.metrics.items():
        if key.startswith(prefix) and isinstance(value, Real):
            name = key.removeprefix(prefix)
            is_group = name.split('/')[0] in OOD_GROUPS
            if not (is_group and num_sets == 1):
                values[f'{OOD}{name}'] = value
    return values
