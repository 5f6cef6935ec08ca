"""The paper's own figures, and the runs that they may stand beside."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from mmcalib.record import COUNTS_VALID_PIXELS

FILE = Path(__file__).with_suffix('.json')


@cache
def published() -> dict:
    """Return the paper's tables: figures in percent, and how they were measured."""
    return json.loads(FILE.read_text(encoding='utf-8'))


def published_experiment(name: str) -> dict | None:
    """Return the paper's figures for a data set and network, by the name of their configs."""
    return published()['experiments'].get(name)


def published_values(entry: Mapping, loss: Mapping | None) -> tuple[str, dict] | None:
    """Return the paper's name of a loss and its figures by key, None where it has none.

    Args:
        entry: Of :func:`published_experiment`.
        loss: Type and parameters; all must be the paper's.
    """
    losses = {**published()['losses'], 'MbLS': entry['MbLS']}
    # mmseg's default counts ignored pixels, which the paper's code does not.
    loss = {
        key: value for key, value in (loss or {}).items() if (key, value) != COUNTS_VALID_PIXELS
    }
    for name, paper in losses.items():
        if loss == paper and name in entry['values']:
            return name, entry['values'][name]
    return None


def why_not_comparable(
    entry: Mapping, evaluation: Mapping, network: Mapping | None = None
) -> str | None:
    """Return the reason why runs must not stand beside the paper's figures, None if they may.

    Args:
        entry: Of :func:`published_experiment`.
        evaluation: How they were tested.
        network: The config of their model; None if it is not known.
    """
    evaluation = {'tta': False, **evaluation}
    backbone = (network or {}).get('backbone')
    conditions = [
        (
            'evaluation',
            evaluation,
            {**{k: entry[k] for k in ('protocol', 'num_bins')}, 'tta': False},
        ),
        ('dataset', evaluation.get('dataset', {}), entry['dataset']),
    ]
    if backbone is not None:
        found = backbone if isinstance(backbone, Mapping) else {}
        conditions.insert(0, ('backbone', found, entry['backbone']))
    for part, found, wanted in conditions:
        for key, value in wanted.items():
            if found.get(key) != value:
                return f'{part}.{key}={found.get(key)}, where the paper has {value}'
    if evaluation.get('other_metrics'):
        return f'{", ".join(evaluation["other_metrics"])} was measured with other options'
    samples = evaluation.get('dataset', {}).get('samples')
    if samples not in entry['samples']:
        return f'dataset.samples={samples}, where the paper has {entry["samples"][0]}'
    return None
