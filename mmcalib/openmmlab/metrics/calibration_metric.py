"""The registered mmengine metrics: they stand beside Accuracy or IoUMetric in an evaluator."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from mmengine.registry import METRICS
from torch import Tensor

from mmcalib.errors import UserError
from mmcalib.metrics.counts import Counts, Tally, count_outcomes, sum_counts
from mmcalib.metrics.definitions import NAMES, find_metric
from mmcalib.metrics.intervals import check_interval
from mmcalib.metrics.outcomes import Outcomes, compute_outcomes, true_indices
from mmcalib.metrics.protocols import PROTOCOLS, check_background, foreground
from mmcalib.metrics.statistics import (
    CalibrationStatistics,
    tables_of_classified,
    tables_of_images,
)
from mmcalib.metrics.strata import stratum_text
from mmcalib.openmmlab.metrics.list_metric import ListMetric
from mmcalib.openmmlab.samples import read_samples
from mmcalib.options import check_choice, check_ignore_index, check_integer
from mmcalib.predictions.boundary import RANGE_NAMES, distance_ranges
from mmcalib.predictions.image_predictions import (
    IGNORED,
    ImagePredictions,
    predictions_from_probabilities,
)
from mmcalib.predictions.objects import RIGHT, find_map_objects, object_ious

# Below this many predictions per bin, the noise of the bins alone makes an ECE of some percent.
ENOUGH_PER_BIN = 10


@METRICS.register_module()
class CalibrationMetric(ListMetric):
    """Calibration of a classifier or a segmentor, measured in one pass.

    The confidence is the probability of the predicted class. A segmented image leaves small tables,
    of at most 100 kB, and a classified one its probabilities; so a sampler's padding drops out, and
    any split over ranks gives the same numbers.

    - ``ECE``: expected calibration error over bins of equal width, each (lo, hi].
    - ``AECE``: adaptive calibration error, over bins of equal count. Tied confidences are shared
      between bins in proportion, which the published code does not do (it drops the smallest
      confidence, and reports 0 where all are tied). Exact up to a million pixels; more
      are counted in cells of 1 - confidence, 128 to each halving; docs/concepts/estimators.md says
      how little that changes.
    - ``ClasswiseECE``: mean over classes of the ECE of the probability of that class.
    - ``MCE``, ``RMSCE``, ``OE``, ``ACE``: largest, root mean square and unweighted mean gap of the
      bins of ECE, and the over-confidence error; ``debiasedECE``, the root mean square gap less
      what noise adds to it; ``smECE``, smooth ECE, which has no bins.
    - ``accuracy`` and ``confidence``: their means over all predictions; ``gap``, confidence less
      accuracy, in percent points: above 0 the predictions are over-confident; ``gap_size``, its
      size, which ``save_best`` can compare.
    - ``NLL``, in nats, and ``Brier``, a sum over classes, so between 0 and 2; ``reliability``,
      ``resolution`` and ``uncertainty``, the parts of the confidence's own Brier score, from bins.
    - ``refinement_NLL``, the NLL at the best temperature, so what no temperature mends;
      ``calibration_NLL``, the NLL less that; and ``temperature`` itself: above 1 the predictions
      are over-confident. See :mod:`mmcalib.metrics.calibration_errors`.
    - ``AURC``, ``AUGRC``, ``AUROC``, ``FPR95``, ``risk@coverage_0.8`` and ``coverage@risk_0.05``
      with any levels: whether confidence tells right from wrong; see
      :mod:`mmcalib.metrics.ranking`.

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
            ``statistics``. For segmentation, of whole images whatever the protocol.
        several_labels: Whether a classifier predicts each class by a sigmoid of its own, which our
            tools tell by its head. Then all decisions are measured together, as the pixels of a
            binary head are: whether each label is there, without those whose ``gt_score`` is
            negative. `per_class` has the decisions on each label.
        **base: Those of mmengine's ``BaseMetric``, such as ``prefix``, which replaces
            ``calibration`` in the keys, so that one evaluator can have two metrics.

    Attributes:
        statistics: Of the last evaluation, on the main process; else None.

    Raises:
        ValueError: If an option is outside its range; for a protocol of the foreground on data with
            ``reduce_zero_label``, whose class 0 is no background; while evaluating, for the samples
            that :mod:`~mmcalib.openmmlab.samples` refuses.
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
        confidence_interval: float | None = None,
        num_bootstrap: int = 1000,
        seed: int = 0,
        per_class: bool = False,
        per_distance: bool = False,
        per_object: bool = False,
        several_labels: bool = False,
        **base: Any,
    ) -> None:
        super().__init__(**base)
        self.metrics = (metrics,) if isinstance(metrics, str) else tuple(metrics)
        if not self.metrics:
            raise UserError(f'metrics must be some of {NAMES}, got none')
        self.required = {find_metric(name).required for name in self.metrics} - {None}
        self.num_bins = check_integer('num_bins', num_bins)
        self.ignore_index = check_ignore_index(ignore_index)
        self.protocol = check_choice('protocol', protocol, PROTOCOLS)
        self.boundary_width = check_integer('boundary_width', boundary_width)
        self.confidence_interval = confidence_interval
        self.num_bootstrap = check_integer('num_bootstrap', num_bootstrap)
        self.seed = seed
        self.per_class = per_class
        self.per_distance = per_distance
        self.per_object = per_object
        self.several_labels = several_labels
        self.statistics: CalibrationStatistics | None = None
        if confidence_interval is not None:
            check_interval('confidence_interval', confidence_interval, self.metrics)

    def check_meta(self, meta: Mapping) -> None:
        """Raise a UserError where the protocol leaves out class 0, and this is no background."""
        if PROTOCOLS[self.protocol].region is foreground:
            check_background(meta, f'protocol={self.protocol!r}', "set protocol='pooled'")

    def read(self, sample: dict) -> Counts | tuple[np.ndarray, int]:
        """Return the probabilities and the label of a classified image, or counts of another."""
        is_map = 'seg_logits' in sample
        if is_map:
            self.check_meta(sample)
        else:
            self._refuse_classifier()
        (predictions,) = read_samples(
            [sample],
            [self.name(sample)],
            ignore_index=self.ignore_index,
            several_labels=self.several_labels,
        )
        if not is_map and not self.several_labels:
            return predictions.probs[0].numpy(), int(predictions.labels)
        return self.limited(self._count(predictions))

    def _count(self, predictions: ImagePredictions) -> Counts:
        """Return the counts of one map, or of the labels of one image."""
        region = PROTOCOLS[self.protocol].region
        labels = predictions.labels[0]
        required = self.required
        if region is None:
            required = required | {'ignored_conf'}
            counted = predictions
        else:  # Nobody knows what the protocol would leave out of an image without labels.
            counted = predictions.within(region(labels, self.boundary_width)[None])
        outcomes = compute_outcomes(counted, num_bins=self.num_bins, required=required)
        strata = self._strata_by_class(outcomes, counted.num_classes)
        if predictions.several_labels and self.per_class:  # Each label is a class.
            valid = counted.valid.flatten()
            strata['predicted'] = (true_indices(valid).cpu(), valid.numel())
        if self.per_distance:
            ranges = distance_ranges(labels)[counted.valid[0]].cpu()
            strata['distance'] = (ranges, len(RANGE_NAMES))
        counts = count_outcomes(outcomes, self.num_bins, strata=strata, rounded=self.has_many)
        if self.per_object:
            counts.image['objects'] = self._objects(predictions)
        return counts

    def compute_metrics(self, results: list) -> dict[str, float]:
        """Return the metrics of all images, in the order of the data set."""
        protocol = PROTOCOLS[self.protocol]
        tally = Tally(self.num_bins, protocol.images_per_unit)
        if results and not isinstance(results[0], Counts):
            predictions = self._predictions_of_scores(results)
            outcomes = compute_outcomes(predictions, num_bins=self.num_bins, required=self.required)
            strata = self._strata_by_class(outcomes, predictions.num_classes)
            tally.add(count_outcomes(outcomes, self.num_bins, strata=strata))
            image_tables = tables_of_classified(outcomes, self.num_bins, per_class=self.per_class)
        else:
            for counts in results:
                tally.add(counts)
            image_tables = tables_of_images(results)
        units = tally.sums()
        whole = units[0] if len(units) == 1 else sum_counts(units, self.num_bins)
        values = {name: protocol.value(name, units, whole) for name in self.metrics}
        image_sums = image_tables.pop('image_sums', None)
        self.statistics = self._statistics(dict(values), whole, image_tables)
        self._log(int(whole.count), len(results), self.statistics)
        if self.confidence_interval is not None and whole.count:
            values |= protocol.intervals(
                self.metrics,
                units,
                (image_tables['image_bins'], image_sums),
                coverage=self.confidence_interval,
                num_bootstrap=self.num_bootstrap,
                seed=self.seed,
            )
        return values

    def _strata_by_class(
        self, outcomes: Outcomes, num_classes: int
    ) -> dict[str, tuple[Tensor, int]]:
        """Return the stratification by predicted class, if it is asked for."""
        return {'predicted': (outcomes.predicted, num_classes)} if self.per_class else {}

    def _objects(self, predictions: ImagePredictions) -> Tensor:
        """Return class, size, confidence, expected IoU and IoU of each object, ``(O, 5)``."""
        objects = find_map_objects(predictions, background=self.dataset_background)
        labels = predictions.labels[0].cpu().numpy()
        ious = object_ious(objects, labels, ignore_index=IGNORED)
        columns = [
            objects.label,
            objects.pixels,
            objects.confidence,
            objects.expected_iou,
            ious,
        ]
        return torch.from_numpy(np.stack(columns, axis=1).astype(np.float64))

    def _predictions_of_scores(self, results: list) -> ImagePredictions:
        """Return the predictions of all classified images."""
        scores, labels = zip(*results, strict=True)
        probs = torch.from_numpy(np.stack(scores))
        return predictions_from_probabilities(probs, torch.tensor(labels, device='cpu'))

    def _statistics(
        self, values: dict[str, float], whole: Counts, images: dict[str, Tensor]
    ) -> CalibrationStatistics:
        """Return the statistics that later tools draw, beside the printed numbers."""
        classes, names = whole.strata.get('predicted'), None
        if classes is not None:
            count, names = classes.shape[1], (self.dataset_meta or {}).get('classes') or ()
            names = [str(name) for name in (names if len(names) == count else range(count))]
        return CalibrationStatistics(
            metrics=values,
            protocol=self.protocol,
            num_bins=self.num_bins,
            narrow_bins=whole.condensed_table(),
            class_bins=classes,
            classes=names,
            distance_bins=whole.strata.get('distance'),
            **images,
        )

    def _log(self, count: int, num_images: int, found: CalibrationStatistics) -> None:
        """Log the number of predictions, with a warning if they are few, and tables of parts."""
        text = f'{count:,} predictions of {num_images:,} images by the protocol {self.protocol!r}'
        few = count < ENOUGH_PER_BIN * self.num_bins
        noise = f', few for {self.num_bins} bins: noise alone makes errors of several percent'
        self.log(
            f'{text}{noise * few}' if count else f'no valid prediction in {num_images} samples',
            logging.WARNING if few else logging.INFO,
        )
        for table, names, heading in (
            (found.class_bins, found.classes, 'predicted class'),
            (found.distance_bins, RANGE_NAMES, 'pixels from a boundary'),
        ):
            if table is not None:
                self.log(f'\n{stratum_text(table, names, heading)}')
        if found.objects is not None:
            self.log(objects_in_words(found.objects))

    def _refuse_classifier(self) -> None:
        options = ['protocol'] if self.protocol != 'pooled' else []
        options += [n for n in ('per_distance', 'per_object') if getattr(self, n)]
        if options:
            wrong = ', '.join(f'{name}={getattr(self, name)!r}' for name in options)
            raise UserError(f'{wrong} is for segmentation, not for a classifier: leave it out')


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
