"""Tested runs as the rows of the paper's tables."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from mmcalib.choices import SHORT_NAMES, SYMBOLS
from mmcalib.metrics.metric_text import ACCURACIES, PREFIX, metric_name
from mmcalib.reports import paper_numbers
from mmcalib.reports.metric_columns import metric_columns
from mmcalib.reports.reported_runs import ReportedRun
from mmcalib.reports.row_labels import differing_settings, distinct_names, flatten, key_and_value
from mmcalib.runs.record import CONTENT, checkpoint_paths, digest
from mmcalib.runs.summary import rate_sentences
from mmcalib.texts import command_text

# Options of a test set that select a part of it, which is another evaluation of the same data.
PART_OF_DATA = ('samples', 'indices')
# Ensembles that share a row are equal in these.
ENSEMBLE_KEYS = ('views', 'mc_dropout', 'calibration')
MEMBER_KEYS = ('loss', 'training', 'network', 'calibration')
# Parts of an evaluation that a note does not repeat.
NOT_IN_NOTES = ('dataset', 'data_options', 'pipeline', 'inference')
MOST_EXPERIMENTS = 3  # in the title of a table


@dataclass
class Row:
    """Runs that differ only in their seed, and the paper's values for them."""

    label: str
    runs: list[ReportedRun]
    paper: dict = field(default_factory=dict)

    def values(self, column: str) -> list[float]:
        """Return the values of a metric, of the runs that have it."""
        return [run.metrics[column] for run in self.runs if column in run.metrics]


@dataclass
class Table:
    """Losses as rows, on one data set and network; excluded runs are in the notes.

    `num_classes` is the number of classes that a prediction chooses from, None if it is not known.
    """

    name: str
    columns: list[str]
    rows: list[Row]
    notes: list[str]
    num_classes: int | None = None


def tables_from_runs(runs: Sequence[ReportedRun], protocol: str | None = None) -> list[Table]:
    """Return a table for each test set and network, by name.

    All runs of a table were evaluated alike: as most of them were, or by `protocol`. The others,
    and second runs of a seed, are named in the notes.

    Args:
        runs: Runs that :func:`~mmcalib.reports.reported_runs.find_runs` returned.
        protocol: Protocol of the calibration metric of segmentors, such as ``'pooled'`` or
            ``'paper'``; None for the commonest.
    """
    groups = runs_alike(runs, _table_key)
    names = [_table_name(group[0]) for group in groups]
    titles = distinct_names(names, [_table_key(group[0]) for group in groups])
    tables = []
    for title, name, group in zip(titles, names, groups, strict=True):
        settings = title.removeprefix(name)
        tables.append(_table(f'{_common_name(group)}{settings}', group, protocol))
    return sorted(tables, key=lambda table: table.name)


def runs_alike(
    runs: Iterable[ReportedRun], key: Callable[[ReportedRun], object]
) -> list[list[ReportedRun]]:
    """Return runs in groups of one key, which may be any value of JSON."""
    groups = defaultdict(list)
    for run in runs:
        groups[digest(key(run))].append(run)
    return list(groups.values())


def _table_key(run: ReportedRun) -> dict:
    """Return what all runs of a table share, whatever part of the data was tested."""
    options = {**run.evaluation.get('dataset', {}), **run.evaluation.get('data_options', {})}
    data = {key: value for key, value in options.items() if key not in PART_OF_DATA}
    data[CONTENT] = run.evaluation.get(CONTENT)
    return {'data': data, 'network': run.network, 'kind': run.kind, 'tested': run.details}


def _common_name(runs: Sequence[ReportedRun]) -> str:
    """Return the name of a table, such as ``digits``, or ``mine & yours & 2 more``."""
    experiments = list(dict.fromkeys(map(_experiment, runs)))
    names = experiments[:MOST_EXPERIMENTS]
    if len(experiments) > MOST_EXPERIMENTS:
        names.append(f'{len(experiments) - MOST_EXPERIMENTS} more')
    return f'{" & ".join(names)} {runs[0].kind}'.rstrip()


def _table_name(run: ReportedRun) -> str:
    return f'{_experiment(run)} {run.kind}'.rstrip()


def _experiment(run: ReportedRun) -> str:
    """Return data and network as our config files name them under every loss."""
    return run.record.experiment.split('/')[-1].removesuffix('_m0')


