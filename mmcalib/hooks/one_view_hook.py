"""Keeps the confidence map of one image of a segmentor's test."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mmengine.runner import Runner

from mmcalib.checks import check_integer
from mmcalib.hooks.confidence_map_hook import ConfidenceMapHook
from mmcalib.samples.reading import map_size

if TYPE_CHECKING:
    from mmcalib.visualization import ConfidenceView


class OneViewHook(ConfidenceMapHook):
    """Keep the confidence map of one test image, shown as the network was given it.

    Args:
        index: The place of the image in the test set.
        max_size: A larger one is kept at about this many pixels a side.

    Attributes:
        view: Of the last test, on the main process; None of a classifier's.
    """

    off = ''
    from_file = False

    def __init__(self, index: int = 0, *, max_size: int = 256) -> None:
        indices = [check_integer('index', index, least=0)]
        super().__init__(indices=indices, worst=0, max_images=1, max_size=max_size)
        self.view: ConfidenceView | None = None

    def before_test(self, runner: Runner) -> None:
        self.view = None
        super().before_test(runner)

    def after_test_iter(
        self,
        runner: Runner,
        batch_idx: int,
        data_batch: dict | None = None,
        outputs: Sequence | None = None,
    ) -> None:
        if map_size(outputs[0]) is not None:
            super().after_test_iter(runner, batch_idx, data_batch, outputs)

    def _add_figures(self, runner: Runner, views: list, worst: list) -> None:
        self.view = next(iter(views), None)
