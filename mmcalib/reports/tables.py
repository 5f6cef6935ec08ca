"""Tested runs as the rows of the paper's tables."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from mmcalib.metrics.names import ACCURACIES, PREFIX, metric_name
from mmcalib.names import SHORT_NAMES, SYMBOLS
from mmcalib.reports import paper_numbers
from mmcalib.reports.metric_columns import metric_columns
from mmcalib.reports.row_labels import distinct, flatten, key_and_value, told_apart
from mmcalib.reports.tested_runs import TestedRun
from mmcalib.runs.record import digest, paths_of

# Of a test set: with them a part of it is tested, which is another evaluation of the same data.
PART_OF_DATA = ('samples', 'indices')
# What must be equal in ensembles that are averaged over several runs.
OF_ENSEMBLE = ('views', 'mc_dropout', 'calibration')
OF_MEMBER = ('loss', 'training', 'network', 'calibration')
# Of an evaluation, what a note does not repeat.
SAID_ELSEWHERE = ('dataset', 'data_options', 'pipeline', 'inference')
MOST_NAMED = 3  # configs in the title of a table
NOT_MEASURED = 'calibration not measured (tools/test.py CONFIG CHECKPOINT --calibration)'


@dataclass
class Row:
    """Runs that differ only in their seed, and the paper's figures for them."""

    label: str
    runs: list[TestedRun]
    paper: dict = field(default_factory=dict)

    def values(self, column: str) -> list[float]:
        return [run.metrics[column] for run in self.runs if column in run.metrics]


@dataclass
class Table:
    """One data set and network: the losses as rows, and the runs left out as notes."""

    name: str
    columns: list[str]
    rows: list[Row]
    notes: list[str]


def tables_of(runs: Sequence[TestedRun], protocol: str | None = None) -> list[Table]:
    """Return a table for each test set and network, by name.

    All runs of a table were evaluated alike: as most of them were, or by `protocol`. The others,
    and second runs of a seed, are named in the notes.

    Args:
        runs: Of :func:`~mmcalib.reports.tested_runs.find_runs`.
        protocol: Of the calibration metric of segmentors, ``'pooled'`` or ``'paper'``; None for
            the commonest.
    """
    groups = _grouped(runs, _of_table)
    names = [_name(group[0]) for group in groups]
    titles = distinct(names, [_of_table(group[0]) for group in groups])
    titles = [
        f'{_names(group)}{title.removeprefix(name)}'
        for title, name, group in zip(titles, names, groups, strict=True)
    ]
    tables = [_table(title, group, protocol) for title, group in zip(titles, groups, strict=True)]
    return sorted(tables, key=lambda table: table.name)


def _grouped(
    runs: Iterable[TestedRun], key: Callable[[TestedRun], object]
) -> list[list[TestedRun]]:
    groups = defaultdict(list)
    for run in runs:
        groups[digest(key(run))].append(run)
    return list(groups.values())


def _of_table(run: TestedRun) -> dict:
    """Return what all runs of a table share, whatever part of the data was tested."""
    options = {**run.evaluation.get('dataset', {}), **run.evaluation.get('data_options', {})}
    data = {key: value for key, value in options.items() if key not in PART_OF_DATA}
    return {'data': data, 'network': run.network, 'kind': run.kind, 'tested': run.about}


def _names(runs: Sequence[TestedRun]) -> str:
    """Return the names of all runs of a table, such as ``digits``, or ``mine & yours & 2 more``."""
    experiments = [*dict.fromkeys(map(_experiment, runs))]
    shown = experiments[:MOST_NAMED]
    if experiments[MOST_NAMED:]:
        shown.append(f'{len(experiments) - MOST_NAMED} more')
    return f'{" & ".join(shown)} {runs[0].kind}'.rstrip()


def _name(run: TestedRun) -> str:
    return f'{_experiment(run)} {run.kind}'.rstrip()


def _experiment(run: TestedRun) -> str:
    """Return data and network as our config files name them under every loss."""
    return run.record.experiment.split('/')[-1].removesuffix('_m0')


def _table(title: str, runs: list[TestedRun], protocol: str | None) -> Table:
    kept, left_out = _measured_alike(runs, protocol)
    rows, again = rows_of(kept)
    notes = [
        f'Left out, {why}: {", ".join(sorted(paths))}.'
        for why, paths in {**left_out, **again}.items()
    ]
    if not rows:
        return Table(title, [], [], ['No run is left.', *notes])
    before = [f'Evaluation: {evaluation_text(kept[0])}.']
    published = paper_numbers.published()['experiments']
    if entry := next((published[n] for n in map(_name, runs) if n in published), None):
        title = f'{title} ({entry["title"]})'
        if reason := next(paper_numbers.unlike(entry['conditions'], kept[0]), None):
            before.append(f'No published value stands beside these: {reason}.')
        else:
            for row in rows:
                row.paper = entry['values'].get(paper_numbers.loss_in_paper(entry, row.runs[0]), {})
            if beside := [row.runs[0] for row in rows if row.paper]:
                before += paper_numbers.remarks(entry, beside)
    columns = metric_columns(key for row in rows for run in row.runs for key in run.metrics)
    return Table(title, columns, rows, before + notes + _not_finite(rows, columns))


