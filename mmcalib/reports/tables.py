"""Tested runs as the rows of the paper's tables."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from mmcalib.metrics.keys import ACCURACIES, PREFIX, columns_of
from mmcalib.record import SHORT_NAMES, SYMBOLS, digest
from mmcalib.reports import paper_numbers
from mmcalib.reports.runs import Run
from mmcalib.reports.settings import flatten, key_and_value, told_apart

# Of a test set: with them a part of it is tested, which is another evaluation of the same data.
PART_OF_DATA = ('samples', 'indices')
# What must be equal in ensembles that are averaged over several runs.
OF_ENSEMBLE = ('views', 'mc_dropout', 'calibration')
OF_MEMBER = ('loss', 'training', 'network', 'calibration')
NOT_MEASURED = 'calibration not measured (tools/test.py CONFIG CHECKPOINT --calibration)'


@dataclass
class Row:
    """Runs that differ only in their seed, and the paper's figures for them."""

    label: str
    runs: list[Run]
    paper: dict

    def values(self, column: str) -> list[float]:
        return [run.metrics[column] for run in self.runs if column in run.metrics]


@dataclass
class Table:
    """One data set and network: the losses as rows, and the runs left out as notes."""

    name: str
    columns: list[str]
    rows: list[Row]
    notes: list[str]


def tables_of(runs: Sequence[Run], protocol: str | None = None) -> list[Table]:
    """Return a table for each test set and network, by name.

    All runs of a table were evaluated alike: as most of them were, or by `protocol`. The others,
    the unfinished, and second runs of a seed are named in the notes.

    Args:
        runs: Of :func:`~mmcalib.reports.runs.find_runs`.
        protocol: Of the calibration metric of segmentors, ``'pooled'`` or ``'paper'``; None for
            the commonest.
    """
    tables = []
    groups = _grouped(runs, _of_table)
    for alike in _grouped([group[0] for group in groups], _name):
        for first, words in zip(alike, told_apart([*map(_of_table, alike)]), strict=True):
            (group,) = [group for group in groups if group[0] is first]
            tables.append(_table(', '.join([_name(first), *words]), group, protocol))
    return sorted(tables, key=lambda table: table.name)


def _grouped(runs: Iterable[Run], key: Callable[[Run], object]) -> list[list[Run]]:
    groups = defaultdict(list)
    for run in runs:
        groups[digest(key(run))].append(run)
    return list(groups.values())


def _of_table(run: Run) -> dict:
    """Return what all runs of a table share, whatever part of the data was tested."""
    options = {**run.evaluation.get('dataset', {}), **run.evaluation.get('data_options', {})}
    data = {key: value for key, value in options.items() if key not in PART_OF_DATA}
    return {'data': data, 'network': run.network, 'kind': run.kind, 'tested': run.about}


def _name(run: Run) -> str:
    """Return data and network as our config files name them under every loss."""
    name = run.record.experiment.split('/')[-1].removesuffix('_m0')
    return f'{name} {run.kind}'.rstrip()


def _table(title: str, runs: list[Run], protocol: str | None) -> Table:
    kept, notes = _kept(runs, protocol)
    if not kept:
        return Table(title, [], [], ['No run is left.', *notes])
    before = [f'Evaluation: {evaluation_text(kept[0])}.']
    entry = paper_numbers.published()['experiments'].get(_name(runs[0]))
    if entry:
        title = f'{title} ({entry["title"]})'
        if reason := paper_numbers.why_not_comparable(entry, kept[0]):
            before.append(f'No published value stands beside these: {reason}.')
            entry = None
    rows = _rows(kept, entry)
    if published := [row.runs[0] for row in rows if row.paper]:
        before += paper_numbers.remarks(entry, published)
    columns = columns_of(key for row in rows for run in row.runs for key in run.metrics)
    return Table(title, columns, rows, before + notes)


