"""A reliability diagram of every evaluation."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from mmengine.dist import is_main_process
from mmengine.logging import print_log
from mmengine.registry import HOOKS
from mmengine.runner import Runner

from mmcalib.checks import check_integer
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
    """Draw a reliability diagram after each evaluation.

    The figure goes to all backends of the run's visualizer, as ``reliability_diagram_test`` or
    ``reliability_diagram_val`` after the data it shows, and with the epoch of the network it shows:
    with mmengine's ``LocalVisBackend`` it is a PNG under the work dir. Metrics of equal options
    share one; others have theirs under the name of their file. Only the main process draws.

    Args:
        num_bins: Number of bins of the diagram; that of the metric if None. The paper uses 25.
        equal_mass: Bins of equal count instead of equal width.
        zoom: The part of both axes, in percent, to enlarge in an inset.
        risk_coverage: Draw the risk–coverage curve too, as ``risk_coverage_test`` and so on.
        boundary_curve: Draw ECE against the distance from the nearest boundary too, as
            ``boundary_curve_test`` and so on, of metrics with ``per_distance=True``.
        splits: Evaluations after which to draw: ``'val'``, ``'test'`` or both. An empty value turns
            the hook off.
        name: Title of the figure; if None, the name of the experiment, such as ``mbls/digits``.
        formats: ``'pdf'``, ``'svg'`` or ``'png'``, or several: also write the figures in these
            formats, to ``figures/`` beside the log.

    Raises:
        TypeError: If `num_bins` is no integer.
        ValueError: If an option is outside its range; before an evaluation, if its evaluator has
            no ``CalibrationMetric``, or `boundary_curve` none with ``per_distance=True``.
    """

    off = 'dict(reliability_diagram=dict(splits=[]))'

    def __init__(
        self,
        *,
        num_bins: int | None = None,
        equal_mass: bool = False,
        zoom: tuple[float, float] | None = None,
        risk_coverage: bool = False,
        boundary_curve: bool = False,
        splits: tuple[str, ...] = tuple(SPLIT_NAMES),
        name: str | None = None,
        formats: Sequence[str] = (),
    ) -> None:
        super().__init__(formats)
        splits = (splits,) if isinstance(splits, str) else tuple(splits)
        if not set(splits) <= set(SPLIT_NAMES):
            raise ValueError(f'splits must be some of {tuple(SPLIT_NAMES)}, got {splits}')
        if num_bins is not None:
            check_integer('num_bins', num_bins)
        if zoom is not None and not (len(zoom) == 2 and 0 <= zoom[0] < zoom[1] <= 100):
            raise ValueError(f'zoom must be an interval in percent, such as (80, 100); got {zoom}')
        self.num_bins = num_bins
        self.equal_mass = equal_mass
        self.zoom = zoom
        self.risk_coverage = risk_coverage
        self.boundary_curve = boundary_curve
        self.splits = splits
        self.name = name

    def draws(self, loop: str) -> bool:
        return loop in self.splits

    def before_val(self, runner: Runner) -> None:
        if self.draws('val'):
            self._check_evaluator(runner.val_evaluator)

    def before_test(self, runner: Runner) -> None:
        if self.draws('test'):
            self._check_evaluator(runner.test_evaluator)

    def after_val_epoch(self, runner: Runner, metrics: dict | None = None) -> None:
        if self.draws('val') and is_main_process():
            self._add_diagrams(runner, runner.val_evaluator, 'val')

    def after_test_epoch(self, runner: Runner, metrics: dict | None = None) -> None:
        if self.draws('test') and is_main_process():
            self._add_diagrams(runner, runner.test_evaluator, 'test')

    def _check_evaluator(self, evaluator) -> None:
        metrics = calibration_metrics(evaluator, self)
        if self.boundary_curve and not any(metric.per_distance for metric in metrics):
            raise ValueError(
                f'{type(self).__name__}(boundary_curve=True) draws what a CalibrationMetric with '
                'per_distance=True has measured, and the evaluator has none: give it that option'
            )

    def _add_diagrams(self, runner: Runner, evaluator, loop: str) -> None:
        # matplotlib takes a while to import, and a training may never need it.
        from mmcalib.visualization import (
            boundary_curve_of,
            draw_boundary_curves,
            draw_reliability,
            draw_risk_coverage,
            reliability_of,
            risk_coverage_of,
        )

        split = 'val' if loop == 'val' else tested_split(runner)
        heading = f'{self.name or _experiment(runner)}, {SPLIT_NAMES[split]}'
        first = True
        for name, statistics in kept_statistics(calibration_metrics(evaluator, self)).items():
            if not statistics.num_predictions:
                print_log(
                    f'{type(self).__name__}: nothing was evaluated, so there is no diagram',
                    logger='current',
                    level=logging.WARNING,
                )
                continue
            diagram = reliability_of(
                statistics, heading, num_bins=self.num_bins, equal_mass=self.equal_mass
            )
            suffix = '' if first else f'_{name}'
            figures = {'reliability_diagram': draw_reliability([diagram], zoom=self.zoom)}
            if self.risk_coverage:
                curve = risk_coverage_of(statistics, heading)
                figures['risk_coverage'] = draw_risk_coverage([curve])
            if self.boundary_curve and statistics.distance_bins is not None:
                curve = boundary_curve_of(statistics, heading)
                figures['boundary_curve'] = draw_boundary_curves([curve])
            for kind, figure in figures.items():
                step = self.evaluated_step(runner, loop)
                self.add_figure(runner, f'{kind}_{split}{suffix}', figure, step)
            first = False


def _experiment(runner: Runner) -> str:
    """Return the name of the experiment, that of the work dir if the config is of no file."""
    if runner.cfg.filename:
        return experiment_name(runner.cfg.filename)
    return Path(runner.work_dir).resolve().name
