"""The end of a run for people: figures, their meaning, and the places of its files."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Real
from pathlib import Path

from mmcalib.metrics import CalibrationStatistics
from mmcalib.metrics.errors import gap
from mmcalib.metrics.intervals import intervals
from mmcalib.metrics.keys import (
    GAP,
    INTERVAL,
    PREFIX,
    TOP1,
    is_percentage,
    metric_name,
    number_text,
)
from mmcalib.record import Record, model_label

FOLDER_OF_FIGURES = 'vis_data/vis_image'  # of mmengine's LocalVisBackend, in the log's folder


def judgement(low: float, high: float) -> str:
    """Return what the interval of a gap says of a model."""
    if low > 0:
        return 'over-confident'
    return 'under-confident' if high < 0 else 'not told from 0'


def confidence_and_accuracy(statistics: CalibrationStatistics) -> tuple[float, float] | None:
    """Return mean confidence and accuracy in percent, None of no predictions."""
    count, correct, confidence = statistics.narrow_bins.sum(dim=1).tolist()
    return (100 * confidence / count, 100 * correct / count) if count else None


def measured_gap(statistics: CalibrationStatistics) -> dict[str, float]:
    """Return the gap between confidence and accuracy, with its interval where images are known."""
    found = {GAP: gap(statistics.narrow_bins).item()}
    if statistics.image_bins is None:
        return found
    bins = statistics.image_bins[statistics.image_bins[:, 0].sum(dim=1) > 0]
    bounds = intervals(
        lambda weights: {GAP: gap((weights @ bins.flatten(1)).view(-1, *bins.shape[1:]))},
        len(bins), coverage=0.95, num_bootstrap=1000, seed=0, limits={GAP: (-100.0, 100.0)},
    )[GAP]  # fmt: skip
    return found | {f'{GAP}{end}': bound for end, bound in zip(INTERVAL, bounds, strict=True)}


def find_diagram(log_dir: str | Path, split: str) -> Path | None:
    """Return the newest reliability diagram that a run has drawn of a split, None without one.

    Of several metrics it is the first one's, whose figures :func:`summary` has; the names of the
    others' say more than the step.
    """
    start = f'reliability_diagram_{split}_'
    paths = Path(log_dir, FOLDER_OF_FIGURES).glob(f'{start}*.png')
    paths = [path for path in paths if path.stem.removeprefix(start).isdigit()]
    return max(paths, key=lambda path: path.stat().st_mtime, default=None)


def summary(
    results: Record,
    statistics: CalibrationStatistics | None = None,
    files: Mapping[str, str | Path | None] | None = None,
    *,
    measured: bool = False,
) -> str:
    """Return the figures of a test as a small table, with where its files are below.

    Args:
        results: Of the test.
        statistics: Of the test's calibration metric; None if it had none.
        files: Paths by what they are; None where there is no such file.
        measured: Whether calibration was measured under another prefix.
    """
    rows = []
    both = statistics and confidence_and_accuracy(statistics)
    metrics = results.metrics
    ours = [key for key in metrics if key.startswith(PREFIX)]
    for key in [key for key in metrics if key not in ours]:
        rows.append((key, number(key, metrics[key]), ''))
    if both:
        if not any(key.startswith(TOP1) for key in metrics):
            of_what = f'of {statistics.num_predictions:,} predictions'
            rows.append(('accuracy', f'{both[1]:.2f} %', of_what))
        rows.append(('mean confidence', f'{both[0]:.2f} %', ''))
        metrics = metrics if GAP in metrics else {**metrics, **measured_gap(statistics)}
        ours = [key for key in metrics if key.startswith(PREFIX)]
        ours.sort(key=lambda key: key != GAP)  # below the confidence
    ends = {f'{key}{end}' for key in ours for end in INTERVAL}
    for key in [key for key in ours if key not in ends]:
        remark = ''
        if f'{key}{INTERVAL[0]}' in metrics:
            bounds = [metrics[f'{key}{end}'] for end in INTERVAL]
            low, high = (number(key, bound) for bound in bounds)
            remark = f'{judgement(*bounds)}; ' if key == GAP else ''
            remark += f'interval {low.removesuffix(" %")} to {high}'
        rows.append((metric_name(key), number(key, metrics[key]), remark))
    names, values, _ = ([len(text) for text in column] for column in zip(*rows, strict=True))
    lines = [heading(results)]
    lines += [f'{a:<{max(names)}}  {b:>{max(values)}}  {c}'.rstrip() for a, b, c in rows]
    # Of another prefix, or of unseen classes: such figures stand above.
    if statistics is None and not measured and 'ood' not in results.evaluation:
        lines.append(
            'Calibration was not measured; tools/test.py CONFIG CHECKPOINT --calibration '
            'measures it.'
        )
    lines += [f'{name:<12}{path}' for name, path in (files or {}).items() if path]
    return '\n'.join(lines)


def heading(results: Record) -> str:
    """Return the tested model and data, in a line."""
    parts = [results.experiment, model_label(results.model, experiment='').strip()]
    samples = results.evaluation.get('dataset', {}).get('samples')
    parts.append(f'{results.split} split' + (f', {samples:,} samples' if samples else ''))
    if results.limit:
        all_tested = samples and samples > results.limit
        of_what = 'the checkpoint of a SMOKE RUN' if all_tested else 'SMOKE RUN'
        parts.append(f'{of_what} with --limit {results.limit}')
    return '; '.join(filter(None, parts))


def number(key: str, value: object) -> str:
    """Return a metric's value with its unit."""
    if not isinstance(value, Real):
        return str(value)
    sign = '+' if key == GAP and value >= 0 else ''
    return sign + number_text(value, key) + (' %' if is_percentage(key) else '')