def _table(title: str, runs: list[ReportedRun], protocol: str | None) -> Table:
    compared, excluded = _split_by_evaluation(runs, protocol)
    rows, older_runs = table_rows(compared)
    exclusions = [
        f'Left out, {reason}: {", ".join(sorted(paths))}.'
        for reason, paths in {**excluded, **older_runs}.items()
    ]
    if not rows:
        return Table(title, [], [], ['No run is left.', *exclusions])
    notes = [f'Evaluation: {evaluation_text(compared[0])}.']
    entry = _published_entry(runs)
    if entry is not None:
        title = f'{title} ({entry["title"]})'
        notes += _add_published_values(rows, entry, compared[0])
    known_numbers = {run.record.num_classes for run in compared} - {None}
    num_classes = known_numbers.pop() if len(known_numbers) == 1 else None
    columns = metric_columns(
        (key for row in rows for run in row.runs for key in run.metrics), num_classes=num_classes
    )
    if any(len(row.runs) > 1 for row in rows):
        notes.append('± is the standard deviation over the runs of a row.')
    notes += exclusions
    notes += _notes_of_rates(rows)
    notes += _notes_of_non_finite(rows, columns)
    notes += _notes_of_untold_losses(rows)
    notes += _notes_of_early_stops(rows)
    return Table(title, columns, rows, notes, num_classes)


def _published_entry(runs: Sequence[ReportedRun]) -> dict | None:
    """Return what the paper has for the data and network of some runs, None if it has nothing."""
    experiments = paper_numbers.published()['experiments']
    for name in map(_table_name, runs):
        if name in experiments:
            return experiments[name]
    return None


def _add_published_values(rows: Sequence[Row], entry: dict, run: ReportedRun) -> list[str]:
    """Give rows the paper's values if a run of them is comparable, and return notes about it."""
    reason = next(paper_numbers.unlike(entry['conditions'], run), None)
    if reason is not None:
        return [f'No published value stands beside these: {reason}.']
    for row in rows:
        loss = paper_numbers.loss_in_paper(entry, row.runs[0])
        row.paper = entry['values'].get(loss, {})
    published_runs = [row.runs[0] for row in rows if row.paper]
    return paper_numbers.remarks(entry, published_runs) if published_runs else []


def _notes_of_rates(rows: Sequence[Row]) -> list[str]:
    """Return a note for each row whose classes are not predicted as often as they occur.

    It is of the first such run of the row.
    """
    notes = []
    for row in rows:
        for run in row.runs:
            sentences = rate_sentences(run.record)
            if sentences and not run.kind:
                path = '' if len(row.runs) == 1 else f', {run.path}'
                notes.append(f'{row.label}{path}: {" ".join(sentences)}')
                break
    return notes


def _notes_of_non_finite(rows: Sequence[Row], columns: Sequence[str]) -> list[str]:
    """Return a note for each run that has NaN or infinity, which a mean over seeds hides.

    This prevents a wrong number.
    """
    notes = []
    for row in rows:
        for run in row.runs:
            values = [
                f'{metric_name(key)} {run.metrics[key]:g}'
                for key in columns
                if key in run.metrics and not math.isfinite(run.metrics[key])
            ]
            if values:
                notes.append(f'Not a finite number: {", ".join(values)} of {run.path}.')
    return notes


def _notes_of_untold_losses(rows: Sequence[Row]) -> list[str]:
    """Return a note if the loss of a row is that of the config which a test was given.

    A checkpoint of another tool does not tell its loss, so a test with the config of another loss
    would stand in the wrong row: a wrong number.
    """
    names = []
    for row in rows:
        for run in row.runs:
            members = run.record.model['members']
            if any(member.get('told_by') == 'config' for member in members):
                names.append(run.path)
    if not names:
        return []
    return [f'The config alone tells the loss, not the checkpoint: {", ".join(names)}.']


def _notes_of_early_stops(rows: Sequence[Row]) -> list[str]:
    """Return a note if a hook has stopped trainings before their last epoch or iteration."""
    ends = []
    for row in rows:
        for run in row.runs:
            for member in run.record.model['members']:
                if member.get('stopped_at'):
                    length = member['training'].get('train_cfg') or {}
                    unit = 'epoch' if length.get('max_epochs') else 'iteration'
                    last = length.get('max_epochs') or length.get('max_iters')
                    ends.append(f'{run.path} at {unit} {member["stopped_at"]} of {last}')
    return [f'Stopped early by a hook: {", ".join(ends)}.'] if ends else []


def evaluation_text(run: ReportedRun) -> str:
    """Return the test set and the options of the calibration metric."""
    data = run.evaluation.get('dataset', {})
    words = [str(value) for key, value in data.items() if key != 'samples']
    test_set = ' '.join([*words, run.details]).strip()
    parts = [f'{data.get("samples", 0):,} samples of {test_set}']
    options = {key: part for key, part in run.evaluation.items() if key not in NOT_IN_NOTES}
    for path, value in flatten(options).items():
        if value is not False:
            parts.append(key_and_value(path, value))
    return ', '.join(parts)


