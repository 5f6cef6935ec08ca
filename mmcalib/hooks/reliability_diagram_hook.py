"""A reliability diagram of every evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mmengine.dist import is_main_process
from mmengine.evaluator import Evaluator
from mmengine.registry import HOOKS
from mmengine.runner import EpochBasedTrainLoop, Runner

from mmcalib.checks import check_choice
from mmcalib.hooks.drawing_hook import (
    SPLIT_NAMES,
    DrawingHook,
    calibration_metrics,
    kept_statistics,
    tested_split,
)
from mmcalib.work_dir import experiment_name


@HOOKS.register_module()
class ReliabilityDiagramHook(DrawingHook):
    """Draw a reliability diagram after each evaluation that has a ``CalibrationMetric``.

    The figure goes to all backends of the run's visualizer, as ``reliability_diagram_test``, or as
    ``reliability_diagram_val`` with the epoch: with mmengine's ``LocalVisBackend`` it is a PNG
    under the work dir. Metrics of equal options share one; others have theirs under the name of
    their file. Only the main process draws. ``tools/visualize.py`` draws others of the same
    evaluation.

    Args:
        splits: Evaluations after which to draw: ``'val'``, ``'test'`` or both. An empty value turns
            the hook off.
        formats: ``'pdf'``, ``'svg'`` or ``'png'``, or several: also write the figures in these
            formats, to ``figures/`` beside the log.

    Raises:
        ValueError: If an option is outside its range.
    """

    def __init__(
        self,
        *,
        splits: str | Sequence[str] = tuple(SPLIT_NAMES),
        formats: str | Sequence[str] = (),
    ) -> None:
        super().__init__(formats)
        splits = (splits,) if isinstance(splits, str) else splits
        self.splits = [check_choice('splits', split, SPLIT_NAMES) for split in splits]

    def after_val_epoch(self, runner: Runner, metrics: dict | None = None) -> None:
        loop = runner._train_loop  # `runner.epoch` would load the training data for a mere test
        step = getattr(loop, 'epoch' if isinstance(loop, EpochBasedTrainLoop) else 'iter', 0)
        self._draw(runner, runner.val_evaluator, 'val', 'val', step)

    def after_test_epoch(self, runner: Runner, metrics: dict | None = None) -> None:
        self._draw(runner, runner.test_evaluator, 'test', tested_split(runner), 0)

    def _draw(self, runner: Runner, evaluator: Evaluator, loop: str, split: str, step: int) -> None:
        if loop not in self.splits or not is_main_process():
            return
        # matplotlib takes a while to import, and a training may never need it.
        from mmcalib.visualization import draw_reliability

        file = runner.cfg.filename
        run = experiment_name(file) if file else Path(runner.work_dir).resolve().name
        title = f'{run}, {SPLIT_NAMES[split]}'
        found = kept_statistics(calibration_metrics(evaluator, self))
        for number, (name, statistics) in enumerate(found.items()):
            if statistics.num_predictions:
                name = f'reliability_diagram_{split}' + f'_{name}' * bool(number)
                self.add_figure(runner, name, draw_reliability({title: statistics}), step)
