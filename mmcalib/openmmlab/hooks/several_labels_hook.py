"""The hook that tells metrics whether the head of a run predicts several labels of an image."""

from __future__ import annotations

from collections.abc import Iterable

from mmengine.evaluator import BaseMetric
from mmengine.hooks import Hook
from mmengine.runner import Runner
from torch import nn

from mmcalib.openmmlab.heads import has_several_labels
from mmcalib.openmmlab.metrics import CalibrationMetric


class SeveralLabelsHook(Hook):
    """Hook that sets ``several_labels`` of each CalibrationMetric by the head of the model.

    A sample does not say whether its scores are of a softmax or of sigmoids. Our tools add this
    hook to every run.
    """

    def before_val(self, runner: Runner) -> None:
        set_several_labels(runner.model, runner.val_evaluator.metrics)

    def before_test(self, runner: Runner) -> None:
        set_several_labels(runner.model, runner.test_evaluator.metrics)


def set_several_labels(model: nn.Module, metrics: Iterable[BaseMetric]) -> None:
    """Set ``several_labels`` of each CalibrationMetric if the head predicts several labels."""
    while hasattr(model, 'module'):  # Several processes and views wrap the model.
        model = model.module
    if not has_several_labels(model):
        return
    for metric in metrics:
        if isinstance(metric, CalibrationMetric):
            metric.several_labels = True
