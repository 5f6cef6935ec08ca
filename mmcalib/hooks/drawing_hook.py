"""The base of hooks that draw: what was measured, and the way of a figure to its files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mmengine.evaluator import Evaluator
from mmengine.hooks import Hook
from mmengine.logging import print_log
from mmengine.runner import Runner

from mmcalib.checks import check_choice
from mmcalib.metrics import CalibrationMetric, CalibrationStatistics

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SPLIT_NAMES = {'val': 'validation', 'test': 'test'}
# In a config: the split that its test is made on, where that is not the test split.
TESTED_SPLIT = 'tested_split'
FORMATS = ('pdf', 'svg', 'png')
DPI = 200  # of a PNG


class DrawingHook(Hook):
    """A hook that draws evaluations, after the numbers are logged.

    Args:
        formats: Of files beside the pixels that go to the visualizer: ``'pdf'`` and ``'svg'``,
            or ``'png'`` at a high resolution.

    Raises:
        ValueError: If a format is another.
    """

    priority = 'LOW'

    def __init__(self, formats: str | Sequence[str] = ()) -> None:
        formats = (formats,) if isinstance(formats, str) else formats
        self.formats = [check_choice('formats', kind, FORMATS) for kind in formats]

    def add_figure(self, runner: Runner, name: str, figure: Figure, step: int = 0) -> None:
        """Give a figure to the visualizer, and write it in the other formats to ``figures/``."""
        from mmcalib.visualization import to_rgb

        runner.visualizer.add_image(name, to_rgb(figure), step)
        for kind in self.formats:
            path = Path(runner.log_dir, 'figures', f'{name}_{step}.{kind}')
            path.parent.mkdir(exist_ok=True)
            figure.savefig(path, dpi=DPI)


def tested_split(runner: Runner) -> str:
    """Return the split that a test is made on."""
    return runner.cfg.get(TESTED_SPLIT, 'test')


def calibration_metrics(evaluator: Evaluator, hook: Hook) -> list[CalibrationMetric]:
    """Return the calibration metrics of an evaluator; without one the log says so."""
    metrics = [metric for metric in evaluator.metrics if isinstance(metric, CalibrationMetric)]
    if not metrics:
        print_log(
            f'{type(hook).__name__} draws nothing, since no CalibrationMetric has measured it',
            logger='current',
        )
    return metrics


def kept_statistics(metrics: list[CalibrationMetric]) -> dict[str, CalibrationStatistics]:
    """Return the statistics of an evaluation by the names of their files, those alike as one.

    An ``ECE`` beside an ``AECE`` of the same options has the same predictions in the same bins: one
    file and one diagram say both. Other options have a file of their own, which is named after the
    first of them that tells it apart: ``calibration``, ``calibration_paper``,
    ``calibration_25_bins``.
    """
    named, by_options = {}, {}
    for metric in metrics:
        options = (
            *(metric.prefix, metric.protocol, metric.num_bins),
            *(metric.ignore_index, metric.boundary_width),
        )
        if options in by_options:
            by_options[options].complete(metric.statistics)
            continue
        protocol = f'_{metric.protocol}' if metric.protocol != 'pooled' else ''
        first = f'{metric.prefix}{protocol}'.replace('/', '_')
        tries = [first, f'{first}_{metric.num_bins}_bins']
        tries += [f'{first}_{number}' for number in range(2, len(metrics) + 2)]
        named[next(name for name in tries if name not in named)] = metric.statistics
        by_options[options] = metric.statistics
    return named