def evaluation_text(run: Run) -> str:
    """Return the test set and the options of the calibration metric."""
    data = run.evaluation.get('dataset', {})
    about = ' '.join([*(str(v) for k, v in data.items() if k != 'samples'), run.about]).strip()
    left_out = ('dataset', 'data_options', 'pipeline', 'inference')
    options = flatten({k: v for k, v in run.evaluation.items() if k not in left_out})
    said = [key_and_value(*pair) for pair in options.items() if pair[1] is not False]
    return ', '.join([f'{data.get("samples", 0):,} samples of {about}', *said])


def _kept(runs: Sequence[Run], protocol: str | None) -> tuple[list[Run], list[str]]:
    """Return the runs that may stand in one table, and notes that name the others."""
    left_out = defaultdict(set)  # the scores of unseen classes of one test are several
    finished = [run for run in runs if all(m['finished'] is not False for m in run.members)]
    left_out['training unfinished'] = {run.path for run in runs} - {run.path for run in finished}
    # Protocols of one prediction of an image are the same.
    wanted = [
        run
        for run in finished
        if protocol in (None, run.evaluation.get('protocol')) or _has(run, ACCURACIES)
    ]
    # A test without calibration metrics is no other way to measure calibration.
    measured = [run for run in wanted if _has(run, PREFIX)] or wanted
    usual = max(_grouped(measured, lambda run: run.evaluation), key=len, default=[None])[0]
    kept = {}
    for run in sorted(finished, key=lambda run: run.record.date, reverse=True):
        key = digest(_of_row(run)), run.path if run.record.seed is None else run.record.seed
        how = usual.evaluation if usual else {**run.evaluation, 'protocol': protocol}
        if run.evaluation != how:
            reason = f'evaluated otherwise ({", ".join(told_apart([run.evaluation, how])[0])})'
            if usual and _has(usual, PREFIX) and not _has(run, PREFIX):
                reason = NOT_MEASURED
            left_out[reason].add(run.path)
        elif key in kept:
            again = f'{run.label}, seed {run.record.seed} again, older than {kept[key].path}'
            left_out[again].add(run.path)
        else:
            kept[key] = run
    notes = [f'Left out, {why}: {", ".join(sorted(p))}.' for why, p in left_out.items() if p]
    return list(kept.values()), notes


def _has(run: Run, prefix: str) -> bool:
    return any(key.startswith(prefix) for key in run.metrics)


def _of_row(run: Run) -> list:
    """Return what all runs of a row share."""
    members = [[member[key] for key in OF_MEMBER] for member in run.members]
    name = any(member['loss'] for member in run.members) or run.record.experiment
    tested = [run.record.model[key] for key in OF_ENSEMBLE]
    return [name, run.suffix, run.checkpoint, sorted(members, key=digest), tested]


def _settings(run: Run) -> dict:
    """Return the settings in which rows may differ, for their labels."""
    return {
        **run.config,
        'model': {'train_cfg': run.config['model'].get('train_cfg')},
        'checkpoint': run.checkpoint,
        'tested': run.members[0]['network'].get('data_preprocessor'),
    }


def _rows(runs: Sequence[Run], entry: Mapping | None) -> list[Row]:
    groups = _grouped(runs, _of_row)
    said = told_apart([_settings(group[0]) for group in groups])
    labels = [', '.join([g[0].label, *words]) for g, words in zip(groups, said, strict=True)]
    rows = []
    for label, group in zip(labels, groups, strict=True):
        if labels.count(label) > 1:  # as where transforms change places
            label += f', digest={digest(_of_row(group[0]))[:6]}'
        paper = paper_numbers.published_values(entry, group[0])[1] if entry else {}
        rows.append(Row(label, group, paper))
    return sorted(rows, key=_order)


def _order(row: Row) -> tuple:
    loss = row.runs[0].record.loss or {}
    place = list(SHORT_NAMES).index(loss['type']) if loss.get('type') in SHORT_NAMES else 99
    values = [loss.get(key) for key in SYMBOLS]
    return place, [value if isinstance(value, (int, float)) else 0.0 for value in values], row.label
