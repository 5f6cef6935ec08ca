"""Statistics that an evaluation leaves for later tools: small, and readable without the model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from mmcalib.errors import UserError
from mmcalib.files import BROKEN_FILE
from mmcalib.metrics.bins import bin_index, equal_mass_bins
from mmcalib.metrics.calibration_errors import calibration_error
from mmcalib.metrics.class_rates import ClassRates
from mmcalib.metrics.counts import Counts, class_table
from mmcalib.metrics.kept_memory import own_storage
from mmcalib.metrics.log_bins import NUM_LOG_BINS, log_bin_index
from mmcalib.metrics.outcomes import Outcomes
from mmcalib.metrics.protocols import PROTOCOLS
from mmcalib.metrics.unit_tables import UnitTables, sum_rows
from mmcalib.options import check_integer

# Tables of statistics that not every metric counts.
SOMETIMES_COUNTED = (
    'image_class_bins',
    'image_label_totals',
    'class_bins',
    'probability_bins',
    'label_bins',
    'classes',
    'distance_bins',
    'objects',
)


def tables_of_images(images: Sequence[Counts]) -> dict[str, Tensor]:
    """Return the tables of segmented images that no other counts have, by attribute.

    The keys are attributes of :class:`CalibrationStatistics`.
    """
    tables = {}
    first = images[0]
    if 'labels' in first.strata:
        totals = [class_table(image.strata['labels'], 'class_totals') for image in images]
        tables['image_label_totals'] = torch.stack(totals)
    if 'log_bins' in first.image:
        tables['image_narrow_bins'] = torch.stack([image.image['log_bins'] for image in images])
    if 'objects' in first.image:
        tables['objects'] = add_image_index([image.image['objects'] for image in images])
    return tables


def log_bins_of_rows(outcomes: Outcomes) -> Tensor:
    """Return the log bins ``(n, 3, 98)`` int32 of images that have one prediction each."""
    image_index = torch.arange(len(outcomes.conf), device='cpu')
    bin_position = log_bin_index(1 - outcomes.conf)
    log_bins = torch.zeros(len(image_index), 3, NUM_LOG_BINS, dtype=torch.int32, device='cpu')
    log_bins[image_index, 0, bin_position] = 1
    log_bins[image_index, 1, bin_position] = outcomes.correct.int()
    return log_bins


def check_class(of_class: int, num_classes: int) -> None:
    """Raise a UserError for a number that is no class."""
    check_integer('of_class', of_class, least=0)
    if of_class >= num_classes:
        raise UserError(f'of_class must be from 0 to {num_classes - 1}, got {of_class}')


def add_image_index(tables: Sequence[Tensor]) -> Tensor:
    """Return the rows of all images, each with the index of its image in front."""
    rows = []
    for index, table in enumerate(tables):
        rows.append(torch.nn.functional.pad(table, (1, 0), value=index))
    return torch.cat(rows)


@dataclass
class CalibrationStatistics:
    """The metrics of one evaluation, and the tables for its diagrams.

    Attributes:
        metrics: Values of the printed metrics, by name without the prefix.
        protocol: Name of the segmentation protocol.
        num_bins: Number of bins of the metrics, B.
        narrow_bins: ``(3, C)`` float64 fine bins of all images together, ascending in confidence:
            count, correct, sum of confidences. There are at most some 6,000, none of them empty.
        image_bins: ``(n, 3, B)`` float64 bins of equal width of each image, in the order of the
            dataset.
        image_sums: ``(n, 2)`` float64 sums of each image's NLL and Brier score, which is 0 if no
            metric asked for it.
        image_class_bins: ``(n, 3, K, B)`` float64 bins of the probability of each class of each
            image; None for many classes, and if no metric needs them.
        image_label_totals: ``(n, 3, L)`` float64 count, labels and sum of the probabilities of each
            of several labels, of each image; None without several labels.
        image_groups: ``(n,)`` int64 indices of the images that the samples are, some of which are
            copies; None if each is another one.
        image_labels: ``(n,)`` int64 labels of classified images, by which two tests know that they
            are of the same images; None for segmented ones.
        image_narrow_bins: ``(n, 3, 98)`` int32 log bins of each image
            (:mod:`mmcalib.metrics.log_bins`): the numbers of labelled predictions, of correct ones,
            and of unlabelled ones; None if the protocol leaves out pixels by their labels.
        class_bins: ``(3, K, B)`` float64 bins of the predictions of each class; None if they were
            not counted.
        probability_bins: ``(3, K, B)`` float64 bins of the probability of each class; None if no
            metric needs them, and for many classes.
        label_bins: ``(3, L, B)`` float64 bins of the probability of each of several labels, which
            the other bins pool; None without several labels.
        of_class: The class whose probability the bins are of; None for that of the predicted class.
        classes: Names of the K classes.
        distance_bins: ``(3, D, B)`` float64 bins of the pixels in each range of distance from a
            boundary, see :mod:`~mmcalib.predictions.boundary`; None if they were not counted.
        objects: ``(O, 6)`` float64, the objects of segmented images: index of the image, class,
            size, mean confidence, expected IoU, and IoU; None if they were not kept.
        level: Level of the intervals that were asked for, over images, or over single predictions
            without `image_bins`; None if none were.
    """

    metrics: dict[str, float]
    protocol: str
    num_bins: int
    narrow_bins: Tensor
    image_bins: Tensor | None = None
    image_sums: Tensor | None = None
    image_class_bins: Tensor | None = None
    image_label_totals: Tensor | None = None
    image_groups: Tensor | None = None
    image_labels: Tensor | None = None
    image_narrow_bins: Tensor | None = None
    class_bins: Tensor | None = None
    probability_bins: Tensor | None = None
    label_bins: Tensor | None = None
    of_class: int | None = None
    classes: list[str] | None = None
    distance_bins: Tensor | None = None
    objects: Tensor | None = None
    level: float | None = None

    def __getstate__(self) -> dict:
        return own_storage(vars(self))

    @property
    def num_predictions(self) -> int:
        """The number of predictions in the fine bins."""
        return int(self.narrow_bins[0].sum())

    def unit_tables(self) -> UnitTables | None:
        """Return the tables of independent images, in which copies are one; None without tables."""
        if self.image_bins is None:
            return None
        sums = self.image_sums
        if sums is None:
            sums = self.image_bins.new_zeros(len(self.image_bins), 2)
        tables = UnitTables(self.image_bins, sums, self.image_class_bins)
        return tables if self.image_groups is None else tables.sum_by(self.image_groups)

    def class_rates(self) -> ClassRates | None:
        """Return mean probability and frequency of each class, or of each of several labels.

        Returns:
            The rates; None if the bins of the classes are not known, and of a part of the pixels
            that is chosen by their labels, whose frequencies are not those of a use.
        """
        if not self.num_predictions or PROTOCOLS[self.protocol].region is not None:
            return None
        if self.image_label_totals is not None:
            totals = self.image_label_totals
            if self.image_groups is not None:
                totals = sum_rows(totals, self.image_groups)
            has_predictions = totals[:, 0].sum(dim=1) > 0
            return ClassRates.from_totals(totals[has_predictions], are_of_labels=True)
        if self.probability_bins is None:
            return None
        tables = self.unit_tables()
        if tables is None or tables.class_bins is None:
            return ClassRates.from_totals(class_table(self.probability_bins, 'class_totals')[None])
        return ClassRates.from_totals(tables.filled().table('class_totals'))

    def complete(self, other: CalibrationStatistics) -> None:
        """Add the metrics and tables that another metric with the same options has measured."""
        self.metrics |= other.metrics
        for name in SOMETIMES_COUNTED:
            if getattr(self, name) is None:
                setattr(self, name, getattr(other, name))

    def bins(self, num_bins: int | None = None, *, equal_mass: bool = False) -> Tensor:
        """Return the ``(3, B)`` bins of a diagram.

        Bins of equal width are exact if they are those of the metrics. Others are made of fine
        bins: if these are rounded, a confidence within 0.8 % of an edge's distance from 0 or 1 may
        count on the wrong side of it, so an ECE of these bins may differ a little from `metrics`.

        Args:
            num_bins: B; None for that of the metrics.
            equal_mass: Whether bins have equal counts instead of equal widths.
        """
        num_bins = num_bins or self.num_bins
        if equal_mass:
            return equal_mass_bins(self.narrow_bins, num_bins)
        if num_bins == self.num_bins and self.image_bins is not None:
            return self.image_bins.sum(dim=0)
        index = bin_index(self.narrow_bins[2] / self.narrow_bins[0], num_bins)
        bins = torch.zeros(3, num_bins, dtype=torch.float64, device='cpu')
        return bins.index_add_(1, index, self.narrow_bins)

    def for_class(self, of_class: int) -> CalibrationStatistics:
        """Return the statistics of the probability of one class, of bins of equal width.

        Raises:
            UserError: If these bins are not known, or there is no such class.
        """
        if self.probability_bins is None:
            raise UserError(
                'of_class needs the bins of each class, of up to 30 classes: measure ClasswiseECE '
                'too, or give probs and labels'
            )
        check_class(of_class, self.probability_bins.shape[1])
        image_bins = None
        if self.image_class_bins is not None:
            image_bins = self.image_class_bins[:, :, of_class]
        return self._for_bins(self.probability_bins[:, of_class], image_bins, of_class)

    def for_label(self, label: int) -> CalibrationStatistics:
        """Return the statistics of the probability of one of several labels.

        Raises:
            UserError: If there is no such label.
        """
        check_class(label, self.label_bins.shape[1])
        return self._for_bins(self.label_bins[:, label], None, of_class=1)

    def _for_bins(
        self, bins: Tensor, image_bins: Tensor | None, of_class: int
    ) -> CalibrationStatistics:
        """Return the statistics of the ``(3, B)`` bins of a probability."""
        return CalibrationStatistics(
            metrics={'ECE': calibration_error(bins).item()},
            protocol=self.protocol,
            num_bins=self.num_bins,
            narrow_bins=bins[:, bins[0] > 0],
            image_bins=image_bins,
            image_groups=self.image_groups,
            of_class=of_class,
            # Without bins of the images, it would be taken for that of single predictions.
            level=None if image_bins is None and self.image_bins is not None else self.level,
        )

    def save(self, path: str | Path) -> None:
        """Write to an ``.npz`` file, making its folder."""
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        arrays = {}
        values = {}
        for name, value in vars(self).items():
            if torch.is_tensor(value):
                arrays[name] = value.numpy()
            elif value is not None:
                values[name] = value
        with open(path, 'wb') as file:  # Given a path, numpy would add a suffix.
            np.savez_compressed(file, info=json.dumps(values), **arrays)

    @classmethod
    def load(cls, path: str | Path) -> CalibrationStatistics:
        """Return the statistics in a file of :meth:`save`, without tables of other versions.

        Raises:
            ValueError: For another kind of file, or one that was cut off.
        """
        try:
            with np.load(path) as file:
                content = json.loads(str(file['info']))
                for name in file.files:
                    if name != 'info':
                        content[name] = torch.from_numpy(file[name])
            names = {field.name for field in fields(cls)}
            return cls(**{name: value for name, value in content.items() if name in names})
        except BROKEN_FILE as error:
            raise UserError(
                f'{path} cannot be read as calibration statistics ({error!r}): test that run again'
            ) from error
