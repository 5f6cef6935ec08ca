"""Hooks that draw evaluations: a reliability diagram, and confidence maps of images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import cv2
import numpy as np
import torch
from mmengine import fileio
from mmengine.dist import collect_results, get_dist_info, is_main_process
from mmengine.evaluator import Evaluator
from mmengine.hooks import Hook
from mmengine.logging import print_log
from mmengine.registry import HOOKS
from mmengine.runner import EpochBasedTrainLoop, Runner
from torch import Tensor

from mmcalib.errors import UserError
from mmcalib.files import MAPS, experiment_name, of_split
from mmcalib.metrics import CalibrationStatistics
from mmcalib.metrics.calibration_errors import calibration_error
from mmcalib.openmmlab.ensembles.batch_views import upright_view
from mmcalib.openmmlab.metrics import CalibrationMetric
from mmcalib.openmmlab.samples import Sample, read_samples, sample_name
from mmcalib.options import check_choices, check_integer
from mmcalib.predictions.image_predictions import ImagePredictions
from mmcalib.predictions.objects import map_confidence

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from mmcalib.visualization import ConfidenceView

SPLIT_NAMES = {'val': 'validation', 'test': 'test'}
# In a config: the split that its test is made on, where that is not the test split.
TESTED_SPLIT = 'tested_split'


class DrawingHook(Hook):
    """A hook that draws evaluations, after the numbers are logged."""

    priority = 'LOW'

    def metrics_of(self, evaluator: Evaluator) -> list[CalibrationMetric]:
        """Return the calibration metrics of an evaluator; without one the log says so."""
        metrics = [metric for metric in evaluator.metrics if isinstance(metric, CalibrationMetric)]
        if not metrics:
            said = 'draws nothing, since no CalibrationMetric has measured it'
            print_log(f'{type(self).__name__} {said}', logger='current')
        return metrics

    def add_figure(self, runner: Runner, name: str, figure: Figure, step: int = 0) -> None:
        """Give the pixels of a figure to the visualizer."""
        from mmcalib.visualization import to_rgb

        runner.visualizer.add_image(name, to_rgb(figure), step)


@HOOKS.register_module()
class ReliabilityDiagramHook(DrawingHook):
    """Draw a reliability diagram after each evaluation that has a ``CalibrationMetric``.

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
        step = getattr(loop, 'epoch' if isinstance(loop, EpochBasedTrainLoop) else 'iter', 0)
        if 'val' in self.splits:
            self._draw(runner, runner.val_evaluator, 'val', step)

    def after_test_epoch(self, runner: Runner, metrics: dict | None = None) -> None:
        if 'test' in self.splits:
            self._draw(runner, runner.test_evaluator, tested_split(runner), 0)

    def _draw(self, runner: Runner, evaluator: Evaluator, split: str, step: int) -> None:
        if not is_main_process():
            return
        # matplotlib takes a while to import, and a training may never need it.
        from mmcalib.visualization import draw_reliability

        file = runner.cfg.filename
        run = experiment_name(file) if file else Path(runner.work_dir).resolve().name
        title = f'{run}, {SPLIT_NAMES[split]}'
        found = kept_statistics(self.metrics_of(evaluator))
        for number, (name, statistics) in enumerate(found.items()):
            if statistics.num_predictions:
                name = f'reliability_diagram_{split}' + f'_{name}' * bool(number)
                self.add_figure(runner, name, draw_reliability({title: statistics}), step)


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
        self._size, self._seen = len(runner.test_dataloader.dataset), 0
        places = range(0, self._size, self.interval) if self.interval else ()
        if self.indices is not None:
            places = sorted(set(self.indices).intersection(range(self._size)))
        self._due = set(places[: self.max_images])
        on = self._due or self.worst
        self._metric = next(iter(self.metrics_of(runner.test_evaluator) if on else ()), None)
        self._data = SPLIT_NAMES[tested_split(runner)]
        self._views: list[ConfidenceView] = []
        self._worst: list[ConfidenceView] = []

    def after_test_iter(
        self, runner: Runner, batch_idx: int, data_batch=None, outputs: Sequence = ()
    ) -> None:
        if self._metric is None:
            return
        if 'seg_logits' not in outputs[0]:
            raise UserError('ConfidenceMapHook draws maps of segmentors, and this is a classifier')
        inputs = upright_view(data_batch)['inputs']
        rank, world_size = get_dist_info()
        # The metric has just read these.
        counts = self._metric.results[-len(outputs) :]
        for sample, image, counted in zip(outputs, inputs, counts, strict=True):
            # mmengine's samplers interleave the ranks, and repeat images at the end.
            index = self._seen * world_size + rank
            self._seen += 1
            least = self._worst[-1].error if len(self._worst) == self.worst > 0 else -1.0
            # Of an image without a valid pixel it is NaN, which is above nothing.
            bad = self.worst and calibration_error(counted.bins) > least
            if index < self._size and (bad or index in self._due):
                view = self._view(sample, image, counted.bins, index)
                self._views += [view] * (index in self._due)
                self._worst = _worst([*self._worst, view], self.worst) if bad else self._worst

    def after_test_epoch(self, runner: Runner, metrics: dict | None = None) -> None:
        if self._metric is None:
            return
        parts = collect_results([(self._views, self._worst)], get_dist_info()[1], device='cpu')
        self._views, self._worst = [], []
        if is_main_process():
            views = [view for chosen, _ in parts for view in chosen]
            worst = _worst([view for _, bad in parts for view in bad], self.worst)
            self._add_figures(runner, sorted(views, key=lambda view: view.index), worst)

    def _view(self, sample: Sample, inputs: Tensor, bins: Tensor, index: int) -> ConfidenceView:
        """Return an image with what was predicted of it, at most about `max_size` a side."""
        from mmcalib.visualization import ConfidenceView

        ignore_index = self._metric.ignore_index
        (predictions,) = read_samples(
            [sample], [sample_name(sample, index)], ignore_index=ignore_index
        )
        size = tuple(predictions.predicted.shape[1:])
        shown = every_nth_pixel(predictions, -(-max(size) // self.max_size))
        label = shown.labels[0].masked_fill(~shown.valid[0], ignore_index)
        path = sample.get('img_path')
        image = image_of(path, inputs, size)
        return ConfidenceView(
            index=index,
            name=Path(path).name if path else f'{self._data} image {index}',
            image=cv2.resize(image, label.shape[::-1], interpolation=cv2.INTER_AREA),
            label=label.numpy().astype(np.int16),
            predicted=shown.predicted[0].numpy().astype(np.int16),
            conf=map_confidence(shown).numpy().astype(np.float16),
            valid=shown.valid[0].numpy(),
            table=bins.numpy().copy(),
        )

    def _add_figures(self, runner: Runner, views: list, worst: list) -> None:
        from mmcalib.visualization import ConfidenceMaps, draw_confidence_maps

        meta = runner.test_dataloader.dataset.metainfo
        style = dict(classes=list(meta['classes']), palette=meta.get('palette'))
        file = of_split(MAPS, tested_split(runner))
        ConfidenceMaps(views, worst, **style).save(Path(runner.work_dir, file))
        figures = [(f'confidence_map_{view.index}', [view], '') for view in views]
        if worst:
            title = f'The {len(worst)} worst-calibrated of {self._size:,} {self._data} images'
            figures.append(('confidence_map_worst', worst, title))
        for name, rows, title in figures:
            maps = {title: ConfidenceMaps(rows, rows, **style)}
            self.add_figure(runner, name, draw_confidence_maps(maps, worst=bool(title)))


def every_nth_pixel(predictions: ImagePredictions, step: int) -> ImagePredictions:
    """Return every `step`-th pixel of every `step`-th line of one map, on the CPU.

    Nothing of the size of the map is computed or kept on its device.
    """
    # One class after the other, since a strided map is copied on its device before it leaves it.
    planes = [plane[::step, ::step].cpu() for plane in predictions.scores[0]]
    scores = torch.stack(planes)[None]
    return replace(
        predictions,
        probs=None if predictions.probs is None else scores,
        logits=scores if predictions.probs is None else None,
        predicted=predictions.predicted[:, ::step, ::step].cpu(),
        labels=predictions.labels[:, ::step, ::step].cpu(),
    )


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


def tested_split(runner: Runner) -> str:
    """Return the split that a test is made on."""
    return runner.cfg.get(TESTED_SPLIT, 'test')


def kept_statistics(metrics: list[CalibrationMetric]) -> dict[str, CalibrationStatistics]:
    """Return the statistics of an evaluation by the names of their files, those alike as one.

    An ``ECE`` beside an ``AECE`` of the same options has the same predictions in the same bins: one
    file and one diagram say both. The first is ``calibration``, which all tools read; other options
    have a file that is named after the first of them that tells it apart: ``calibration_paper``,
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
        prefix = metric.prefix.replace('/', '_')
        first = named.get(prefix, metric.statistics)
        other = prefix + f'_{metric.protocol}' * (metric.protocol != first.protocol)
        tries = [prefix, other, f'{other}_{metric.num_bins}_bins']
        tries += [f'{other}_{number}' for number in range(2, len(metrics) + 2)]
        named[next(name for name in tries if name not in named)] = metric.statistics
        by_options[options] = metric.statistics
    return named
