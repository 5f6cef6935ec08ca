"""Tested runs as the paper's tables."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mmcalib.reports import published
from mmcalib.reports.collect import ReportedRun
from mmcalib.reports.loss_labels import SHORT_NAMES, SYMBOLS

COLUMNS = ('accuracy/top1', 'mIoU', 'calibration/ECE', 'calibration/AECE')


@dataclass
class Row:
    """Runs that differ only in their seed, and the paper's figures for them."""

    label: str
    runs: list[ReportedRun]
    paper: dict

    def values(self, column: str) -> list[float]:
        return [run.metrics[column] for run in self.runs if column in run.metrics]


@dataclass
class Table:
    """One data set and network: the losses as rows, and what is not in them as notes."""

    name: str
    columns: list[str]
    rows: list[Row]
    notes: list[str]


def tables_of(runs: Sequence[ReportedRun], protocol: str | None = None) -> list[Table]:
    """Return a table for each data set and network, by name.

    All runs of a table were evaluated alike: as most of them were, or by `protocol`. The others,
    the unfinished, and second runs of a seed are named in the notes.

    Args:
        runs: Of :func:`collect`.
        protocol: Of the calibration metric, ``'pooled'`` or ``'paper'``; None for the commonest.
    """
    by_name = defaultdict(list)
    for run in runs:
        by_name[run.table].append(run)
    return [_table(name, by_name[name], protocol) for name in sorted(by_name)]


def _table(name: str, runs: list[ReportedRun], protocol: str | None) -> Table:
    left_out = defaultdict(list)
    finished = []
    for run in runs:
        if run.training.get('finished') is False:
            left_out['training unfinished'].append(run.path)
        else:
            finished.append(run)

    wanted = [run for run in finished if protocol in (None, (run.evaluation or {}).get('protocol'))]
    chosen = Counter(run.evaluation_key for run in wanted).most_common(1)
    kept = {}
    for run in sorted(finished, key=lambda run: run.date, reverse=True):
        key = run.row, run.path if run.seed is None else run.seed
        if not chosen or run.evaluation_key != chosen[0][0]:
            reason = f'evaluated under another protocol ({evaluation_text(run.evaluation)})'
            left_out[reason].append(run.path)
        elif key in kept:
            reason = f'{run.label}, seed {run.seed} again, older than {kept[key].path}'
            left_out[reason].append(run.path)
        else:
            kept[key] = run

    evaluation = next(iter(kept.values())).evaluation if kept else None
    entry = published.published_experiment(name)
    obstacle = published.why_not_comparable(entry, evaluation) if entry and kept else None
    rows = _rows(kept.values(), entry if not obstacle else None)
    notes = [f'Evaluation: {evaluation_text(evaluation)}.'] if kept else ['No run is left.']
    if obstacle:
        notes.append(f'No published value stands beside these: {obstacle}.')
    if any(row.paper for row in rows):
        notes += _differences(entry, rows, evaluation)
    unknown = sorted(r.path for r in kept.values() if r.training.get('finished', True) is None)
    if unknown:
        notes.append(f'Not known whether their training was finished: {", ".join(unknown)}.')
    notes += [f'Left out, {why}: {", ".join(sorted(paths))}.' for why, paths in left_out.items()]
    columns = [key for key in COLUMNS if any(row.values(key) for row in rows)]
    title = f'{name} ({entry["title"]})' if entry else name
    return Table(title, columns, rows, notes)


def _rows(runs: Sequence[ReportedRun], entry: Mapping | None) -> list[Row]:
    groups = defaultdict(list)
    for run in runs:
        groups[run.row].append(run)
    lengths = {_length(run) for run in runs}
    rows = []
    for group in groups.values():
        label = group[0].label + (f', {_length(group[0])}' if len(lengths) > 1 else '')
        known = entry and not group[0].calibration
        paper = published.published_values(entry, group[0].loss) if known else None
        rows.append(Row(label, group, paper[1] if paper else {}))
    return sorted(rows, key=_order)


def _order(row: Row) -> tuple:
    loss = row.runs[0].loss or {}
    place = list(SHORT_NAMES).index(loss['type']) if loss.get('type') in SHORT_NAMES else 99
    return place, [loss.get(key, 0) for key in SYMBOLS], row.label


def _length(run: ReportedRun) -> str:
    for key in ('epochs', 'iterations'):
        if run.training.get(key):
            return f'{run.training[key]} {key}'
    return 'unknown length'


def _differences(entry: Mapping, rows: list[Row], evaluation: Mapping) -> list[str]:
    """Say where runs that stand beside published figures are not quite the paper's."""
    notes = []
    lengths = sorted({_length(row.runs[0]) for row in rows if row.paper})
    if entry['epochs'] and lengths != [f'{entry["epochs"]} epochs']:
        notes.append(f'Trained for {" or ".join(lengths)}; the paper for {entry["epochs"]} epochs.')
    samples = evaluation['dataset']['samples']
    if samples != entry['samples'][0]:
        notes.append(f'Tested on {samples:,} samples; the paper on {entry["samples"][0]:,}.')
    return notes


def evaluation_text(evaluation: Mapping | None) -> str:
    """Return how a run was evaluated, in words."""
    if evaluation is None:
        return 'unknown protocol'
    data = evaluation.get('dataset', {})
    names = [str(value) for key, value in data.items() if key != 'samples']
    parts = [f'{data.get("samples", 0):,} samples of {" ".join(names)}']
    if 'protocol' in evaluation:
        options = [f'protocol {evaluation["protocol"]}', f'{evaluation.get("num_bins")} bins']
        if evaluation.get('convention'):
            options.append(str(evaluation['convention']))
        parts += options
    else:
        parts.append('no calibration metric')
    return ', '.join([*parts, *(['test-time augmentation'] if evaluation.get('tta') else [])])