def _split_by_evaluation(
    runs: Sequence[ReportedRun], protocol: str | None
) -> tuple[list[ReportedRun], dict[str, set[str]]]:
    """Return the runs that may stand in one table, and the paths of the others by the reason.

    This prevents a wrong number.
    """
    usual_run = _usual_run(runs, protocol)
    is_measured = usual_run is not None and _has_metric(usual_run, PREFIX)
    compared = []
    excluded = defaultdict(set)
    for run in runs:
        if usual_run is not None:
            expected = usual_run.evaluation
        else:
            expected = {**run.evaluation, 'protocol': protocol}
        if run.evaluation == expected:
            compared.append(run)
        elif is_measured and not _has_metric(run, PREFIX):
            tool = command_text('test')
            reason = f'calibration not measured ({tool} CONFIG CHECKPOINT --calibration)'
            excluded[reason].add(run.path)
        else:
            settings = ', '.join(differing_settings([run.evaluation, expected])[0])
            excluded[f'evaluated otherwise ({settings})'].add(run.path)
    return compared, excluded


def _usual_run(runs: Sequence[ReportedRun], protocol: str | None) -> ReportedRun | None:
    """Return a run that was evaluated as most are, None if no run is of the protocol."""
    candidates = runs
    if protocol is not None:
        # All protocols are the same for a classifier, which has one prediction per image.
        candidates = [
            run
            for run in runs
            if run.evaluation.get('protocol') == protocol or _has_metric(run, ACCURACIES)
        ]
    # A test without calibration metrics measures calibration in no other way.
    measured = [run for run in candidates if _has_metric(run, PREFIX)] or candidates
    groups = runs_alike(measured, lambda run: run.evaluation)
    return max(groups, key=len)[0] if groups else None


def _has_metric(run: ReportedRun, prefix: str) -> bool:
    return any(key.startswith(prefix) for key in run.metrics)


def table_rows(runs: Sequence[ReportedRun]) -> tuple[list[Row], dict[str, list[str]]]:
    """Return runs that differ only in their seed as rows, and older runs of a seed by the reason.

    The label of a row has its loss, and the settings that most rows have otherwise.
    """
    newest_first = sorted(runs, key=lambda run: run.record.date, reverse=True)
    groups = runs_alike(newest_first, _row_key)
    rows = []
    older_runs = defaultdict(list)
    for label, group in zip(_row_labels(groups), groups, strict=True):
        newest_by_seed = {}
        for run in group:
            seed = run.record.seed
            # The members of an ensemble may have several seeds.
            key = tuple(checkpoint_paths(run.record.model)) if seed is None else seed
            newest = newest_by_seed.setdefault(key, run)
            if newest is not run:
                reason = f'{run.label}, seed {seed} again, older than {newest.path}'
                older_runs[reason].append(run.path)
        seeds = sorted(
            newest_by_seed.values(), key=lambda run: (str(run.record.seed), run.record.date)
        )
        rows.append(Row(label, seeds))
    return sorted(rows, key=_row_order), older_runs


def _row_labels(groups: Sequence[Sequence[ReportedRun]]) -> list[str]:
    """Return a label for each group of runs, which no other group has."""
    first_runs = [group[0] for group in groups]
    labels = []
    settings = differing_settings([_settings(run) for run in first_runs])
    for run, run_settings in zip(first_runs, settings, strict=True):
        labels.append(', '.join([run.label, *run_settings]))
    labels = distinct_names(labels, [{'network': run.network} for run in first_runs])
    # Settings are equal where, for one, transforms change places.
    return distinct_names(labels, [{'digest': digest(_row_key(run))[:6]} for run in first_runs])


def _row_key(run: ReportedRun) -> list:
    """Return what all runs of a row share."""
    members = run.record.model['members']
    member_keys = [[member[key] for key in MEMBER_KEYS] for member in members]
    has_loss = any(member['loss'] for member in members)
    return [
        has_loss or run.record.experiment,
        sorted(member_keys, key=digest),
        [run.record.model[key] for key in ENSEMBLE_KEYS],
        [run.kind, run.details, run.evaluation, run.suffix, run.checkpoint],
        run.record.has_fitted_images,
    ]


def _settings(run: ReportedRun) -> dict:
    """Return the settings in which rows may differ, for their labels."""
    network = run.record.model['members'][0]['network']
    return {
        **run.config,
        'model': {'train_cfg': run.config['model'].get('train_cfg')},
        'checkpoint': run.checkpoint,
        'preprocessor': network.get('data_preprocessor'),
        'evaluation': run.evaluation,
        'tested': run.details,
    }


def _row_order(row: Row) -> tuple:
    """Return a sort key: losses in the paper's order, then by their parameters."""
    losses = list(SHORT_NAMES)
    loss = row.runs[0].record.loss or {}
    index = losses.index(loss['type']) if loss.get('type') in losses else len(losses)
    parameters = []
    for key in SYMBOLS:
        value = loss.get(key)
        parameters.append(value if isinstance(value, (int, float)) else 0.0)
    return index, parameters, row.label
