"""Values that the paper published, and the runs that they may stand beside."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

from mmcalib.reports.reported_runs import ReportedRun
from mmcalib.runs.labels import COUNTS_VALID_PIXELS
from mmcalib.runs.record import is_ensemble


@cache
def published() -> dict:
    """Return the paper's tables: values in percent, and how they were measured."""
    return json.loads(Path(__file__).with_suffix('.json').read_text(encoding='utf-8'))


def loss_in_paper(entry: Mapping, run: ReportedRun) -> str:
    """Return the paper's name of a run's loss, empty if the paper has no values of it.

    Args:
        entry: Experiment in :func:`published`, for a data set and a network.
        run: Run, whose loss must have all of the paper's parameters.
    """
    if run.record.calibration or is_ensemble(run.record.model):
        return ''
    loss = {
        key: value
        for key, value in (run.record.loss or {}).items()
        # mmseg's default counts ignored pixels, which the paper's code does not.
        if (key, value) != COUNTS_VALID_PIXELS
    }
    for name, parameters in {**published()['losses'], 'MbLS': entry['MbLS']}.items():
        if parameters == loss:
            return name if name in entry['values'] else ''
    return ''


def unlike(conditions: Mapping, run: ReportedRun) -> Iterator[str]:
    """Yield what a run has otherwise than the paper, such as ``num_bins=25, where …``.

    Args:
        conditions: Part of an entry: ``conditions``, without which values are not comparable, or
            what is ``usual``. A list has the values that will do, the paper's own first.
        run: Run of one network.
    """
    parts = {
        'backbone': run.network.get('backbone', {}),
        'evaluation': {'tta': False, **run.evaluation},
        'dataset': run.evaluation.get('dataset', {}),
        'train_cfg': run.config.get('train_cfg') or {},
    }
    for part, paper_options in conditions.items():
        options = parts[part] if isinstance(parts[part], Mapping) else {}
        for key, paper_value in paper_options.items():
            accepted = paper_value if isinstance(paper_value, list) else [paper_value]
            value = options.get(key)
            if value not in accepted:
                yield f'{part}.{key}={value}, where the paper has {accepted[0]}'


def remarks(entry: Mapping, runs: Sequence[ReportedRun]) -> list[str]:
    """Return how runs beside published values are not quite the paper's, and other sources."""
    differences = []
    for run in runs:
        differences += [f'{difference}.' for difference in unlike(entry['usual'], run)]
    notes = list(dict.fromkeys(differences))
    sources = published()['sources']
    for name in sorted({loss_in_paper(entry, run) for run in runs}):
        if name in sources:
            notes.append(f'Published figures of {name}: {sources[name]}.')
    return notes
