"""Finished runs as the paper's tables, out of the ``results.json`` that every test leaves."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mmcalib import published
from mmcalib.record import RESULTS, VALIDATION_RESULTS

COLUMNS = ('accuracy/top1', 'mIoU', 'calibration/ECE', 'calibration/AECE')
# In the paper's order.
SHORT_NAMES = {
    'CrossEntropyLoss': 'CE',
    'ConfidencePenaltyLoss': 'ECP',
    'LabelSmoothingLoss': 'LS',
    'SoftmaxFocalLoss': 'FL',
    'SampleDependentFocalLoss': 'FLSD',
    'MarginLabelSmoothingLoss': 'MbLS',
}
SYMBOLS = {'margin': 'm', 'alpha': 'α', 'gamma': 'γ'}
LOG_FOLDER = re.compile(r'\d{8}_\d{6}')  # mmengine names it by the time of the start


@dataclass
class Run:
    """What one results.json says; older ones lack all but the experiment and the metrics."""

    path: str
    experiment: str
    metrics: dict
    seed: int | None = None
    loss: dict | None = None
    calibration: dict | None = None
    training: dict = field(default_factory=dict)
    evaluation: dict | None = None
    date: str = ''

    @property
    def table(self) -> str:
        """Data and network, as the config files are named under every loss."""
        return self.experiment.split('/')[-1].removesuffix('_m0')

    @property
    def row(self) -> str:
        """What must be equal in all runs that are averaged."""
        if self.loss is None:
            return self.experiment
        length = [self.training.get(key) for key in ('epochs', 'iterations')]
        return json.dumps([self.loss, self.calibration, length], sort_keys=True)

    @property
    def protocol(self) -> str:
        return json.dumps(self.evaluation, sort_keys=True)

    @property
    def label(self) -> str:
        label = loss_label(self.loss) if self.loss else self.experiment
        if not self.calibration:
            return label
        forced = ''.join(f', {reason}' for reason in self.calibration['forced'])
        return f'{label} + {" + ".join(self.calibration["methods"])}{forced}'


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
    """One data set and network: the losses as rows, and what is not in them as notes."""

    name: str
    columns: list[str]
    rows: list[Row]
    notes: list[str]


def loss_label(loss: Mapping) -> str:
    """Return ``MbLS m=6 α=0.1`` and the like."""
    parts = [SHORT_NAMES.get(loss['type'], loss['type'])]
    others = sorted(key for key in loss if key not in SYMBOLS)
    for key in [*(key for key in SYMBOLS if key in loss), *others]:
        value = loss[key]
        if key != 'type' and (key, value) != published.IGNORED:
            text = f'{value:g}' if isinstance(value, float) else value
            parts.append(f'{SYMBOLS.get(key, key)}={text}')
    return ' '.join(parts)


def collect(folders: Sequence[str]) -> tuple[list[Run], dict[str, list[str]]]:
    """Return the tested runs below some folders, and the paths of the others by what they lack.

    Raises:
        FileNotFoundError: If there is no tested run.
    """
    runs, others = [], defaultdict(list)
    for folder in dict.fromkeys(
        path for root in folders for path in sorted([Path(root), *Path(root).rglob('*/')])
    ):
        if (folder / RESULTS).is_file():
            try:
                runs.append(read(folder / RESULTS))
            except (KeyError, ValueError):
                others[f'unreadable {RESULTS}'].append(str(folder))
        elif (folder / VALIDATION_RESULTS).is_file():
            others['not tested, only validated'].append(str(folder))
        elif (folder / 'last_checkpoint').is_file() or _has_log(folder):
            others[f'unfinished or not tested, no {RESULTS}'].append(str(folder))
    if not runs:
        found = ''.join(f'; {reason}: {", ".join(paths)}' for reason, paths in others.items())
        raise FileNotFoundError(f'no {RESULTS} below {", ".join(map(str, folders))}{found}')
    return runs, dict(others)


def read(path: Path) -> Run:
    """Read a results.json, of this version or an older one.

    Raises:
        KeyError: If a part is missing.
        ValueError: If it is another file.
    """
    content = json.loads(path.read_text(encoding='utf-8'))
    if not isinstance(content, dict) or not isinstance(content.get('metrics'), dict):
        raise ValueError(f'{path} holds no metrics of a test')
    known = {key: content[key] for key in Run.__dataclass_fields__ if key in content}
    return Run(**{**known, 'path': str(path.parent), 'metrics': content['metrics']})


def tables(runs: Sequence[Run], protocol: str | None = None) -> list[Table]:
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


def _table(name: str, runs: list[Run], protocol: str | None) -> Table:
    left_out = defaultdict(list)
    finished = []
    for run in runs:
        if run.training.get('finished') is False:
            left_out['training unfinished'].append(run.path)
        else:
            finished.append(run)

    wanted = [run for run in finished if protocol in (None, (run.evaluation or {}).get('protocol'))]
    chosen = Counter(run.protocol for run in wanted).most_common(1)
    kept = {}
    for run in sorted(finished, key=lambda run: run.date, reverse=True):
        key = run.row, run.path if run.seed is None else run.seed
        if not chosen or run.protocol != chosen[0][0]:
            reason = f'evaluated under another protocol ({describe(run.evaluation)})'
            left_out[reason].append(run.path)
        elif key in kept:
            reason = f'{run.label}, seed {run.seed} again, older than {kept[key].path}'
            left_out[reason].append(run.path)
        else:
            kept[key] = run

    evaluation = next(iter(kept.values())).evaluation if kept else None
    entry = published.experiment(name)
    obstacle = published.obstacle(entry, evaluation) if entry and kept else None
    rows = _rows(kept.values(), entry if not obstacle else None)
    notes = [f'Evaluation: {describe(evaluation)}.'] if kept else ['No run is left.']
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


def _rows(runs: Sequence[Run], entry: Mapping | None) -> list[Row]:
    groups = defaultdict(list)
    for run in runs:
        groups[run.row].append(run)
    lengths = {_length(run) for run in runs}
    rows = []
    for group in groups.values():
        label = group[0].label + (f', {_length(group[0])}' if len(lengths) > 1 else '')
        known = entry and not group[0].calibration
        paper = published.figures(entry, group[0].loss) if known else None
        rows.append(Row(label, group, paper[1] if paper else {}))
    return sorted(rows, key=_order)


def _order(row: Row) -> tuple:
    loss = row.runs[0].loss or {}
    place = list(SHORT_NAMES).index(loss['type']) if loss.get('type') in SHORT_NAMES else 99
    return place, [loss.get(key, 0) for key in SYMBOLS], row.label


def _length(run: Run) -> str:
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


def describe(evaluation: Mapping | None) -> str:
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


def _has_log(folder: Path) -> bool:
    paths = folder.iterdir() if folder.is_dir() else ()
    return any(LOG_FOLDER.fullmatch(path.name) for path in paths)
