"""Confidence maps of a segmentor's test images, and of the worst calibrated ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import cv2
import numpy as np
from mmengine import fileio
from mmengine.dist import collect_results, get_dist_info, is_main_process
from mmengine.registry import HOOKS
from mmengine.runner import Runner
from torch import Tensor

from mmcalib.checks import UserError, check_integer
from mmcalib.ensembles.batch_views import upright_view
from mmcalib.hooks.drawing_hook import SPLIT_NAMES, DrawingHook, calibration_metrics, tested_split
from mmcalib.metrics.errors import calibration_error
from mmcalib.samples.reading import Sample, map_size, read_map
from mmcalib.work_dir import MAPS, of_split

if TYPE_CHECKING:
    from mmcalib.visualization import ConfidenceView


@HOOKS.register_module()
class ConfidenceMapHook(DrawingHook):
    """Draw confidence maps of test images of an mmseg run, and of the worst calibrated ones.

    Each figure has the image, its ground truth, prediction, confidence and errors, and a small
    reliability diagram with the calibration error of this image alone; one more figure has the
    images of the largest calibration error of the set. They go to all backends of the run's
    visualizer, as ``confidence_map_<index>`` and ``confidence_map_worst``, at the end of the test,
    from the main process. What they were drawn from stays as ``confidence_maps.npz`` in the work
    dir (``confidence_maps_val.npz`` of a test on the validation split), for
    ``tools/visualize.py``, which also puts several runs side by side.

    The calibration error of each image is that of the run's first ``CalibrationMetric``. Beside it
    little is computed, and only for the images that are kept, of which there are never more than
    ``max_images + worst`` on a process. With ``interval=0`` and ``worst=0`` the hook is off.

    Args:
        interval: Every n-th image of the test set; 0 for none.
        indices: Indices of test images to draw, instead of every n-th.
        worst: Number of images in the gallery of the worst; 0 for none.
        max_images: Largest number of images to draw; the first ones are drawn.
        max_size: Larger images are drawn at about this many pixels per side, by leaving out rows
            and columns.
        formats: ``'pdf'``, ``'svg'`` or ``'png'``, or several: also write the figures in these
            formats, to ``figures/`` beside the log.

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
        formats: str | Sequence[str] = (),
    ) -> None:
        super().__init__(formats)
        self.interval = check_integer('interval', interval, least=0)
        self.indices = None if indices is None else frozenset(indices)
        self.worst = check_integer('worst', worst, least=0)
        self.max_images = check_integer('max_images', max_images, least=0)
        self.max_size = check_integer('max_size', max_size)

    def before_test(self, runner: Runner) -> None:
        chosen = self.max_images and (self.interval or self.indices)
        metrics = calibration_metrics(runner.test_evaluator, self) if self.worst or chosen else []
        self._metric = metrics[0] if metrics else None
        self._data = SPLIT_NAMES[tested_split(runner)]
        self._size, self._seen = len(runner.test_dataloader.dataset), 0
        self._views: list[ConfidenceView] = []
        self._worst: list[ConfidenceView] = []

    def after_test_iter(
        self, runner: Runner, batch_idx: int, data_batch=None, outputs: Sequence = ()
    ) -> None:
        if self._metric is None:
            return
        if map_size(outputs[0]) is None:
            raise UserError('ConfidenceMapHook draws maps of segmentors, and this is a classifier')
        inputs = upright_view(data_batch)['inputs']
        rank, world_size = get_dist_info()
        # The metric has just read these.
        counts = self._metric.results[-len(outputs) :]
        for number, (sample, counted) in enumerate(zip(outputs, counts, strict=True)):
            # mmengine's samplers interleave the ranks, and repeat images at the end.
            index = self._seen * world_size + rank
            self._seen += 1
            due, bad = self._is_due(index), self._is_bad(counted.bins)
            if index < self._size and (due or bad):
                view = self._view(sample, inputs[number], counted.bins, index)
                if due:
                    self._views.append(view)
                if bad:
                    self._worst = _worst([*self._worst, view], self.worst)

    def after_test_epoch(self, runner: Runner, metrics: dict | None = None) -> None:
        if self._metric is None:
            return
        parts = collect_results([(self._views, self._worst)], get_dist_info()[1], device='cpu')
        self._views, self._worst = [], []
        if is_main_process():
            views = [view for chosen, _ in parts for view in chosen]
            views = sorted(views, key=lambda view: view.index)[: self.max_images]
            worst = _worst([view for _, bad in parts for view in bad], self.worst)
            self._add_figures(runner, views, worst)

    def _is_due(self, index: int) -> bool:
        if len(self._views) >= self.max_images:
            return False
        if self.indices is not None:
            return index in self.indices
        return self.interval > 0 and index % self.interval == 0

    def _is_bad(self, bins: Tensor) -> bool:
        """Return whether an image is among the worst until now."""
        if not self.worst or bins[0].sum() == 0:
            return False
        return len(self._worst) < self.worst or (calibration_error(bins) > self._worst[-1].error)

    def _view(self, sample: Sample, inputs: Tensor, bins: Tensor, index: int) -> ConfidenceView:
        """Return an image with what was predicted of it, at most about `max_size` a side."""
        from mmcalib.visualization import ConfidenceView

        size = map_size(sample)
        conf, predicted, label = read_map(sample, step=-(-max(size) // self.max_size))
        path = sample.get('img_path')
        return ConfidenceView(
            index=index,
            name=Path(path).name if path else f'{self._data} image {index}',
            image=cv2.resize(
                image_of(path, inputs, size), label.shape[::-1],
                interpolation=cv2.INTER_AREA,
            ),
            label=label.numpy().astype(np.int16),
            predicted=predicted.numpy().astype(np.int16),
            conf=conf.numpy().astype(np.float16),
            valid=(label != self._metric.ignore_index).numpy(),
            table=bins.numpy().copy(),
        )  # fmt: skip

    def _add_figures(self, runner: Runner, views: list, worst: list) -> None:
        from mmcalib.visualization import ConfidenceMaps, draw_confidence_maps

        meta: Mapping = runner.test_dataloader.dataset.metainfo
        style = dict(classes=list(meta['classes']), palette=meta.get('palette'))
        file = of_split(MAPS, tested_split(runner))
        ConfidenceMaps(views, worst, **style).save(Path(runner.work_dir, file))
        figures = [(f'confidence_map_{view.index}', [view], '') for view in views]
        if worst:
            title = f'The {len(worst)} worst-calibrated of {self._size:,} {self._data} images'
            figures.append(('confidence_map_worst', worst, title))
        for name, rows, title in figures:
            figure = draw_confidence_maps(rows, **style, title=title, diagrams=not title)
            self.add_figure(runner, name, figure)


def _worst(views: list[ConfidenceView], count: int) -> list[ConfidenceView]:
    return sorted(views, key=lambda view: (-view.error, view.index))[:count]


def image_of(path: str | None, inputs: Tensor, size: tuple[int, int]) -> np.ndarray:
    """Return the RGB pixels of an image from its file, or from ``(C, H, W)`` inputs."""
    from mmcalib.visualization.style import as_rgb

    image = None
    if path and fileio.exists(path):
        image = cv2.imdecode(np.frombuffer(fileio.get(path), np.uint8), cv2.IMREAD_COLOR)
    # Evaluated at another size, as under padding, the file would not lie under its labels.
    fits = image is not None and image.shape[:2] == size
    return as_rgb(image if fits else inputs.cpu().numpy().transpose(1, 2, 0))
