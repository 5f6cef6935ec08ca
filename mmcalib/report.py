"""Finished runs as one table, out of the ``results.json`` that every test leaves."""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

RESULTS = 'results.json'
COLUMNS = ('accuracy/top1', 'mIoU', 'calibration/ECE', 'calibration/AECE')


def collect(folders: Sequence[str]) -> dict[str, list[dict]]:
    """Return the metrics of all runs below some folders, per experiment, in sorted order.

    Raises:
        FileNotFoundError: If there is no finished run.
    """
    experiments = defaultdict(list)
    for folder in folders:
        for path in sorted(Path(folder).rglob(RESULTS)):
            run = json.loads(path.read_text())
            experiments[run['experiment']].append(run['metrics'])
    if not experiments:
        raise FileNotFoundError(f'no {RESULTS} below {", ".join(map(str, folders))}')
    return dict(sorted(experiments.items()))


def markdown(experiments: dict[str, list[dict]]) -> str:
    """Return a Markdown table: mean ± standard deviation over the runs of each experiment."""
    columns = [
        key for key in COLUMNS if any(key in run for runs in experiments.values() for run in runs)
    ]
    names = ' | '.join(f'{key.split("/")[-1]} (%)' for key in columns)
    lines = [
        f'| experiment | runs | {names} |',
        '|---|--:|' + '--:|' * len(columns),
    ]
    for name, runs in experiments.items():
        cells = [_cell([run[key] for run in runs if key in run]) for key in columns]
        lines.append(f'| {name} | {len(runs)} | ' + ' | '.join(cells) + ' |')
    return '\n'.join(lines)


def _cell(values: list[float]) -> str:
    if not values:
        return '–'
    mean = f'{statistics.mean(values):.2f}'
    return f'{mean} ± {statistics.stdev(values):.2f}' if len(values) > 1 else mean
