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
    backbone = None if network is None else network.get('backbone')
    if backbone is not None and any(
        not isinstance(backbone, Mapping) or backbone.get(key) != value
        for key, value in entry['backbone'].items()
    ):
        expected = ' '.join(map(str, entry['backbone'].values()))
        return f"the paper's figures are for another network ({expected})"
    if evaluation.get('protocol') != entry['protocol']:
        return f"the paper's figures use protocol {entry['protocol']!r}"
    if evaluation.get('num_bins') != entry['num_bins']:
        return f"the paper's figures use {entry['num_bins']} bins"
    if evaluation.get('other_metrics'):
        return f'{", ".join(evaluation["other_metrics"])} was measured with other options'
    if evaluation.get('tta'):
        return "the paper's figures are without test-time augmentation"
    data = evaluation.get('dataset', {})
    if any(data.get(key) != value for key, value in entry['dataset'].items()):
        expected = ', '.join(f'{key} {value}' for key, value in entry['dataset'].items())
        return f"the paper's figures are for another test set ({expected})"
    if data.get('samples') not in entry['samples']:
        return f'{data.get("samples"):,} samples were tested, not {entry["samples"][0]:,}'
    return None
