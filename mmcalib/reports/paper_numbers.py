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


def loss_in_paper(entry: Mapping, run: Run) -> str:
    """Return the paper's name of a run's loss, empty if it has no figures of it.

    Args:
        entry: Of a data set and network, of the experiments in :func:`published`.
        run: Of a loss that has all of the paper's parameters.
    """
    # mmseg's default counts ignored pixels, which the paper's code does not.
    loss = {k: v for k, v in (run.record.loss or {}).items() if (k, v) != COUNTS_VALID_PIXELS}
    losses = {**published()['losses'], 'MbLS': entry['MbLS']}
    found = next((name for name, paper in losses.items() if paper == loss), '')
    is_single = not (run.record.calibration or is_ensemble(run.record.model))
    return found if is_single and found in entry['values'] else ''


def why_not_comparable(entry: Mapping, run: Run) -> str | None:
    """Return the reason why a run must not stand beside the paper's figures, None if it may."""
    parts = {
        'backbone': run.network.get('backbone', {}),
        'evaluation': {'tta': False, **run.evaluation},
        'dataset': run.evaluation.get('dataset', {}),
    }
    for part, wanted in entry['conditions'].items():
        for key, paper in wanted.items():
            found, paper = parts[part].get(key), paper if isinstance(paper, list) else [paper]
            if found not in paper:
                return f'{part}.{key}={found}, where the paper has {paper[0]}'
    return None


def remarks(entry: Mapping, runs: Sequence[Run]) -> list[str]:
    """Return where runs beside published figures are not quite the paper's, and other sources."""
    notes, samples = [], runs[0].evaluation['dataset']['samples']
    lengths = {(run.config.get('train_cfg') or {}).get('max_epochs') or 'unknown' for run in runs}
    if entry['epochs'] and lengths != {entry['epochs']}:
        ours = ' or '.join(sorted(map(str, lengths)))
        notes.append(f'Epochs: {ours}, where the paper has {entry["epochs"]}.')
    paper = entry['conditions']['dataset']['samples']
    if isinstance(paper, list) and samples != paper[0]:
        notes.append(f'Samples: {samples:,}, where the paper has {paper[0]:,}.')
    sources = published()['sources']
    names = sorted({loss_in_paper(entry, run) for run in runs} & {*sources})
    return notes + [f'Published figures of {name}: {sources[name]}.' for name in names]
