"""A reliability diagram of every evaluation."""

from __future__ import annotations

import logging
from pathlib import Path

from mmengine.dist import is_main_process
from mmengine.hooks import Hook
from mmengine.logging import print_log
from mmengine.registry import HOOKS
from mmengine.runner import BaseLoop, EpochBasedTrainLoop, Runner

from mmcalib.metrics import CalibrationMetric

SPLITS = ('val', 'test')


@HOOKS.register_module()
class ReliabilityDiagramHook(Hook):
    """Draw a reliability diagram after each evaluation.

    The figure goes to all backends of the run's visualizer, as ``reliability_diagram_test`` or
    ``reliability_diagram_val``: with mmengine's ``LocalVisBackend`` it is a PNG under the work dir.
    Only the main process draws.

    Args:
        num_bins: B of the diagram; the metric's own number if None. The paper draws 25.
        equal_mass: Bins of equal count in place of equal width.
        zoom: The part of both axes, in percent, to enlarge in an inset.
        splits: After which evaluations: ``'val'``, ``'test'`` or both; none turns the hook off.
        name: Heads the figure; the config's file and its folder, such as ``mbls/digits``, if None.

    Raises:
        ValueError: If an option is outside its range; before an evaluation, if its evaluator has
            no ``CalibrationMetric``.
    """

    # After the numbers are logged.
    priority = 'LOW'

    def __init__(
        self,
        *,
        num_bins: int | None = None,
        equal_mass: bool = False,
        zoom: tuple[float, float] | None = None,
        splits: tuple[str, ...] = SPLITS,
        name: str | None = None,
    ) -> None:
        splits = (splits,) if isinstance(splits, str) else tuple(splits)
        if not set(splits) <= set(SPLITS):
            raise ValueError(f'splits must be some of {SPLITS}, got {splits}')
        if num_bins is not None and (not isinstance(num_bins, int) or num_bins < 1):
            raise ValueError(f'num_bins must be an integer of at least 1, got {num_bins!r}')
        if zoom is not None and not (len(zoom) == 2 and 0 <= zoom[0] < zoom[1] <= 100):
            raise ValueError(f'zoom must be an interval in percent, such as (80, 100); got {zoom}')
        self.num_bins = num_bins
        self.equal_mass = equal_mass
        self.zoom = zoom
        self.splits = splits
        self.name = name

    def before_val(self, runner: Runner) -> None:
        if 'val' in self.splits:
            self._keep_statistics(runner.val_evaluator)

    def before_test(self, runner: Runner) -> None:
        if 'test' in self.splits:
            self._keep_statistics(runner.test_evaluator)

    def after_val_epoch(self, runner: Runner, metrics: dict | None = None) -> None:
        if 'val' in self.splits and is_main_process():
            self._draw(runner, runner.val_evaluator, 'val')

    def after_test_epoch(self, runner: Runner, metrics: dict | None = None) -> None:
        if 'test' in self.splits and is_main_process():
            self._draw(runner, runner.test_evaluator, 'test')

    def _keep_statistics(self, evaluator) -> None:
        for metric in calibration_metrics(evaluator, self):
            metric.keep_statistics = True

    def _draw(self, runner: Runner, evaluator, split: str) -> None:
        # matplotlib takes a while to import, and a training may never need it.
        from mmcalib.visualization import draw_reliability, reliability_of, to_rgb

        name = self.name or _experiment(runner)
        for number, metric in enumerate(calibration_metrics(evaluator, self)):
            statistics = metric.statistics
            if not statistics.num_predictions:
                print_log(
                    f'{type(self).__name__}: nothing was evaluated, so there is no diagram',
                    logger='current',
                    level=logging.WARNING,
                )
                continue
            # mmengine's local backend takes a slash for a folder, and drops the image.
            suffix = f'_{metric.prefix}'.replace('/', '_') if number else ''
            diagram = reliability_of(
                statistics, name, num_bins=self.num_bins, equal_mass=self.equal_mass
            )
            runner.visualizer.add_image(
                f'reliability_diagram_{split}{suffix}',
                to_rgb(draw_reliability([diagram], zoom=self.zoom)),
                current_step(runner),
            )


def current_step(runner: Runner) -> int:
    """Return the epoch, or the iteration of a run without epochs; 0 where nothing is trained."""
    # `runner.iter` would build the training loop, and load the training data, for a mere test.
    loop = runner._train_loop
    if not isinstance(loop, BaseLoop):
        return 0
    return loop.epoch if isinstance(loop, EpochBasedTrainLoop) else loop.iter


def calibration_metrics(evaluator, hook: Hook) -> list[CalibrationMetric]:
    """Return the calibration metrics of an evaluator.

    Raises:
        ValueError: If there is none for the hook to draw.
    """
    metrics = [metric for metric in evaluator.metrics if isinstance(metric, CalibrationMetric)]
    if not metrics:
        names = ', '.join(type(metric).__name__ for metric in evaluator.metrics)
        raise ValueError(
            f'{type(hook).__name__} draws what a CalibrationMetric has measured: add one to the '
            f'evaluator, which has {names}; or turn the hook off, in our configs by '
            'default_hooks=dict(reliability_diagram=dict(splits=[]), '
            'confidence_map=dict(interval=0, worst=0))'
        )
    return metrics


def _experiment(runner: Runner) -> str:
    """Return ``mbls/digits`` of ``configs/mbls/digits.py``, the work dir's name of no file."""
    path = Path(runner.cfg.filename or runner.work_dir).resolve()
    return f'{path.parent.name}/{path.stem}' if runner.cfg.filename else path.name
