"""Tests against unseen classes as rows of tables of their own, one for each score."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from mmcalib.metric_keys import OOD, OOD_GROUPS
from mmcalib.reports.results_reader import ReportedRun


def parts_of(run: ReportedRun) -> list[ReportedRun]:
    """Return a tested run without what it has measured of unseen classes, and that by its scores.

    AUROC and others are of failures in the one, and of unseen classes in the others, whose keys are
    ``ood/AUROC``, ``ood/svhn/AUROC`` and so on, whatever the prefix of the metric. A mean over a
    group of one set is that set's, and left out.
    """
    metrics = run.evaluation.get('ood', [])
    prefixes = tuple(f'{metric["prefix"]}/' for metric in metrics)
    rest = {key: value for key, value in run.metrics.items() if not key.startswith(prefixes)}
    if not metrics:
        return [run]
    evaluation = {key: value for key, value in run.evaluation.items() if key != 'ood'}
    plain = [replace(run, metrics=rest, evaluation=evaluation)] if rest else []
    return [*plain, *(part for metric in metrics for part in _by_score(run, metric))]


def _by_score(run: ReportedRun, metric: Mapping) -> Iterator[ReportedRun]:
    keep = ('dataset', 'data_options', 'pipeline', 'inference', 'tta')
    evaluation = {key: run.evaluation[key] for key in keep if key in run.evaluation}
    counts = dict(metric['counts'])
    sets = {name: n for name, n in counts.items() if name not in ('ID', 'OOD')}
    data = dict(evaluation.get('dataset', {}))
    if sets:  # behind the samples of the test data
        data['samples'] = counts['ID']
        data['unseen'] = 'against ' + ', '.join(f'{n:,} of {name}' for name, n in sets.items())
    else:
        label = metric['ood_index']
        of_label = '' if label is None else f' of label {label}'
        data['unseen'] = f'against {counts["OOD"]:,}{of_label}, {counts["ID"]:,} others'
    evaluation['dataset'] = data
    for score in metric['scores']:
        start = f'{metric["prefix"]}/{score}/'
        found = {k.removeprefix(start): v for k, v in run.metrics.items() if k.startswith(start)}
        if len(sets) == 1:
            found = {k: v for k, v in found.items() if k.split('/')[0] not in OOD_GROUPS}
        yield replace(
            run,
            experiment=f'{run.experiment} against unseen classes',
            metrics={OOD + key: value for key, value in found.items()},
            evaluation=evaluation,
            score=score,
        )
