"""The base of hooks that draw: the network and the data in a figure."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mmengine.hooks import Hook
from mmengine.runner import BaseLoop, EpochBasedTrainLoop, Runner

from mmcalib.checks import check_choice
from mmcalib.metrics import CalibrationMetric, CalibrationStatistics

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SPLIT_NAMES = {'val': 'validation', 'test': 'test'}
# In a config: the split that its test is made on, where that is not the test split.
TESTED_SPLIT = 'tested_split'
FORMATS = ('pdf', 'svg', 'png')
DPI = 200  # of a PNG


class DrawingHook(Hook):
    """A hook that draws evaluations, after the numbers are logged.

    Args:
        formats: Of files beside the pixels that go to the visualizer: ``'pdf'`` and ``'svg'``,
            or ``'png'`` at a high resolution.

    Raises:
        ValueError: If a format is another.

    Attributes:
        off: What turns it off in our configs.
    """

    priority = 'LOW'
    off = ''

    def __init__(self, formats: Sequence[str] = ()) -> None:
        formats = (formats,) if isinstance(formats, str) else tuple(formats)
        self.formats = tuple(check_choice('formats', kind, FORMATS) for kind in formats)
        self._loaded_step: int | None = None

    def draws(self, loop: str) -> bool:
        """Return whether there is anything to draw of ``'val'`` or ``'test'``."""
        raise NotImplementedError

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        self._loaded_step = _step_of(checkpoint.get('meta') or {}, runner.cfg)

    def after_train(self, runner: Runner) -> None:
        self._loaded_step = None  # what it was resumed from

    def evaluated_step(self, runner: Runner, split: str) -> int:
        """Return the length of the training of the evaluated network, 0 where it is unknown.

        In epochs, or in iterations where a training has no epochs. A test is of the checkpoint
        that was loaded, else of the last weights; a validation is of those of the moment.
        """
        if split == 'test' and self._loaded_step is not None:
            return self._loaded_step
        # `runner.iter` would build the training loop, and load the training data, for a mere test.
        loop = runner._train_loop
        if not isinstance(loop, BaseLoop):
            return 0
        return loop.epoch if isinstance(loop, EpochBasedTrainLoop) else loop.iter

    def add_figure(self, runner: Runner, name: str, figure: Figure, step: int) -> None:
        """Give a figure to the visualizer, and write it in the other formats to ``figures/``."""
        from mmcalib.visualization import to_rgb

        runner.visualizer.add_image(name, to_rgb(figure), step)
        for kind in self.formats:
            path = Path(runner.log_dir, 'figures', f'{name}_{step}.{kind}')
            path.parent.mkdir(exist_ok=True)
            figure.savefig(path, dpi=DPI)


def _step_of(meta: dict, cfg: dict) -> int:
    schedule = cfg.get('train_cfg') or {}
    by_epoch = 'max_epochs' in schedule or schedule.get('by_epoch', 'max_iters' not in schedule)
    if by_epoch:
        return int(meta.get('epoch') or 0)
    iteration, interval = int(meta.get('iter') or 0), schedule.get('val_interval') or 1
    # After a validation mmengine writes one iteration too many into the best checkpoint.
    late = interval > 1 and iteration % interval == 1
    return iteration - late


def tested_split(runner: Runner) -> str:
    """Return the split that a test is made on."""
    return runner.cfg.get(TESTED_SPLIT, 'test')


def calibration_metrics(evaluator, hook: Hook) -> list[CalibrationMetric]:
    """Return the calibration metrics of an evaluator.

    Raises:
        ValueError: If there is none for the hook to draw.
    """
    metrics = [metric for metric in evaluator.metrics if isinstance(metric, CalibrationMetric)]
    if not metrics:
        names = ', '.join(type(metric).__name__ for metric in evaluator.metrics)
        off = getattr(hook, 'off', '')
        hint = f'; or turn the hook off, in our configs by default_hooks={off}' if off else ''
        raise ValueError(
            f'{type(hook).__name__} draws what a CalibrationMetric has measured: add one to the '
            f'evaluator, which has {names}{hint}'
        )
    return metrics


def kept_statistics(metrics: list[CalibrationMetric]) -> dict[str, CalibrationStatistics]:
    """Return the statistics of an evaluation by the names of their files, those alike as one.

    An ``ECE`` beside an ``AECE`` of the same options has the same predictions in the same bins: one
    file and one diagram say both. Other options have a file of their own, which is named after the
    first of them that tells it apart: ``calibration``, ``calibration_paper``,
    ``calibration_25_bins``.
    """
    named, by_options = {}, {}
    for metric in metrics:
        options = (
            *(metric.prefix, metric.protocol, metric.num_bins),
            *(metric.ignore_index, metric.boundary_width),
        )
        if options in by_options:
            by_options[options].complete(metric.statistics)
            continue
        protocol = f'_{metric.protocol}' if metric.protocol != 'pooled' else ''
        first = f'{metric.prefix}{protocol}'.replace('/', '_')
        tries = [first, f'{first}_{metric.num_bins}_bins']
        tries += [f'{first}_{number}' for number in range(2, len(metrics) + 2)]
        named[next(name for name in tries if name not in named)] = metric.statistics
        by_options[options] = metric.statistics
    return named