def _not_finite(rows: Sequence[Row], columns: Sequence[str]) -> list[str]:
    """Return a note for each run that has NaN or infinity, which a mean over seeds hides."""
    notes = []
    for run in (run for row in rows for run in row.runs):
        values = {key: run.metrics[key] for key in columns if key in run.metrics}
        wrong = [f'{metric_name(k)} {v:g}' for k, v in values.items() if not math.isfinite(v)]
        if wrong:
            notes.append(f'Not a finite number: {", ".join(wrong)} of {run.path}.')
    return notes


def evaluation_text(run: TestedRun) -> str:
    """Return the test set and the options of the calibration metric."""
    data = run.evaluation.get('dataset', {})
    about = ' '.join([*(str(v) for k, v in data.items() if k != 'samples'), run.about]).strip()
    options = flatten({k: v for k, v in run.evaluation.items() if k not in SAID_ELSEWHERE})
    said = [key_and_value(*pair) for pair in options.items() if pair[1] is not False]
    return ', '.join([f'{data.get("samples", 0):,} samples of {about}', *said])


def _measured_alike(
    runs: Sequence[TestedRun], protocol: str | None
) -> tuple[list[TestedRun], dict[str, set[str]]]:
    """Return the runs that may stand in one table, and the paths of the others by the reason."""
    # Protocols of one prediction of an image are the same.
    wanted = [
        run
        for run in runs
        if protocol in (None, run.evaluation.get('protocol')) or _has(run, ACCURACIES)
    ]
    # A test without calibration metrics is no other way to measure calibration.
    measured = [run for run in wanted if _has(run, PREFIX)] or wanted
    usual = max(_grouped(measured, lambda run: run.evaluation), key=len, default=[None])[0]
    kept, left_out = [], defaultdict(set)
    for run in runs:
        how = usual.evaluation if usual else {**run.evaluation, 'protocol': protocol}
        if run.evaluation == how:
            kept.append(run)
        elif usual and _has(usual, PREFIX) and not _has(run, PREFIX):
            left_out[NOT_MEASURED].add(run.path)
        else:
            otherwise = ', '.join(told_apart([run.evaluation, how])[0])
            left_out[f'evaluated otherwise ({otherwise})'].add(run.path)
    return kept, left_out


def _has(run: TestedRun, prefix: str) -> bool:
    return any(key.startswith(prefix) for key in run.metrics)


def rows_of(runs: Sequence[TestedRun]) -> tuple[list[Row], dict[str, list[str]]]:
    """Return runs that differ only in their seed as rows, and older runs of a seed by the reason.

    The label of a row has its loss, and the settings that most rows have otherwise.
    """
    groups = _grouped(sorted(runs, key=lambda run: run.record.date, reverse=True), _of_row)
    said = told_apart([_settings(group[0]) for group in groups])
    labels = [', '.join([g[0].label, *words]) for g, words in zip(groups, said, strict=True)]
    labels = distinct(labels, [{'network': group[0].network} for group in groups])
    # As where transforms change places.
    labels = distinct(labels, [{'digest': digest(_of_row(group[0]))[:6]} for group in groups])
    rows, again = [], defaultdict(list)
    for label, group in zip(labels, groups, strict=True):
        newest = {}
        for run in group:
            seed = run.record.seed
            first = newest.setdefault((*paths_of(run.record.model),) if seed is None else seed, run)
            if first is not run:
                again[f'{run.label}, seed {seed} again, older than {first.path}'].append(run.path)
        in_order = sorted(newest.values(), key=lambda run: (str(run.record.seed), run.record.date))
        rows.append(Row(label, in_order))
    return sorted(rows, key=_order), again


def _of_row(run: TestedRun) -> list:
    """Return what all runs of a row share."""
    members = [[m[key] for key in OF_MEMBER] for m in run.record.model['members']]
    name = any(m['loss'] for m in run.record.model['members']) or run.record.experiment
    model = [run.record.model[key] for key in OF_ENSEMBLE]
    tested = [run.kind, run.about, run.evaluation, run.suffix, run.checkpoint]
    return [name, sorted(members, key=digest), model, tested]


def _settings(run: TestedRun) -> dict:
    """Return the settings in which rows may differ, for their labels."""
    network = run.record.model['members'][0]['network']
    return {
        **run.config,
        'model': {'train_cfg': run.config['model'].get('train_cfg')},
        'checkpoint': run.checkpoint,
        'preprocessor': network.get('data_preprocessor'),
        'evaluation': run.evaluation,
        'tested': run.about,
    }


def _order(row: Row) -> tuple:
    loss = row.runs[0].record.loss or {}
    place = list(SHORT_NAMES).index(loss['type']) if loss.get('type') in SHORT_NAMES else 99
    values = [loss.get(key) for key in SYMBOLS]
    return place, [value if isinstance(value, (int, float)) else 0.0 for value in values], row.label
