"""Tested runs as the rows of the paper's tables."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from mmcalib.metrics.keys import ACCURACIES, columns_of
from mmcalib.record import SHORT_NAMES, SYMBOLS, digest
from mmcalib.reports import paper_numbers
from mmcalib.reports.differences import differences, flatten, key_and_value
from mmcalib.reports.runs import Run

# Of a test set: with them a part of it is tested, which is another evaluation of the same data.
PART_OF_DATA = ('samples', 'indices')
# What must be equal in ensembles that are averaged over several runs.
OF_ENSEMBLE = ('views', 'mc_dropout', 'calibration')
OF_MEMBER = ('loss', 'training', 'network', 'calibration')


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
    groups = _grouped(runs, _of_table)
    names = [Counter(map(_name, group)).most_common(1)[0][0] for group in groups]
    titles = list(names)
    for name in set(names):
        places = [place for place, each in enumerate(names) if each == name]
        shared = [_of_table(groups[place][0]) for place in places]
        abouts = [shown for *_, shown in shared]
        said = differences([settings for settings, *_ in shared])
        for place, words, about in zip(places, said, abouts, strict=True):
            titles[place] = ', '.join([name, *words, *([about] if len({*abouts}) > 1 else [])])
    tables = [_table(*each, protocol) for each in zip(titles, groups, strict=True)]
    return sorted(tables, key=lambda table: table.name)


def _grouped(runs: Iterable[Run], key: Callable[[Run], object]) -> list[list[Run]]:
    groups = defaultdict(list)
    for run in runs:
        groups[digest(key(run))].append(run)
    return list(groups.values())


def _of_table(run: Run) -> tuple[dict, str, str]:
    """Return what all runs of a table share, whatever part of the data was tested."""
    options = {**run.evaluation.get('dataset', {}), **run.evaluation.get('data_options', {})}
    data = {key: value for key, value in options.items() if key not in PART_OF_DATA}
    return {'data': data, 'network': run.network}, run.kind, run.about


def _name(run: Run) -> str:
    """Return data and network as our config files name them under every loss."""
    name = run.record.experiment.split('/')[-1].removesuffix('_m0')
    return f'{name} {run.kind}'.rstrip()


def _table(title: str, runs: list[Run], protocol: str | None) -> Table:
    kept, notes = _kept(runs, protocol)
    entry = next(filter(None, map(paper_numbers.published_experiment, map(_name, runs))), None)
    reason = None
    if entry and kept:
        reason = paper_numbers.why_not_comparable(entry, kept[0].evaluation, kept[0].network)
    rows = _rows(kept, entry if not reason else None)
    before = [f'Evaluation: {evaluation_text(kept[0])}.'] if kept else ['No run is left.']
    if reason:
        before.append(f'No published value stands beside these: {reason}.')
    if any(row.paper for row in rows):
        before += _unlike_the_paper(entry, rows, kept[0].evaluation)
    unknown = sorted(run.path for run in kept if run.finished is None)
    if unknown:
        before.append(f'Unknown whether the training was finished: {", ".join(unknown)}.')
    columns = columns_of(key for row in rows for run in row.runs for key in run.metrics)
    title = f'{title} ({entry["title"]})' if entry else title
    return Table(title, columns, rows, before + notes)


def evaluation_text(run: Run) -> str:
    """Return the test set and the options of the calibration metric."""
    data = run.evaluation.get('dataset', {})
    names = [str(value) for key, value in data.items() if key != 'samples']
    about = ' '.join([*names, run.about]).strip()
    options = {
        key: value
        for key, value in run.evaluation.items()
        if key not in ('dataset', 'data_options', 'pipeline', 'inference')
    }
    said = [key_and_value(*pair) for pair in flatten(options).items() if pair[1] is not False]
    return ', '.join([f'{data.get("samples", 0):,} samples of {about}', *said])


def _kept(runs: Sequence[Run], protocol: str | None) -> tuple[list[Run], list[str]]:
    """Return the runs that may stand in one table, and notes that name the others."""
    left_out = defaultdict(set)  # the scores of unseen classes of one test are several
    finished = [run for run in runs if run.finished is not False]
    left_out['training unfinished'] = {run.path for run in runs} - {run.path for run in finished}
    wanted = [
        run
        for run in finished
        if protocol in (None, run.evaluation.get('protocol')) or _classifies(run)
    ]
    # A test without calibration metrics is no other way to measure calibration.
    measured = [run for run in wanted if _measured(run)] or wanted
    usual = max(_grouped(measured, lambda run: run.evaluation), key=len, default=[])
    kept = {}
    for run in sorted(finished, key=lambda run: run.date, reverse=True):
        key = digest(_of_row(run)), run.path if run.seed is None else run.seed
        if not usual:
            left_out[f'evaluated otherwise ({evaluation_text(run)})'].add(run.path)
        elif run.evaluation != usual[0].evaluation:
            how, _ = differences([run.evaluation, usual[0].evaluation])
            reason = f'evaluated otherwise ({", ".join(how)})'
            if _measured(usual[0]) and not _measured(run):
                reason = 'calibration not measured (tools/test.py CONFIG CHECKPOINT --calibration)'
            left_out[reason].add(run.path)
        elif key in kept:
            reason = f'{run.label}, seed {run.seed} again, older than {kept[key].path}'
            left_out[reason].add(run.path)
        else:
            kept[key] = run
    notes = [f'Left out, {why}: {", ".join(sorted(p))}.' for why, p in left_out.items() if p]
    return list(kept.values()), notes


def _measured(run: Run) -> bool:
    """Return whether the calibration of a run was measured."""
    return any(key.startswith('calibration/') for key in run.metrics)


def _classifies(run: Run) -> bool:
    """Return whether a run has one prediction of an image, of which protocols are the same."""
    return any(key.startswith(ACCURACIES) for key in run.metrics)


def _of_row(run: Run) -> list:
    """Return what all runs of a row share."""
    model, known = run.model, any(member['loss'] for member in run.model['members'])
    members = [[each[key] for key in OF_MEMBER] for each in model['members']]
    tested = sorted(members, key=digest), [model[key] for key in OF_ENSEMBLE]
    return [known or run.record.experiment, run.suffix, run.checkpoint, *tested]


def _settings(run: Run) -> dict:
    """Return the settings in which rows may differ, for their labels."""
    found = {**run.config, 'model': {'train_cfg': run.config['model'].get('train_cfg')}}
    found['checkpoint'] = run.checkpoint or 'renamed'
    found['tested'] = run.model['members'][0]['network'].get('data_preprocessor')
    return found


def _rows(runs: Sequence[Run], entry: Mapping | None) -> list[Row]:
    groups = _grouped(runs, _of_row)
    said = differences([_settings(group[0]) for group in groups])
    labels = [', '.join([g[0].label, *words]) for g, words in zip(groups, said, strict=True)]
    rows = []
    for label, group in zip(labels, groups, strict=True):
        first = group[0]
        if labels.count(label) > 1:  # as where transforms change places
            label += f', digest={digest(_of_row(first))[:6]}'
        plain = not first.record.calibration and not first.is_ensemble
        paper = paper_numbers.published_values(entry, first.loss) if entry and plain else None
        rows.append(Row(label, group, paper[1] if paper else {}))
    return sorted(rows, key=_order)


def _order(row: Row) -> tuple:
    loss = row.runs[0].loss
    place = list(SHORT_NAMES).index(loss['type']) if loss.get('type') in SHORT_NAMES else 99
    values = [loss.get(key) for key in SYMBOLS]
    return place, [value if isinstance(value, (int, float)) else 0.0 for value in values], row.label


def _unlike_the_paper(entry: Mapping, rows: Sequence[Row], evaluation: Mapping) -> list[str]:
    """Say where runs that stand beside published figures are not quite the paper's."""
    notes = []
    lengths = sorted({_length(row.runs[0]) for row in rows if row.paper})
    if entry['epochs'] and lengths != [f'{entry["epochs"]} epochs']:
        notes.append(f'Trained for {" or ".join(lengths)}; the paper for {entry["epochs"]} epochs.')
    samples = evaluation['dataset']['samples']
    if samples != entry['samples'][0]:
        notes.append(f'Tested on {samples:,} samples; the paper on {entry["samples"][0]:,}.')
    sources = paper_numbers.published()['sources']
    names = {paper_numbers.published_values(entry, r.runs[0].loss)[0] for r in rows if r.paper}
    notes += [
        f'The published figures for {n} come from {sources[n]}.' for n in sorted(names & {*sources})
    ]
    return notes


def _length(run: Run) -> str:
    """Return the planned length of a training."""
    return next((f'{n} {unit}' for unit, n in run.length.items()), 'unknown length')
