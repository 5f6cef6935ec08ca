"""The base of the hooks that draw evaluations."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmengine.evaluator import Evaluator
from mmengine.hooks import Hook
from mmengine.logging import print_log
from mmengine.runner import Runner

from mmcalib.openmmlab.metrics import CalibrationMetric

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class DrawingHook(Hook):
    """Base of the hooks that draw evaluations, after the numbers are logged."""

    priority = 'LOW'

    def calibration_metrics(self, evaluator: Evaluator) -> list[CalibrationMetric]:
        """Return the calibration metrics of an evaluator; log that nothing is drawn without one."""
        metrics = [metric for metric in evaluator.metrics if isinstance(metric, CalibrationMetric)]
        if not metrics:
            print_log(
                f'{type(self).__name__} draws nothing: add a CalibrationMetric to the evaluator.',
                logger='current',
            )
        return metrics

    def add_figure(self, runner: Runner, name: str, figure: Figure, step: int = 0) -> None:
        """Give the pixels of a figure to the visualizer of a run."""
        from mmcalib.visualization import to_rgb

        runner.visualizer.add_image(name, to_rgb(figure), step)
