"""The statistics that an evaluation keeps, by the names of their files."""

from __future__ import annotations

from collections.abc import Container, Sequence

from mmcalib.metrics.statistics import CalibrationStatistics
from mmcalib.openmmlab.metrics.calibration_metric import CalibrationMetric


def kept_statistics(
    metrics: Sequence[CalibrationMetric], num_samples: int
) -> dict[str, CalibrationStatistics]:
    """Return the statistics of evaluated metrics by the names of their files.

    Statistics of another number of samples than the data set has are left out: an evaluator has
    measured its parts, and they are those of the last one.

    Metrics of the same options, such as an ``ECE`` beside an ``AECE``, have the same bins of the
    same predictions and share one file. That of the first metric is ``calibration``, which all
    tools read. That of other options is named after the first option that differs, such as
    ``calibration_paper`` or ``calibration_25_bins``.
    """
    statistics_by_name: dict[str, CalibrationStatistics] = {}
    statistics_by_options: dict[tuple, CalibrationStatistics] = {}
    for metric in metrics:
        if metric.num_samples != num_samples:
            continue
        options = (
            metric.prefix,
            metric.protocol,
            metric.num_bins,
            metric.ignore_index,
            metric.boundary_width,
        )
        if options in statistics_by_options:
            statistics_by_options[options].complete(metric.statistics)
            continue
        prefix = metric.prefix.replace('/', '_')
        first = statistics_by_name.get(prefix, metric.statistics)
        has_other_protocol = metric.protocol != first.protocol
        stem = f'{prefix}_{metric.protocol}' if has_other_protocol else prefix
        name = unused_name([prefix, stem, f'{stem}_{metric.num_bins}_bins'], statistics_by_name)
        statistics_by_name[name] = metric.statistics
        statistics_by_options[options] = metric.statistics
    return statistics_by_name


def unused_name(names: Sequence[str], used: Container[str]) -> str:
    """Return the first of the names that is not used, else the second with a number."""
    for name in names:
        if name not in used:
            return name
    number = 2
    while f'{names[1]}_{number}' in used:
        number += 1
    return f'{names[1]}_{number}'
