"""Keeps the confidence map of one image of a segmentor's test."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mmengine.dist import collect_results, get_dist_info, is_main_process
from mmengine.hooks import Hook
from mmengine.runner import Runner

from mmcalib.argument_checks import check_integer
from mmcalib.hooks.confidence_view import view_of
from mmcalib.hooks.drawing_hook import calibration_metrics
from mmcalib.samples.fields import map_size

if TYPE_CHECKING:
    from mmcalib.visualization import ConfidenceView


class OneViewHook(Hook):
    """Keep the confidence map of one test image, shown as the network was given it.

    Args:
        index: The place of the image in the test set.
        max_size: A larger one is kept at about this many pixels a side.

    Attributes:
        view: Of the last test, on the main process; None of a classifier's.
    """

    priority = 'LOW'

    def __init__(self, index: int = 0, *, max_size: int = 256) -> None:
        self.index = check_integer('index', index, least=0)
        self.max_size = check_integer('max_size', max_size)
        self.view: ConfidenceView | None = None

    def before_test(self, runner: Runner) -> None:
        self.view, self._seen = None, 0
        self._metric = calibration_metrics(runner.test_evaluator, self)[0]

    def after_test_iter(
        self,
        runner: Runner,
        batch_idx: int,
        data_batch: dict | None = None,
        outputs: Sequence | None = None,
    ) -> None:
        rank, world_size = get_dist_info()
        for number, sample in enumerate(outputs):
            # mmengine's samplers interleave the ranks.
            place = self._seen * world_size + rank
            self._seen += 1
            if place == self.index and map_size(sample) is not None:
                self.view = view_of(
                    sample,
                    data_batch['inputs'][number],
                    self._metric.bins_of_last(len(outputs))[number],
                    place,
                    ignore_index=self._metric.ignore_index,
                    unnamed=f'image {place}',
                    max_size=self.max_size,
                    from_file=False,
                )

    def after_test_epoch(self, runner: Runner, metrics: dict | None = None) -> None:
        views = collect_results([self.view], get_dist_info()[1], device='cpu')
        if is_main_process():
            self.view = next((view for view in views if view is not None), None)
