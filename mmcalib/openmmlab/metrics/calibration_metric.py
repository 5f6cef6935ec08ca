"""The registered mmengine metrics: they stand beside Accuracy or IoUMetric in an evaluator."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from mmengine.dataset import BaseDataset
from mmengine.registry import METRICS
from torch import Tensor

from mmcalib.errors import UserError
from mmcalib.metrics.bins import bin_index, bin_table
from mmcalib.metrics.counts import Counts, count_outcomes
from mmcalib.metrics.definitions import NAMES, find_metric
from mmcalib.metrics.intervals import check_interval
from mmcalib.metrics.measurement import Measurement
from mmcalib.metrics.outcomes import Outcomes, compute_outcomes, true_indices
from mmcalib.metrics.protocols import PROTOCOLS, check_background, foreground
from mmcalib.metrics.statistics import CalibrationStatistics, log_bins_of_rows, tables_of_images
from mmcalib.metrics.strata import stratum_text
from mmcalib.openmmlab.metrics.list_metric import ListMetric
from mmcalib.openmmlab.same_data import copy_groups
from mmcalib.options import check_choice, check_integer
from mmcalib.predictions.boundary import RANGE_NAMES, distance_ranges
from mmcalib.predictions.contract import Contract
from mmcalib.predictions.image_predictions import IGNORED, ImagePredictions
from mmcalib.predictions.objects import describe_objects, find_map_objects, object_ious

# Below this many predictions per bin, the noise of the bins alone makes an ECE of some percent.
ENOUGH_PER_BIN = 10
# The bins of each label are kept of so many labels: 72 kB of an image, for 15 bins.
MOST_LABELS = 200


@METRICS.register_module()
class CalibrationMetric(ListMetric):
    """Calibration of a classifier or a segmentor, measured in one pass.

    The confidence is the probability of the predicted class. The result of a segmented image is
    counts of at most 100 kB, that of a classified image its probabilities; so a sampler's padding
    drops out, and any split over ranks gives the same numbers.

    - ``ECE``: expected calibration error over bins of equal width, each (lo, hi].
    - ``AECE``: adaptive calibration error, over bins of equal count. Tied confidences are shared
      between bins in proportion, which the published code does not do (it drops the smallest
      confidence, and reports 0 where all are tied). Exact up to a million pixels; more
      are counted in fine bins; docs/concepts/estimators.md says how little that changes.
    - ``ClasswiseECE``: mean over classes of the ECE of the probability of that class; of two
      classes the ECE of P(y = 1). ``rate_gap``: largest difference of a class's mean probability
      from its frequency. Of several labels, both are of all labels together.
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
        ignore_index: Label of the pixels to leave out; None for the one that the head of the model
            ignores, which the tools tell; 255 in other tools. Classifiers do not use it.
        protocol: How a segmentation is evaluated: ``'pooled'``, all valid pixels of all images;
            ``'foreground'``, those not of label 0; ``'image'``, the mean over images; ``'paper'``,
            the foreground in batches of 8 consecutive images, averaged by their pixels, as in the
            paper's VOC table; ``'boundary'``, those near another label.
        boundary_width: Number of pixels on either side of a boundary that belong to it.
        confidence_interval: Level, such as 0.95, of intervals ``ECE_low`` to ``ECE_high`` and so
            on, by a bootstrap over images, which allows for the bias of binned errors; NaN where
            all predictions are of one image. Not for metrics whose statistics are not kept by
            image: ``AECE``, ``smECE``, those of selective prediction, those that need a
            temperature, and those of all classes where these are more than 30. None for no
            intervals.
        num_bootstrap: Number of resamples of the images.
        seed: Seed of these resamples.
        per_class: Whether to print a table of ECE, accuracy, mean confidence and count of the
            predictions of each class, over all images whatever the protocol averages; NaN for
            classes that are never predicted. It is kept in ``statistics``.
        per_distance: Whether to print the same of the pixels 1, 2, 3–4, 5–8, … from the nearest
            boundary, which is that of the protocol ``'boundary'``. For segmentation.
        per_object: Whether to print how well objects are found, the connected components of each
            predicted class but the one that the data set calls background, and to keep them in
            ``statistics``. For segmentation; whole images count, whatever the protocol.
        several_labels: Whether a classifier predicts each class by a sigmoid of its own, which the
            tools tell by its head. All labels are then measured together, as the pixels of a binary
            head are: whether each is present, without those whose ``gt_score`` is negative.
            `per_class` has the predictions of each label.
        **base: Options of mmengine's ``BaseMetric``, such as ``prefix``, which replaces
            ``calibration`` in the keys, so that one evaluator can have two metrics.

    Attributes:
        statistics: Statistics of the last evaluation, on the main process; else None.
        dataset: The data set, which our tools set: intervals are then over different images, also
            where a list names one twice. None takes each sample for another image.

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
        ignore_index: int | None = None,
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
        super().__init__(ignore_index=ignore_index, **base)
        self.metrics = (metrics,) if isinstance(metrics, str) else tuple(metrics)
        if not self.metrics:
            raise UserError(f'metrics must be some of {NAMES}, got none')
        self.required = {find_metric(name).required for name in self.metrics} - {None}
        self.num_bins = check_integer('num_bins', num_bins)
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
        self.dataset: BaseDataset | None = None
        if confidence_interval is not None:
            check_interval('confidence_interval', confidence_interval, self.metrics)

    def check_meta(self, meta: Mapping) -> None:
        """Raise a UserError if the protocol leaves out class 0 and this is no background."""
        if PROTOCOLS[self.protocol].region is foreground:
            check_background(meta, f'protocol={self.protocol!r}', "set protocol='pooled'")

    def read(self, sample: dict) -> Counts | tuple[np.ndarray, int]:
        """Return the probabilities and the label of a classified image, or counts of another."""
        is_map = 'seg_logits' in sample
        if is_map:
            self.check_meta(sample)
        else:
            self._check_no_map_options()
        predictions = self.read_predictions(sample, several_labels=self.several_labels)
        if not is_map and not self.several_labels:
            return predictions.probs[0].numpy(), int(predictions.labels)
        return self.prepare_result(self._count(predictions))

    def _count(self, predictions: ImagePredictions) -> Counts:
        """Return the counts of one map, or of the labels of one image."""
        region = PROTOCOLS[self.protocol].region
        labels = predictions.labels[0]
        required = self._required_statistics(predictions.num_classes)
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
        counts = count_outcomes(
            outcomes,
            self.num_bins,
            strata=strata,
            is_map=predictions.are_maps,
            rounded=self.has_many,
        )
        are_few_labels = predictions.several_labels and labels.numel() <= MOST_LABELS
        if outcomes.class_bins is not None and are_few_labels:
            counts.strata['labels'] = bins_of_labels(counted, self.num_bins)
        if self.per_object:
            counts.image['objects'] = self._objects(predictions)
        return counts

    def _required_statistics(self, num_classes: int) -> set[str]:
        """Return the names of the statistics to count, of two classes the bins of P(y = 1) too.

        Not of a part of the pixels that is chosen by their labels, where the rates mean nothing.
        """
        if num_classes == 2 and PROTOCOLS[self.protocol].region is None:
            return self.required | {'class_bins'}
        return self.required

    def compute_metrics(self, results: list) -> dict[str, float]:
        """Return the metrics of all images, in the order of the data set."""
        self.num_samples = len(results)
        measurement = Measurement(
            self.metrics, num_bins=self.num_bins, protocol=self.protocol, keeps_images=True
        )
        image_tables: dict[str, Tensor | None] = {}
        if results and isinstance(results[0], Counts):
            for index, counts in enumerate(results):
                measurement.add_image(counts, torch.tensor([index], device='cpu'))
            image_tables = tables_of_images(results)
        elif results:
            image_tables = self._add_classified(measurement, results)
        if results:
            tables = measurement.image_tables()
            image_tables['image_bins'] = tables.bins
            image_tables['image_sums'] = tables.sums
            image_tables['image_class_bins'] = tables.class_bins
            image_tables['image_groups'] = self._copy_groups(len(tables.bins))
        measured = measurement.measured(
            self.confidence_interval if measurement.count else None,
            image_tables.get('image_groups'),
            num_bootstrap=self.num_bootstrap,
            seed=self.seed,
        )
        self.statistics = replace(measured.statistics, **image_tables)
        self.statistics.classes = self._class_names(self.statistics.class_bins)
        self._log_count(int(measurement.count), len(results))
        self._log_tables(self.statistics)
        return dict(measured)

    def _copy_groups(self, num_images: int) -> Tensor | None:
        """Return which samples are copies of one image, None if none are, or that is not known."""
        if self.dataset is None or len(self.dataset) != num_images:
            return None  # Part of a ConcatDataset.
        return copy_groups(self.dataset)

    def _add_classified(
        self, measurement: Measurement, results: Sequence[tuple[np.ndarray, int]]
    ) -> dict[str, Tensor]:
        """Count all classified images, and return the tables of each that no other counts have."""
        scores, labels = zip(*results, strict=True)
        predictions = Contract('probs').read(
            torch.from_numpy(np.stack(scores)), torch.tensor(labels, device='cpu')
        )
        predictions = predictions.select(predictions.valid)
        required = self._required_statistics(predictions.num_classes)
        outcomes = compute_outcomes(predictions, num_bins=self.num_bins, required=required)
        strata = self._strata_by_class(outcomes, predictions.num_classes)
        measurement.add_outcomes(predictions, outcomes, strata)
        return {'image_narrow_bins': log_bins_of_rows(outcomes), 'image_labels': predictions.labels}

    def _strata_by_class(
        self, outcomes: Outcomes, num_classes: int
    ) -> dict[str, tuple[Tensor, int]]:
        """Return the stratification by predicted class, if it is asked for."""
        return {'predicted': (outcomes.predicted, num_classes)} if self.per_class else {}

    def _objects(self, predictions: ImagePredictions) -> Tensor:
        """Return label, pixels, confidence, expected IoU and IoU of each object, ``(O, 5)``."""
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

    def _class_names(self, class_bins: Tensor | None) -> list[str] | None:
        """Return the names of the classes whose bins were counted."""
        if class_bins is None:
            return None
        num_classes = class_bins.shape[1]
        names = (self.dataset_meta or {}).get('classes') or ()
        if len(names) != num_classes:
            names = range(num_classes)
        return [str(name) for name in names]

    def _log_count(self, count: int, num_images: int) -> None:
        """Log the number of predictions, with a warning if they are few."""
        if not count:
            self.log(f'no valid prediction in {num_images} samples', logging.WARNING)
            return
        line = f'{count:,} predictions of {num_images:,} images by the protocol {self.protocol!r}'
        if count >= ENOUGH_PER_BIN * self.num_bins:
            self.log(line)
            return
        self.log(
            f'{line}, few for {self.num_bins} bins: noise alone makes errors of several percent',
            logging.WARNING,
        )

    def _log_tables(self, statistics: CalibrationStatistics) -> None:
        """Log the tables of classes and distances, and how well objects are found."""
        if statistics.class_bins is not None:
            table = stratum_text(statistics.class_bins, statistics.classes, 'predicted class')
            self.log(f'\n{table}')
        if statistics.distance_bins is not None:
            heading = 'pixels from a boundary'
            self.log(f'\n{stratum_text(statistics.distance_bins, RANGE_NAMES, heading)}')
        if statistics.objects is not None:
            self.log(describe_objects(statistics.objects))

    def _check_no_map_options(self) -> None:
        """Raise a UserError for a classifier if an option is for segmentation."""
        options = {}
        if self.protocol != 'pooled':
            options['protocol'] = self.protocol
        if self.per_distance:
            options['per_distance'] = True
        if self.per_object:
            options['per_object'] = True
        if options:
            text = ', '.join(f'{name}={value!r}' for name, value in options.items())
            raise UserError(f'{text} is for segmentation, not for a classifier: leave it out')


def bins_of_labels(predictions: ImagePredictions, num_bins: int) -> Tensor:
    """Return the ``(3, L, B)`` bins of the probability of each of several labels."""
    valid = predictions.valid
    num_labels = valid.shape[1]
    probs = predictions.class_probabilities()[:, 1][valid].cpu()
    is_label = (predictions.labels == 1)[valid].cpu()
    label_index = torch.arange(num_labels, device='cpu').expand(valid.shape)[valid.cpu()]
    position = label_index * num_bins + bin_index(probs, num_bins)
    return bin_table(position, probs, is_label, num_labels, num_bins)


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
