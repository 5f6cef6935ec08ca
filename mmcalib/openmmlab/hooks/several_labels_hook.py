"""Tells the metrics of a run whether its head predicts several labels of an image."""

from __future__ import annotations

from collections.abc import Iterable

from mmengine.evaluator import BaseMetric
from mmengine.hooks import Hook
from mmengine.runner import Runner

from mmcalib.openmmlab.heads import has_several_labels
from mmcalib.openmmlab.metrics import CalibrationMetric


class SeveralLabelsHook(Hook):
    """Has each CalibrationMetric measure several labels of an image where the head predicts them.

    A sample does not say whether its scores are of a softmax or of sigmoids. Our tools add this
    hook to every run.
    """

    def before_val(self, runner: Runner) -> None:
        self._tell(runner, runner.val_evaluator.metrics)

    def before_test(self, runner: Runner) -> None:
        self._tell(runner, runner.test_evaluator.metrics)

    @staticmethod
    def _tell(runner: Runner, metrics: Iterable[BaseMetric]) -> None:
        model = runner.model
        while hasattr(model, 'module'):  # Several processes and views wrap it.
            model = model.module
        if has_several_labels(model):
            for metric in metrics:
                if isinstance(metric, CalibrationMetric):
                    metric.several_labels = True
