"""The registered mmengine metrics: they stand beside Accuracy or IoUMetric in an evaluator."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from functools import partial

import torch
from mmengine.logging import print_log
from mmengine.registry import METRICS
from torch import Tensor

from mmcalib.checks import check_ignore_index, check_integer
from mmcalib.metrics.bins.stratified_bins import stratum_text
from mmcalib.metrics.calibration_state import CalibrationState
from mmcalib.metrics.functional.object_calibration import RIGHT
from mmcalib.metrics.metric_definitions import OfBins, OfMean, definition_of
from mmcalib.metrics.saved_statistics import CalibrationStatistics, check_suffix
from mmcalib.metrics.segmentation_protocols import PROTOCOLS
from mmcalib.metrics.state_metric import StateMetric
from mmcalib.samples.boundary_distance import RANGE_NAMES
from mmcalib.samples.evaluated import probabilities_of_batch, read_prediction
from mmcalib.samples.fields import background_of
from mmcalib.samples.predictions import Prediction, of_probabilities

# Below this many predictions per bin, the noise of the bins alone makes an ECE of some percent.
ENOUGH_PER_BIN = 10


@METRICS.register_module()
class CalibrationMetric(StateMetric):
    """Calibration of a classifier or a segmentor, measured in one pass.

    The confidence is the probability of the predicted class. Each image leaves one small row, so a
    sampler's padding drops out and any split over ranks gives the same numbers; nothing of the size
    of an image is kept.

    - ``ECE``: expected calibration error over bins of equal width, each (lo, hi].
    - ``AECE``: adaptive calibration error, over bins of equal count. Tied confidences are shared
      between bins in proportion, which the published code does not do (it drops the smallest
      confidence, and reports 0 where all are tied); where confidences are distinct, the two differ
      by at most one sample per bin. Exact up to a million confidences (under the protocol
      ``'paper'``, 16,384 of each batch); above, from narrow bins, with ``AECE_bound`` beside it:
      the most by which the value can be off.
    - ``ClasswiseECE``: mean over classes of the ECE of the probability of that class.
    - ``MCE``, ``RMSCE``, ``OE``, ``ACE``: largest, root mean square and unweighted mean gap of the
      bins of ECE, and the over-confidence error; ``debiasedECE``, the root mean square gap less
      what noise adds to it; ``smECE``, smooth ECE, which has no bins.
    - ``accuracy`` and ``confidence``: their means over all predictions; ``gap``, confidence less
      accuracy, in percent points: above 0 the predictions are over-confident.
    - ``NLL``, in nats, and ``Brier``, a sum over classes, so between 0 and 2; ``reliability``,
      ``resolution`` and ``uncertainty``, the parts of the confidence's own Brier score, from bins.
    - ``refinement_NLL``, the NLL of each fifth of the images at the temperature that is best for
      the others, so what no temperature mends; ``calibration_NLL``, the NLL less that, which may
      come out a little below 0; and ``temperature``, that of the least NLL of all images: above 1
      the predictions are over-confident. See :mod:`mmcalib.metrics.refinement`.
    - ``AURC``, ``AUGRC``, ``AUROC``, ``FPR95``, ``risk@coverage_0.8`` and ``coverage@risk_0.05``
      with any levels: whether confidence tells right from wrong; see
      :mod:`mmcalib.metrics.functional.risk_coverage`. Of more than a million predictions each has a
      bound beside it, as AECE does.

    Keys are ``calibration/ECE`` and so on, in percent but for ``NLL``, ``Brier``, their parts and
    the temperature; NaN, with a warning, if no prediction is valid. Source: Eq. 8 of the paper for
    ECE.

    Args:
        metrics: Names of metrics; the reference lists all of them.
        num_bins: Number of bins; the paper uses 15.
        ignore_index: Label of the pixels to leave out. Classifiers do not use it.
        protocol: How a segmentation is evaluated: ``'pooled'``, all valid pixels of all images;
            ``'foreground'``, those not of label 0; ``'image'``, the mean over images; ``'paper'``,
            the foreground in batches of 8 consecutive images, averaged by their pixels, as in the
            paper's VOC table; ``'boundary'``, those near another label.
        boundary_width: Number of pixels on either side of a boundary that belong to it.
        convention: ``'mmcalib'``, or the binning of ``'published'``, ``'torchmetrics'`` or
            ``'netcal'`` code, which reports fractions; mmcalib reports percent. See
            :mod:`mmcalib.metrics.bins.conventions`.
        confidence_interval: Coverage, such as 0.95, of intervals ``ECE_low`` to ``ECE_high`` and so
            on, by a bootstrap over images, which allows for the bias of binned errors; NaN where
            all predictions are of one image. Not for metrics whose statistics are not kept by
            image: ``AECE``, ``ClasswiseECE``, ``smECE``, those of selective prediction, and those
            that need a temperature. None for no intervals.
        num_bootstrap: Number of resamples of the images.
        seed: Seed of these resamples.
        per_class: Also print a table of ECE, accuracy, mean confidence and count of the predictions
            of each class, over all that the protocol has together; NaN for classes that are never
            predicted. It is kept in ``statistics``.
        per_distance: Likewise for the pixels 1, 2, 3–4, 5–8, … from the nearest boundary, which is
            that of the protocol ``'boundary'``. For segmentation.
        per_object: Also print how well objects, the connected components of each predicted class
            but the one that the data set calls background, are found, and keep them in
            ``statistics``. For segmentation, by the protocol ``'pooled'``.
        out_file: A ``.json`` or ``.npz`` file, written at each evaluation, with the
            :class:`~mmcalib.metrics.saved_statistics.CalibrationStatistics`.
        collect_device: ``'cpu'`` or ``'gpu'``, see mmengine's ``BaseMetric``.
        prefix: Replaces ``calibration`` in the keys, so that one evaluator can have two metrics.
        collect_dir: See mmengine's ``BaseMetric``.

    Attributes:
        keep_statistics: Whether to fill ``statistics``; `out_file` sets it, and hooks may.
        statistics: Of the last evaluation, on the main process; else None.

    Raises:
        ValueError: If an option is outside its range; while evaluating, for the samples that
            :func:`~mmcalib.samples.evaluated.read_prediction` refuses.
    """

    default_prefix = 'calibration'

    def __init__(
        self,
        metrics: Sequence[str] = ('ECE', 'AECE'),
        *,
        num_bins: int = 15,
        ignore_index: int = 255,
        protocol: str = 'pooled',
        boundary_width: int = 3,
        convention: str = 'mmcalib',
        confidence_interval: float | None = None,
        num_bootstrap: int = 1000,
        seed: int = 0,
        per_class: bool = False,
        per_distance: bool = False,
        per_object: bool = False,
        out_file: str | None = None,
        collect_device: str = 'cpu',
        prefix: str | None = None,
        collect_dir: str | None = None,
    ) -> None:
        super().__init__(collect_device=collect_device, prefix=prefix, collect_dir=collect_dir)
        self.metrics = (metrics,) if isinstance(metrics, str) else tuple(metrics)
        self.num_bins = num_bins
        self.ignore_index = check_ignore_index(ignore_index)
        self.protocol = protocol
        self.boundary_width = check_integer('boundary_width', boundary_width)
        self.convention = convention
        self.confidence_interval = confidence_interval
        self.num_bootstrap = check_integer('num_bootstrap', num_bootstrap)
        self.seed = seed
        self.per_class = per_class
        self.per_distance = per_distance
        self.per_object = per_object
        self.out_file = out_file
        self.keep_statistics = out_file is not None
        self.statistics: CalibrationStatistics | None = None
        self.reset()  # checks the other options
        if confidence_interval is not None and not 0 < confidence_interval < 1:
            raise ValueError(f'confidence_interval must be in (0, 1), got {confidence_interval!r}')
        if confidence_interval is not None and not self._with_interval:
            raise ValueError(
                f'confidence_interval: {" and ".join(self.metrics)} has no interval, because no '
                'statistics are kept for each image: leave the option out, or add another metric'
            )
        if per_object and protocol != 'pooled':
            raise ValueError(
                f"per_object is for the protocol 'pooled', got {protocol!r}, which leaves out "
                'pixels of objects or takes images apart: measure them by another metric'
            )
        if out_file is not None:
            check_suffix(out_file)
        region = PROTOCOLS[protocol].region
        self._region = region and partial(region, width=boundary_width)

    def _new_state(self) -> CalibrationState:
        return CalibrationState(
            self.metrics,
            num_bins=self.num_bins,
            convention=self.convention,
            protocol=self.protocol,
            keep_bins=self.keep_statistics,
            per_class=self.per_class,
            per_distance=self.per_distance,
            per_object=self.per_object,
        )

    def _take(self, samples: Sequence[dict]) -> None:
        """Count a batch at once, but for the last sample, which may turn out to be padding."""
        batch = None
        if self.protocol == 'pooled' and not self.per_distance and not self.per_object:
            batch = probabilities_of_batch(samples)
        if batch is None:
            super()._take(samples)
            return
        probs, label, smallest = batch
        read = partial(
            of_probabilities, wanted=self._state.wanted, floor=self._state.floor, smallest=smallest
        )
        last = read(probs[:, -1:], label[-1:])
        waited, places = self._padding.let_in_batch(len(samples), last)
        self._count(waited)
        if places:
            self._state.update_each(read(probs[:, :-1], label[:-1], of_images=True), places=places)

    def _update(self, image: Prediction, place: int) -> None:
        self._state.update(image, index=place)

    def _read(self, sample: dict) -> Prediction:
        name = self._name(sample)
        if 'pred_score' in sample and (self.protocol != 'pooled' or self.per_distance):
            option = 'per_distance' if self.per_distance else f'protocol {self.protocol!r}'
            raise ValueError(
                f'{option} is for segmentation, but {name} comes from a classifier: leave it out'
            )
        return read_prediction(
            sample,
            ignore_index=self.ignore_index,
            name=name,
            wanted=self._state.wanted,
            floor=self._state.floor,
            region=self._region,
            background=background_of((self.dataset_meta or {}).get('classes')),
        )

    def bins_of_last(self, count: int) -> Tensor:
        """Return the ``(count, 3, B)`` bins of equal width of the images that came last."""
        waiting = torch.stack([self._state.bins_of(image) for image in self._padding.waiting])
        return torch.cat([self._state.bins_of_last(count - len(waiting)), waiting])

    def _values_of(self, state: CalibrationState) -> dict:
        count = state.num_predictions
        self._log(count, state.num_images)
        values = state.compute()
        for note in state.curve_notes() if count else ():
            name = type(self).__name__
            print_log(f'{name}: {note}', logger='current', level=logging.WARNING)
        classes = self._log_strata(state)
        if self.keep_statistics:
            self.statistics = state.statistics(dict(values))
            self.statistics.classes = classes
            if self.out_file is not None:
                self.statistics.save(self.out_file)
        if self.confidence_interval is not None and count > 0:
            bounds = state.intervals(
                coverage=self.confidence_interval, num_bootstrap=self.num_bootstrap, seed=self.seed
            )
            if any(math.isnan(low) for low, _ in bounds.values()):
                batch = 'batch of images' if self.protocol == 'paper' else 'image'
                print_log(
                    f'{type(self).__name__}: intervals are NaN: all predictions come from one '
                    f'{batch}, so their variation is unknown',
                    logger='current',
                    level=logging.WARNING,
                )
            for name, (low, high) in bounds.items():
                values |= {f'{name}_low': low, f'{name}_high': high}
        return values

    @property
    def _with_interval(self) -> bool:
        return any(isinstance(definition_of(name), (OfBins, OfMean)) for name in self.metrics)

    def _log(self, count: int, num_images: int) -> None:
        """Log the number of predictions, and a warning if they are too few."""
        name, log = type(self).__name__, partial(print_log, logger='current')
        protocol = PROTOCOLS[self.protocol].text.format(width=self.boundary_width)
        if not count:
            log(
                f'{name}: no valid prediction in {num_images} samples, so '
                f'{", ".join(self.metrics)} is NaN',
                level=logging.WARNING,
            )
            return
        log(
            f'{name}: {count:,} predictions of {num_images:,} images, by the protocol '
            f'{self.protocol!r}: {protocol}. Errors such as ECE are of {self.num_bins} bins'
            + (f' of {self.convention}' if self.convention != 'mmcalib' else '')
        )
        if count < ENOUGH_PER_BIN * self.num_bins:
            uncertain = 'confidence_interval=0.95 says how uncertain they are'
            log(
                f'{name}: {count} predictions are few for {self.num_bins} bins: noise alone '
                'causes an error of several percent. Use fewer bins'
                + (f'; {uncertain}' if self._with_interval else ''),
                level=logging.WARNING,
            )

    def _log_strata(self, state: CalibrationState) -> list[str] | None:
        """Print the tables of classes and distances, and return the names of the classes."""
        bins, distances, classes = state.class_bins(), state.distance_bins(), None
        if bins is not None:
            classes = class_names(self.dataset_meta, bins.shape[1])
            print_log(f'\n{stratum_text(bins, classes, "predicted class")}', logger='current')
        if distances is not None:
            text = stratum_text(distances, RANGE_NAMES, 'pixels from a boundary')
            print_log(f'\n{text}', logger='current')
        if state.objects() is not None:
            print_log(objects_in_words(state.objects()), logger='current')
        return classes


def objects_in_words(objects: Tensor) -> str:
    """Return how well the ``(O, 6)`` objects of a state are found."""
    known = objects[~objects[:, 5].isnan()]
    if not len(known):
        return f'{len(objects)} objects, none of which has a labelled pixel'
    _, _, pixels, conf, expected, iou = known.T
    return (
        f'{len(known):,} objects of {pixels.median():.0f} pixels (median): '
        f'{100 * (iou > RIGHT).double().mean():.1f} % have an IoU above {RIGHT:g}, the mean IoU is '
        f'{100 * iou.mean():.1f} %, the mean confidence {100 * conf.mean():.1f} %, the expected '
        f'IoU {100 * expected.mean():.1f} %'
    )


def class_names(dataset_meta: Mapping | None, count: int) -> list[str]:
    """Return the names of so many classes, their numbers where a data set names others."""
    names = (dataset_meta or {}).get('classes') or ()
    return [str(name) for name in (names if len(names) == count else range(count))]


@METRICS.register_module()
class ECE(CalibrationMetric):
    """Expected calibration error alone; see :class:`CalibrationMetric` for the other options."""

    def __init__(self, **options) -> None:
        super().__init__(('ECE',), **options)


@METRICS.register_module()
class AECE(CalibrationMetric):
    """Adaptive calibration error alone; see :class:`CalibrationMetric` for the other options."""

    def __init__(self, **options) -> None:
        super().__init__(('AECE',), **options)


@METRICS.register_module()
class ClasswiseECE(CalibrationMetric):
    """Class-wise calibration error alone; see :class:`CalibrationMetric` for the other options."""

    def __init__(self, **options) -> None:
        super().__init__(('ClasswiseECE',), **options)
