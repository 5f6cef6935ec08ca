"""Confidence maps of a segmentor's test images, and a gallery of the worst."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mmengine.dist import collect_results, get_dist_info, is_main_process
from mmengine.logging import print_log
from mmengine.registry import HOOKS
from mmengine.runner import Runner
from torch import Tensor

from mmcalib.checks import check_integer
from mmcalib.ensembles.batch_views import upright_view
from mmcalib.hooks.confidence_view import check_segmented, view_of
from mmcalib.hooks.drawing_hook import SPLIT_NAMES, DrawingHook, calibration_metrics, tested_split
from mmcalib.metrics.errors import calibration_error
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
        ValueError: If one is outside its range; before a test, if its evaluator has no
            ``CalibrationMetric``; while testing, for samples that are no segmentor's.
    """

    off = 'dict(confidence_map=dict(interval=0, worst=0))'
    from_file = True  # the image, rather than what the network was given

    def __init__(
        self,
        *,
        interval: int = 100,
        indices: Sequence[int] | None = None,
        worst: int = 4,
        max_images: int = 16,
        max_size: int = 512,
        formats: Sequence[str] = (),
    ) -> None:
        super().__init__(formats)
        self.interval = check_integer('interval', interval, least=0)
        self.indices = None if indices is None else frozenset(indices)
        self.worst = check_integer('worst', worst, least=0)
        self.max_images = check_integer('max_images', max_images, least=0)
        self.max_size = check_integer('max_size', max_size)

    @property
    def enabled(self) -> bool:
        """Whether any image is to be drawn."""
        return bool(self.worst or (self.max_images and (self.interval or self.indices)))

    def draws(self, loop: str) -> bool:
        return loop == 'test' and self.enabled

    def before_test(self, runner: Runner) -> None:
        if not self.enabled:
            return
        self._data = SPLIT_NAMES[tested_split(runner)]
        self._metric = calibration_metrics(runner.test_evaluator, self)[0]
        self._seen = 0
        self._size = len(runner.test_dataloader.dataset)
        self._views: list[ConfidenceView] = []
        self._worst: list[ConfidenceView] = []

    def after_test_iter(
        self,
        runner: Runner,
        batch_idx: int,
        data_batch: dict | None = None,
        outputs: Sequence | None = None,
    ) -> None:
        if not self.enabled:
            return
        inputs = upright_view(data_batch)['inputs']
        rank, world_size = get_dist_info()
        # The metric has just read these.
        counts = self._metric.results[-len(outputs) :]
        for number, (sample, counted) in enumerate(zip(outputs, counts, strict=True)):
            check_segmented(sample)
            bins = counted.bins
            # mmengine's samplers interleave the ranks, and repeat images at the end.
            index = self._seen * world_size + rank
            self._seen += 1
            if index >= self._size:
                continue
            due, bad = self._is_due(index), self._is_bad(bins)
            if due or bad:
                view = view_of(
                    sample,
                    inputs[number],
                    bins,
                    index,
                    ignore_index=self._metric.ignore_index,
                    unnamed=f'{self._data} image {index}',
                    max_size=self.max_size,
                    from_file=self.from_file,
                )
                if due:
                    self._views.append(view)
                if bad:
                    self._worst = _worst([*self._worst, view], self.worst)

    def after_test_epoch(self, runner: Runner, metrics: dict | None = None) -> None:
        if not self.enabled:
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

    def _add_figures(self, runner: Runner, views: list, worst: list) -> None:
        from mmcalib.visualization import ConfidenceMaps, draw_confidence_maps

        meta: Mapping = runner.test_dataloader.dataset.metainfo
        style = dict(classes=list(meta['classes']), palette=meta.get('palette'))
        file = of_split(MAPS, tested_split(runner))
        ConfidenceMaps(views, worst, **style).save(Path(runner.work_dir, file))
        if views or worst:
            count = len(views) + bool(worst)
            print_log(f'Drawing {count} figures of confidence maps.', logger='current')
        figures = [(f'confidence_map_{view.index}', [view], '') for view in views]
        if worst:
            title = f'The {len(worst)} worst-calibrated of {self._size:,} {self._data} images'
            figures.append(('confidence_map_worst', worst, title))
        for name, rows, title in figures:
            figure = draw_confidence_maps(rows, **style, title=title, diagrams=not title)
            self.add_figure(runner, name, figure, self.evaluated_step(runner, 'test'))


def _worst(views: list[ConfidenceView], count: int) -> list[ConfidenceView]:
    return sorted(views, key=lambda view: (-view.error, view.index))[:count]
