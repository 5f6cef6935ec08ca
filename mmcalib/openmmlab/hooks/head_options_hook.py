"""The hook that tells metrics what only the head or the data set of a run knows."""

from __future__ import annotations

from collections.abc import Iterable

from mmengine.evaluator import BaseMetric
from mmengine.hooks import Hook
from mmengine.runner import Runner
from torch import nn

from mmcalib.openmmlab.heads import has_several_labels, innermost_model, label_ignored_by_head
from mmcalib.openmmlab.metrics import CalibrationMetric
from mmcalib.openmmlab.metrics.list_metric import ListMetric


class HeadOptionsHook(Hook):
    """Hook that sets the options of metrics which the head decides, and their data set.

    A sample says neither whether its scores are of a softmax or of sigmoids, nor which label does
    not count. Our tools add this hook to every run.
    """

    def before_val(self, runner: Runner) -> None:
        set_head_options(runner.model, runner.val_evaluator.metrics)
        set_dataset(runner.val_evaluator.metrics, runner.val_dataloader.dataset)

    def before_test(self, runner: Runner) -> None:
        set_head_options(runner.model, runner.test_evaluator.metrics)
        set_dataset(runner.test_evaluator.metrics, runner.test_dataloader.dataset)


def set_dataset(metrics: Iterable[BaseMetric], dataset: object) -> None:
    """Tell metrics the data set, which knows the samples that are copies of one image."""
    for metric in metrics:
        if isinstance(metric, CalibrationMetric):
            metric.dataset = dataset


def set_head_options(model: nn.Module, metrics: Iterable[BaseMetric]) -> int:
    """Have metrics count what the head predicts, and return the label whose pixels do not count.

    Each CalibrationMetric gets ``several_labels`` if the head predicts several, and each of our
    metrics without an ``ignore_index`` of its own that of the head. A test and a calibration both
    ask this function, so that they count the same pixels.

    Returns:
        The ignored label of the first CalibrationMetric; without one, that of the head.
    """
    model = innermost_model(model)
    head_label = label_ignored_by_head(model)
    counted_labels = []
    for metric in metrics:
        if isinstance(metric, ListMetric) and not metric.declares_ignore_index:
            metric.use_ignore_index(head_label)
        if isinstance(metric, CalibrationMetric):
            metric.several_labels = metric.several_labels or has_several_labels(model)
            counted_labels.append(metric.ignore_index)
    return counted_labels[0] if counted_labels else head_label
