"""The hooks that draw evaluations: reliability diagrams, and maps of confidence."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import cv2
import numpy as np
from mmengine import fileio
from mmengine.dist import collect_results, get_dist_info, is_main_process
from mmengine.evaluator import Evaluator
from mmengine.hooks import Hook
from mmengine.logging import print_log
from mmengine.registry import HOOKS
from mmengine.runner import BaseLoop, EpochBasedTrainLoop, Runner
from torch import Tensor

from mmcalib.errors import UserError
from mmcalib.files import MAPS, experiment_name, file_name_for_split
from mmcalib.metrics.calibration_errors import calibration_error
from mmcalib.openmmlab.ensembles.batch_views import upright_view
from mmcalib.openmmlab.metrics import CalibrationMetric
from mmcalib.openmmlab.metrics.kept_statistics import kept_statistics
from mmcalib.openmmlab.samples import Sample, read_sample, sample_name
from mmcalib.openmmlab.splits import SPLIT_NAMES, tested_split
from mmcalib.options import check_choices, check_integer

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from mmcalib.visualization import ConfidenceView


class DrawingHook(Hook):
    """Base of the hooks that draw evaluations, after the numbers are logged."""

    priority = 'LOW'

    def calibration_metrics(self, evaluator: Evaluator) -> list[CalibrationMetric]:
        """Return the calibration metrics of an evaluator; log that nothing is drawn without one."""
        metrics = [metric for metric in evaluator.metrics if isinstance(metric, CalibrationMetric)]
        if not metrics:
            print_log(
                f'{type(self).__name__} draws nothing: add a CalibrationMetric to the evaluator.',
                logger='current',
            )
        return metrics

    def add_figure(self, runner: Runner, name: str, figure: Figure, step: int = 0) -> None:
        """Give the pixels of a figure to the visualizer of a run."""
        from mmcalib.visualization import to_rgb

        runner.visualizer.add_image(name, to_rgb(figure), step)


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


@HOOKS.register_module()
class ConfidenceMapHook(DrawingHook):
    """Hook that draws confidence maps of some test images of mmseg, and of the worst calibrated.

    Each figure has the image, its ground truth, prediction, confidence and errors, and a small
    reliability diagram with the calibration error of this image alone; one more figure has the
    images of the largest calibration error of the set. They go to all backends of the run's
    visualizer, as ``confidence_map_<index>`` and ``confidence_map_worst``, at the end of the test,
    from the main process. The drawn images are kept as ``confidence_maps.npz`` in the work dir
    (``confidence_maps_val.npz`` of a test on the validation split), for ``tools/visualize.py``,
    which also puts several runs side by side.

    The calibration error of each image is that of the run's first ``CalibrationMetric``. Beside it
    little is computed, and only for the images that are kept, of which there are never more than
    ``max_images + worst`` on a process. With ``interval=0`` and ``worst=0`` the hook is off.

    Args:
        interval: Distance of the drawn images in the test set; 0 for none.
        indices: Indices of test images to draw, instead of every n-th.
        worst: Number of images in the gallery of the worst; 0 for none.
        max_images: Largest number of images to draw; the first ones are drawn.
        max_size: Approximate largest side of a drawn image, in pixels. Rows and columns of larger
            images are left out.

    Raises:
        TypeError: If an option is no integer.
        ValueError: If one is outside its range; while testing, for a classifier.
    """

    def __init__(
        self,
        *,
        interval: int = 100,
        indices: Sequence[int] | None = None,
        worst: int = 4,
        max_images: int = 16,
        max_size: int = 512,
    ) -> None:
        self.interval = check_integer('interval', interval, least=0)
        self.indices = indices
        self.worst = check_integer('worst', worst, least=0)
        self.max_images = check_integer('max_images', max_images, least=0)
        self.max_size = check_integer('max_size', max_size)

    def before_test(self, runner: Runner) -> None:
        self._num_images = len(runner.test_dataloader.dataset)
        self._num_seen = 0
        self._chosen = self._chosen_indices()
        self._metric = None
        if self._chosen or self.worst:
            metrics = self.calibration_metrics(runner.test_evaluator)
            self._metric = metrics[0] if metrics else None
        self._split_name = SPLIT_NAMES[tested_split(runner)]
        self._views: list[ConfidenceView] = []
        self._worst: list[ConfidenceView] = []

    def after_test_iter(
        self, runner: Runner, batch_idx: int, data_batch=None, outputs: Sequence[Sample] = ()
    ) -> None:
        if self._metric is None:
            return
        from mmcalib.visualization.confidence_maps import worst_views

        if 'seg_logits' not in outputs[0]:
            raise UserError('ConfidenceMapHook draws maps of segmentors, and this is a classifier')
        inputs = upright_view(data_batch)['inputs']
        rank, world_size = get_dist_info()
        counts = self._metric.results[-len(outputs) :]  # The metric has just read these samples.
        for sample, pixels, image_counts in zip(outputs, inputs, counts, strict=True):
            # mmengine's samplers interleave the ranks, and repeat images at the end.
            index = self._num_seen * world_size + rank
            self._num_seen += 1
            is_chosen = index in self._chosen
            is_bad = self._is_among_worst(image_counts.bins)
            if index >= self._num_images or not (is_chosen or is_bad):
                continue
            view = self._view(sample, pixels, image_counts.bins, index)
            if is_chosen:
                self._views.append(view)
            if is_bad:
                self._worst = worst_views([*self._worst, view], self.worst)

    def after_test_epoch(self, runner: Runner, metrics: dict | None = None) -> None:
        if self._metric is None:
            return
        from mmcalib.visualization.confidence_maps import worst_views

        world_size = get_dist_info()[1]
        parts = collect_results([(self._views, self._worst)], world_size, device='cpu')
        self._views = []
        self._worst = []
        if is_main_process():
            views = [view for chosen, _ in parts for view in chosen]
            candidates = [view for _, worst in parts for view in worst]
            views.sort(key=lambda view: view.index)
            self._draw(runner, views, worst_views(candidates, self.worst))

    def _chosen_indices(self) -> set[int]:
        """Return the indices of the images to draw."""
        if self.indices is not None:
            indices = sorted(set(self.indices).intersection(range(self._num_images)))
        elif self.interval:
            indices = range(0, self._num_images, self.interval)
        else:
            indices = []
        return set(indices[: self.max_images])

    def _is_among_worst(self, bins: Tensor) -> bool:
        """Return whether the calibration error of an image is among the largest so far."""
        if not self.worst:
            return False
        error = calibration_error(bins)
        if len(self._worst) < self.worst:
            return not error.isnan()  # An image without a valid pixel has no error.
        return bool(error > self._worst[-1].error)

    def _view(self, sample: Sample, inputs: Tensor, bins: Tensor, index: int) -> ConfidenceView:
        """Return an image and its predictions, with about `max_size` pixels per side at most."""
        from mmcalib.visualization.confidence_maps import make_view

        ignore_index = self._metric.ignore_index
        name = sample_name(sample, index)
        predictions = read_sample(sample, name, ignore_index=ignore_index)
        path = sample.get('img_path')
        return make_view(
            predictions,
            read_pixels(path, inputs, tuple(predictions.predicted.shape[1:])),
            bins,
            index=index,
            name=Path(path).name if path else f'{self._split_name} image {index}',
            ignore_index=ignore_index,
            max_size=self.max_size,
        )

    def _draw(
        self, runner: Runner, views: list[ConfidenceView], worst: list[ConfidenceView]
    ) -> None:
        """Save what the figures are drawn from, and draw them."""
        from mmcalib.visualization import ConfidenceMaps, draw_confidence_maps

        meta = runner.test_dataloader.dataset.metainfo
        classes = list(meta['classes'])
        palette = meta.get('palette')
        file = file_name_for_split(MAPS, tested_split(runner))
        ConfidenceMaps(views, worst, classes, palette).save(Path(runner.work_dir, file))
        for view in views:
            maps = ConfidenceMaps([view], [], classes, palette)
            self.add_figure(
                runner, f'confidence_map_{view.index}', draw_confidence_maps({'': maps})
            )
        if worst:
            title = (
                f'The {len(worst)} worst-calibrated of {self._num_images:,} {self._split_name} '
                'images'
            )
            maps = ConfidenceMaps([], worst, classes, palette)
            figure = draw_confidence_maps({title: maps}, worst=True)
            self.add_figure(runner, 'confidence_map_worst', figure)


def read_pixels(path: str | None, inputs: Tensor, size: tuple[int, int]) -> np.ndarray:
    """Return the RGB pixels of an image from its file, or else from ``(C, H, W)`` inputs."""
    from mmcalib.visualization.pixels import as_rgb

    if path and fileio.exists(path):
        image = cv2.imdecode(np.frombuffer(fileio.get(path), np.uint8), cv2.IMREAD_COLOR)
        # An image that was evaluated at another size, as under padding, would not fit its labels.
        if image is not None and image.shape[:2] == size:
            return as_rgb(image)
    return as_rgb(inputs.cpu().numpy().transpose(1, 2, 0))
