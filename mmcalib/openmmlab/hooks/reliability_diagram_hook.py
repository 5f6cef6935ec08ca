"""The hook that draws reliability diagrams."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mmengine.dist import is_main_process
from mmengine.registry import HOOKS
from mmengine.runner import BaseLoop, EpochBasedTrainLoop, Runner

from mmcalib.files import experiment_name
from mmcalib.openmmlab.hooks.drawing_hook import DrawingHook
from mmcalib.openmmlab.metrics.kept_statistics import kept_statistics
from mmcalib.openmmlab.splits import SPLIT_NAMES, tested_split
from mmcalib.options import check_choices


@HOOKS.register_module()
class ReliabilityDiagramHook(DrawingHook):
    """Hook that draws a reliability diagram after each evaluation that has a ``CalibrationMetric``.

    The figure goes to all backends of the run's visualizer, as ``reliability_diagram_test``, or as
    ``reliability_diagram_val`` with the epoch: with mmengine's ``LocalVisBackend`` it is a PNG
    under the work dir. Metrics of equal options share one; others have theirs under the name of
    their file. Only the main process draws. ``tools/visualize.py`` draws others of the same
    evaluation, also as PDF or SVG.

    Args:
        splits: Evaluations after which to draw: ``'val'``, ``'test'`` or both. An empty value turns
            the hook off.

    Raises:
        ValueError: If an option is outside its range.
    """

    def __init__(self, *, splits: str | Sequence[str] = tuple(SPLIT_NAMES)) -> None:
        self.splits = check_choices('splits', splits, SPLIT_NAMES) if splits else ()

    def after_val_epoch(self, runner: Runner, metrics: dict | None = None) -> None:
        loop = runner._train_loop  # `runner.epoch` would load the training data for a mere test
        unit = 'epoch' if isinstance(loop, EpochBasedTrainLoop) else 'iter'
        if 'val' in self.splits:
            self._draw(runner, runner.val_loop, 'val', getattr(loop, unit, 0))

    def after_test_epoch(self, runner: Runner, metrics: dict | None = None) -> None:
        if 'test' in self.splits:
            self._draw(runner, runner.test_loop, tested_split(runner), 0)

    def _draw(self, runner: Runner, loop: BaseLoop, split: str, step: int) -> None:
        """Draw the diagrams of an evaluation, none of figures that are of a part of the split."""
        if not is_main_process():
            return
        # matplotlib takes a while to import, and a training may never need it.
        from mmcalib.visualization import draw_reliability

        config_file = runner.cfg.filename
        if config_file:
            run_name = experiment_name(config_file)
        else:
            run_name = Path(runner.work_dir).resolve().name
        title = f'{run_name}, {SPLIT_NAMES[split]}'
        metrics = self.calibration_metrics(loop.evaluator)
        statistics_by_name = kept_statistics(metrics, len(loop.dataloader.dataset))
        for index, (name, statistics) in enumerate(statistics_by_name.items()):
            if not statistics.num_predictions:
                continue
            figure_name = f'reliability_diagram_{split}'
            if index > 0:
                figure_name += f'_{name}'
            self.add_figure(runner, figure_name, draw_reliability({title: statistics}), step)
