"""The paper's own figures, and the runs that they may stand beside."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

from mmcalib.reports.tested_runs import TestedRun
from mmcalib.runs.record import COUNTS_VALID_PIXELS, is_ensemble


@cache
def published() -> dict:
    """Return the paper's tables: figures in percent, and how they were measured."""
    return json.loads(Path(__file__).with_suffix('.json').read_text(encoding='utf-8'))


def loss_in_paper(entry: Mapping, run: TestedRun) -> str:
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


def unlike(conditions: Mapping, run: TestedRun) -> Iterator[str]:
    """Yield what a run has otherwise than the paper, such as ``num_bins=25, where …``.

    Args:
        conditions: Of an entry, ``conditions`` without which figures are not comparable, or what
            is ``usual``: values, or lists of those that will do, the paper's own first.
        run: Of one network.
    """
    parts = {
        'backbone': run.network.get('backbone', {}),
        'evaluation': {'tta': False, **run.evaluation},
        'dataset': run.evaluation.get('dataset', {}),
        'train_cfg': run.config.get('train_cfg') or {},
    }
    for part, wanted in conditions.items():
        for key, paper in wanted.items():
            known = parts[part] if isinstance(parts[part], Mapping) else {}
            value = known.get(key)
            values = paper if isinstance(paper, list) else [paper]
            if value not in values:
                yield f'{part}.{key}={value}, where the paper has {values[0]}'


def remarks(entry: Mapping, runs: Sequence[TestedRun]) -> list[str]:
    """Return where runs beside published figures are not quite the paper's, and other sources."""
    notes = dict.fromkeys(f'{each}.' for run in runs for each in unlike(entry['usual'], run))
    sources = published()['sources']
    names = sorted({loss_in_paper(entry, run) for run in runs} & {*sources})
    return [*notes, *(f'Published figures of {name}: {sources[name]}.' for name in names)]
