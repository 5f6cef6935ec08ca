"""The paper's own figures, and the runs that they may stand beside."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from mmcalib.record import COUNTS_VALID_PIXELS, is_ensemble
from mmcalib.reports.runs import Run


@cache
def published() -> dict:
    """Return the paper's tables: figures in percent, and how they were measured."""
    return json.loads(Path(__file__).with_suffix('.json').read_text(encoding='utf-8'))


def published_values(entry: Mapping, run: Run) -> tuple[str, dict]:
    """Return the paper's name of a run's loss and its figures by key, empty if it has none.

    Args:
        entry: Of a data set and network, of the experiments in :func:`published`.
        run: One network whose loss has all of the paper's parameters.
    """
    # mmseg's default counts ignored pixels, which the paper's code does not.
    loss = {k: v for k, v in (run.record.loss or {}).items() if (k, v) != COUNTS_VALID_PIXELS}
    losses = {**published()['losses'], 'MbLS': entry['MbLS']}
    found = next((name for name, paper in losses.items() if paper == loss), '')
    if run.record.calibration or is_ensemble(run.record.model) or found not in entry['values']:
        return '', {}
    return found, entry['values'][found]


def why_not_comparable(entry: Mapping, run: Run) -> str | None:
    """Return the reason why a run must not stand beside the paper's figures, None if it may."""
    data = run.evaluation.get('dataset', {})
    measured = {'tta': False, **run.evaluation}
    backbone = run.network.get('backbone', entry['backbone'])
    wanted = {'protocol': entry['protocol'], 'num_bins': entry['num_bins']}
    wanted |= {'tta': False, 'other_metrics': None}
    conditions = [
        *((f'backbone.{key}', backbone.get(key), [it]) for key, it in entry['backbone'].items()),
        *((f'evaluation.{key}', measured.get(key), [it]) for key, it in wanted.items()),
        *((f'dataset.{key}', data.get(key), [it]) for key, it in entry['dataset'].items()),
        ('dataset.samples', data.get('samples'), entry['samples']),
    ]
    for place, found, paper in conditions:
        if found not in paper:
            return f'{place}={found}, where the paper has {paper[0]}'
    return None


def remarks(entry: Mapping, runs: Sequence[Run]) -> list[str]:
    """Return where runs beside published figures are not quite the paper's, and other sources."""
    notes, samples = [], runs[0].evaluation['dataset']['samples']
    lengths = sorted({str(run.epochs or 'unknown') for run in runs})
    if entry['epochs'] and lengths != [str(entry['epochs'])]:
        notes.append(f'Epochs: {" or ".join(lengths)}, where the paper has {entry["epochs"]}.')
    if samples != entry['samples'][0]:
        notes.append(f'Samples: {samples:,}, where the paper has {entry["samples"][0]:,}.')
    sources = published()['sources']
    names = sorted({published_values(entry, run)[0] for run in runs} & {*sources})
    return notes + [f'Published figures of {name}: {sources[name]}.' for name in names]
