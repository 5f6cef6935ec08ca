"""The mergeable state of an evaluation: counts of predictions, in tables that add up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from mmcalib.checks import check_choice, check_integer, check_range
from mmcalib.metric_keys import NLL_PARTS
from mmcalib.metrics.bins.bin_tables import bins_of_each, equal_width_bins, floor_of
from mmcalib.metrics.bins.class_image_bins import ClassImageBins
from mmcalib.metrics.bins.conventions import CONVENTIONS
from mmcalib.metrics.bins.growing_array import GrowingArray
from mmcalib.metrics.bins.image_bins import (
    NUM_NARROW_BINS,
    count_in_narrow_bins,
    narrow_bins_of_each,
)
from mmcalib.metrics.bins.narrow_bins import ConfidenceBins, condense
from mmcalib.metrics.bins.stratified_bins import StratifiedBins
from mmcalib.metrics.bootstrap_intervals import gap_intervals, intervals
from mmcalib.metrics.metric_definitions import (
    NAMES,
    RANKS,
    SUMS,
    OfBins,
    OfCurves,
    OfDistribution,
    OfMean,
    definition_of,
)
from mmcalib.metrics.protocol_groups import ProtocolGroups
from mmcalib.metrics.refinement import FoldedCurves
from mmcalib.metrics.saved_statistics import CalibrationStatistics
from mmcalib.metrics.segmentation_protocols import PROTOCOLS
from mmcalib.samples.boundary_distance import RANGE_NAMES
from mmcalib.samples.predictions import Prediction


class CalibrationState:
    """Counts predictions: any split of them, merged in any order, gives the same figures.

    Knows nothing of toolboxes, samplers and ranks. Each image leaves one small row: its place in
    the data set, its bins and some sums. What is too large for that, narrow bins and those of all
    classes, is kept for all images together, or for those that a protocol computes
    errors of together. ::

        state = CalibrationState(['ECE', 'AECE'])
        for number, prediction in enumerate(predictions):
            state.update(prediction, index=number)
        values = state.merge(another).compute()

    Args:
        metrics: Some of :data:`~mmcalib.metrics.metric_definitions.NAMES`.
        num_bins: B.
        convention: Name of the convention of binning.
        protocol: Name of the segmentation protocol, which says what errors are averaged over; its
            region is up to the predictions.
        keep_bins: Keep the narrow bins that diagrams of any number of bins are drawn from.
        per_class: Count the predictions of each class apart, all that the protocol has together.
        per_distance: Likewise those in each range of distance from a boundary.
        per_object: Keep the objects of segmented images.
        exact_limit: Up to how many confidences AECE is exact; a million if None.

    Raises:
        TypeError: If `num_bins` is no integer.
        ValueError: If an option is none of those there are, or the convention lacks a metric.
    """

    def __init__(
        self,
        metrics: Sequence[str],
        *,
        num_bins: int = 15,
        convention: str = 'mmcalib',
        protocol: str = 'pooled',
        keep_bins: bool = False,
        per_class: bool = False,
        per_distance: bool = False,
        per_object: bool = False,
        exact_limit: int | None = None,
    ) -> None:
        metrics = (metrics,) if isinstance(metrics, str) else tuple(metrics)
        if not metrics:
            raise ValueError(f'metrics must be some of {NAMES}, got none')
        self._definitions = {name: definition_of(name) for name in metrics}
        check_integer('num_bins', num_bins)
        check_choice('convention', convention, CONVENTIONS)
        check_choice('protocol', protocol, PROTOCOLS)
        missing = sorted(set(metrics) & set(CONVENTIONS[convention].missing))
        if missing:
            raise ValueError(f'{convention} has no {", ".join(missing)}: leave it out')
        self.options = dict(
            metrics=metrics,
            num_bins=num_bins,
            convention=convention,
            protocol=protocol,
            keep_bins=keep_bins,
            per_class=per_class,
            per_distance=per_distance,
            per_object=per_object,
            exact_limit=exact_limit,
        )
        self.metrics = metrics
        self.num_bins = num_bins
        self._convention = CONVENTIONS[convention]
        self._protocol = PROTOCOLS[protocol]
        self._large = {
            name: definition
            for name, definition in self._definitions.items()
            if isinstance(definition, OfDistribution)
        }
        # Of each image, in the order of the updates: its place in the data set, bins and sums;
        # where errors are those of single images, the value and bound of each metric that these do
        # not tell; and the table that tells images apart, of which nobody can say without labels
        # what a protocol leaves out of it.
        self._rows = {
            'places': GrowingArray(dtype=torch.int64),
            'bins': GrowingArray(3, self._convention.num_columns(num_bins)),
            'sums': GrowingArray(len(SUMS)),
        }
        if self._protocol.group == 1:
            self._rows['large'] = GrowingArray(len(self._large), 2)
        if keep_bins and self._protocol.region is None:
            self._rows['image_narrow_bins'] = GrowingArray(3, NUM_NARROW_BINS, dtype=torch.int32)
        # Those of each class, and objects: as many as the images have, each with its place.
        self._of_classes: ClassImageBins | None = None
        if keep_bins and per_class and self._protocol.region is None:
            self._of_classes = ClassImageBins()
        self._objects = GrowingArray(6) if per_object else None
        self._groups = ProtocolGroups(
            self._protocol.group,
            list(self._large.values()),
            num_bins,
            self._convention,
            keep_bins=keep_bins,
            exact_limit=exact_limit,
        )
        # Where all images are one group, its narrow bins serve for diagrams too.
        self._all_bins: ConfidenceBins | None = None
        if keep_bins and self._protocol.group is not None:
            self._all_bins = ConfidenceBins(exact_limit=exact_limit)
        # Of all images together: where these are averaged, each counts as one prediction.
        self._curves: FoldedCurves | None = None
        if any(isinstance(d, OfCurves) for d in self._definitions.values()):
            self._curves = FoldedCurves()
        # By what each prediction has of them.
        strata = {'predicted': per_class, 'distance': per_distance}
        self._strata = {
            name: StratifiedBins(num_bins, self._convention) for name in strata if strata[name]
        }

    @property
    def wanted(self) -> frozenset[str]:
        """The fields that predictions must have beside confidence and correctness."""
        definitions = self._definitions.values()
        found = {d.sum for d in definitions if isinstance(d, OfMean)} & {'nll', 'brier'}
        if any(d.of_classes for d in self._large.values()):
            found.add('classes')
        if self._curves is not None:
            found.add('nll_curve')
        if self._convention.positive_of_two:
            found.add('predicted')
        elif any(d.distribution == RANKS for d in self._large.values()):
            found.add('doubt')
        if self._of_classes is not None:
            found |= {'predicted', 'label', 'own'}
        if self._objects is not None:
            found.add('objects')
        return frozenset(found.union(self._strata))

    @property
    def floor(self) -> float:
        """Down to which the probabilities of all classes must be listed."""
        floors = [d.distribution for d in self._large.values()]
        floors = [floor for floor in floors if isinstance(floor, float)]
        return min([floor_of(self.num_bins), *floors])

    @property
    def num_images(self) -> int:
        """The number of updates."""
        return len(self._rows['places'])

    @property
    def num_predictions(self) -> int:
        """The number of predictions in them."""
        return int(self.image_bins()[:, 0].sum())

    def _check(self, prediction: Prediction) -> None:
        """Raise a ValueError for predictions that lack what a metric needs, or are none."""
        # Without doubt, predictions are ranked by their confidence.
        wanted = sorted(self.wanted - {'doubt'})
        lacking = [name for name in wanted if getattr(prediction, name) is None]
        if lacking:
            raise ValueError(
                f'the prediction has no {", ".join(lacking)}, but {", ".join(self.metrics)} with '
                f'these options require {", ".join(wanted)}: see the attribute `wanted`'
            )
        check_range(prediction.conf, 'conf')

    def update(self, prediction: Prediction, *, index: int | None = None) -> CalibrationState:
        """Count the predictions of an image, and return self.

        Args:
            prediction: Of at least what :attr:`wanted` says.
            index: The place of the image in the data set; the number of those before if None. It
                matters for what is computed in the order of the data set: the batches of the
                protocol ``'paper'``, and the draws of intervals.

        Raises:
            ValueError: If the prediction lacks one of :attr:`wanted`, or a confidence is NaN or
                outside [0, 1].
        """
        self._check(prediction)
        index = self.num_images if index is None else index
        conf, correct = prediction.conf, prediction.correct
        large = self._count(prediction, index)
        if self._curves is not None and len(conf):
            weight = 1 if self._protocol.group == 1 else len(conf)
            curve = prediction.nll_curve * (weight / len(conf))
            self._curves.add([index], curve[None], torch.tensor([weight]))
        self._append(
            [index],
            self.bins_of(prediction)[None],
            (correct.sum(), conf.sum(dtype=torch.float64), prediction.nll, prediction.brier),
            lambda: count_in_narrow_bins(conf, correct, prediction.left_out)[None],
        )
        if large is not None:
            self._rows['large'].append(large[None])
        self._count_classes(prediction, torch.tensor(index))
        if self._objects is not None:
            rows = prediction.objects
            self._objects.append(torch.cat([rows.new_full((len(rows), 1), index), rows], dim=1))
        return self

    def update_each(self, predictions: Prediction, *, places: Sequence[int]) -> CalibrationState:
        """Count predictions that are of an image each, as :meth:`update` would one by one.

        Args:
            predictions: Of at least what :attr:`wanted` says, with `nll` and `brier` of each.
            places: Of their images in the data set.

        Raises:
            ValueError: As :meth:`update`; if the protocol takes images apart, or `nll` or `brier`
                is a sum.
        """
        self._check(predictions)
        if self._protocol.group is not None:
            raise ValueError('images that a protocol divides are counted by update()')
        own = predictions.nll, predictions.brier
        if any(v is not None and v.shape != (len(places),) for v in own):
            raise ValueError('nll and brier must be given for each prediction, not as sums')
        self._count(predictions)
        if self._curves is not None:
            self._curves.add(places, predictions.nll_curve, torch.ones(len(places)))
        conf, correct = predictions.conf, predictions.correct
        self._append(
            places,
            bins_of_each(*self._binned(predictions), self.num_bins, convention=self._convention),
            (correct, conf, *own),
            lambda: narrow_bins_of_each(conf, correct),
        )
        self._count_classes(predictions, torch.tensor(places))
        return self

    def merge(self, other: CalibrationState) -> CalibrationState:
        """Add everything that `other` holds, and return self.

        Raises:
            ValueError: If it has other options.
        """
        if other.options != self.options:
            raise ValueError(f'states differ in their options: {self.options}, {other.options}')
        for name, rows in self._rows.items():
            rows.append(other._rows[name].rows)
        self._groups.merge(other._groups)
        if self._curves is not None:
            self._curves.merge(other._curves)
        if self._all_bins is not None:
            self._all_bins.merge(other._all_bins)
        for name, bins in self._strata.items():
            bins.merge(other._strata[name])
        if self._of_classes is not None:
            self._of_classes.merge(other._of_classes)
        if self._objects is not None:
            self._objects.append(other._objects.rows)
        return self

    def compute(self) -> dict[str, float]:
        """Return the value of each metric, and ``…_bound`` for those that may be off by as much.

        All are in percent but for ``NLL``, its parts, ``Brier`` and its parts, and NaN without
        predictions.
        """
        bins, sums, large = self._units()
        once = torch.ones(1, len(bins), dtype=torch.float64)
        values = {name: value.item() for name, value in self._estimate(bins, sums, once).items()}
        for name, definition in self._definitions.items():
            if isinstance(definition, OfCurves):
                values[name] = definition.value(self._curves)
        bounds = {}
        for name, column in zip(self._large, large.unbind(1), strict=True):
            value, bound = column.unbind(1)
            exact = bound.isnan().all()
            if self._protocol.group is not None:
                count = bins[:, 0].sum(dim=-1)
                bound = torch.where(value.isnan(), torch.nan, bound.nan_to_num(0))
                value, bound = (self._mean(v, count, once) for v in (value, bound))
            values[name] = value.item()
            if not exact:
                bounds[f'{name}_bound'] = bound.item()
        return {name: values[name] for name in self.metrics} | bounds

    def intervals(
        self, *, coverage: float, num_bootstrap: int = 1000, seed: int = 0
    ) -> dict[str, tuple[float, float]]:
        """Return bootstrap intervals over images, of the metrics that rows suffice for.

        NaN where all predictions are of one image, or of one batch of the protocol ``'paper'``.
        Arguments are those of :func:`~mmcalib.metrics.bootstrap_intervals.intervals`.
        """
        bins, sums, _ = self._units()
        filled = bins[:, 0].sum(dim=1) > 0
        bins, sums = bins[filled], sums[filled]
        own = {n: d for n, d in self._definitions.items() if isinstance(d, (OfBins, OfMean))}
        options = dict(
            coverage=coverage,
            num_bootstrap=num_bootstrap,
            seed=seed,
            limits={name: (metric.lowest, metric.highest) for name, metric in own.items()},
        )
        bounds = intervals(partial(self._estimate, bins, sums), len(bins), **options)
        if self._protocol.group is None:
            gaps = {n: d.value for n, d in own.items() if isinstance(d, OfBins) and d.of_gaps}
            bounds |= gap_intervals(gaps, bins, **options)
        return {name: bounds[name] for name in own}

    def statistics(self, values: dict[str, float]) -> CalibrationStatistics:
        """Return the statistics that later tools draw, beside the printed numbers.

        Raises:
            ValueError: If the narrow bins were not to be kept.
        """
        if not self.options['keep_bins']:
            raise ValueError('this state keeps no bins for diagrams: create it with keep_bins=True')
        narrow_bins = self._all_bins or self._groups.narrow_bins
        bins = self.image_bins()
        return CalibrationStatistics(
            metrics=values,
            protocol=self.options['protocol'],
            convention=self.options['convention'],
            num_bins=self.num_bins,
            narrow_bins=condense(narrow_bins.table()),
            image_bins=bins if len(bins) else None,
            image_narrow_bins=self.image_narrow_bins() if len(bins) else None,
            class_bins=self.class_bins(),
            distance_bins=self.distance_bins(),
            **self._class_table(),
            objects=self.objects(),
        )

    def _class_table(self) -> dict[str, Tensor]:
        """Return what is counted of each class in each image, for the statistics."""
        if self._of_classes is None:
            return {}
        return dict(zip(('image_class', 'image_class_bins'), self._of_classes.table(), strict=True))

    def objects(self) -> Tensor | None:
        """Return the ``(O, 6)`` objects, in the order of the data set, None if they were not kept.

        Each with the place of its image, and then as in :class:`Prediction`.
        """
        if self._objects is None:
            return None
        return self._objects.rows[self._objects.rows[:, 0].argsort(stable=True)]

    def curve_notes(self) -> list[str]:
        """Return what is amiss with the temperatures of the metrics that have any, in words."""
        if self._curves is None:
            return []
        return self._curves.notes(crossed=not NLL_PARTS.isdisjoint(self.metrics))

    def class_bins(self) -> Tensor | None:
        """Return the ``(3, K, B)`` bins of the predictions of each class, None if not counted."""
        bins = self._strata.get('predicted')
        return bins and bins.table

    def distance_bins(self) -> Tensor | None:
        """Return the ``(3, D, B)`` bins of each range of distance, None if not counted."""
        bins = self._strata.get('distance')
        return bins and bins.table

    def bins_of(self, prediction: Prediction) -> Tensor:
        """Return the ``(3, B)`` bins of equal width of an image, which is not counted."""
        conf, correct = self._binned(prediction)
        return equal_width_bins(conf, correct, self.num_bins, convention=self._convention)

    def bins_of_last(self, count: int) -> Tensor:
        """Return the ``(count, 3, B)`` bins of equal width of the images that came last."""
        return self._rows['bins'].rows[self.num_images - count :]

    def image_bins(self) -> Tensor:
        """Return the ``(n, 3, B)`` bins of each image, in the order of the data set."""
        return self._in_order('bins')

    def image_narrow_bins(self) -> Tensor | None:
        """Return the ``(n, 3, C)`` narrow bins of each image, likewise, None if not counted."""
        return self._in_order('image_narrow_bins') if 'image_narrow_bins' in self._rows else None

    def _binned(self, prediction: Prediction) -> tuple[Tensor, Tensor]:
        """Return the confidences that are binned, and whether they came true."""
        conf, correct = prediction.conf, prediction.correct
        if self._convention.positive_of_two and prediction.num_classes == 2:
            positive = prediction.predicted == 1
            return torch.where(positive, conf, 1 - conf), correct == positive
        return conf, correct

    def _count(self, prediction: Prediction, index: int | None = None) -> Tensor | None:
        """Count what is not kept by image; return the values of one that is a group of its own."""
        conf, correct = self._binned(prediction)
        if self._convention.positive_of_two:
            prediction = prediction._replace(doubt=None)
        if self._all_bins is not None:
            self._all_bins.add(conf, correct)
        for name, bins in self._strata.items():
            number = prediction.num_classes if name == 'predicted' else len(RANGE_NAMES)
            bins.add(getattr(prediction, name), number, prediction.conf, prediction.correct)
        return self._groups.add(conf, correct, prediction, index=index)

    def _count_classes(self, prediction: Prediction, places: Tensor) -> None:
        """Count predictions of images at these places by their classes, if that is wanted."""
        if self._of_classes is not None:
            fields = ('predicted', 'label', 'conf', 'own')
            values = {name: getattr(prediction, name) for name in fields}
            self._of_classes.add(places, prediction.num_classes, **values)

    def _append(
        self,
        places: Sequence[int],
        bins: Tensor,
        sums: Sequence[Tensor | None],
        image_narrow_bins: Callable[[], Tensor],
    ) -> None:
        """Append the rows of images: ``(n, 3, B)`` bins, each of ``SUMS``, and their bins."""
        self._rows['places'].append(torch.tensor(places))
        self._rows['bins'].append(bins)
        total = torch.zeros(len(places), len(SUMS), dtype=torch.float64)
        for column, values in zip(total.unbind(1), sums, strict=True):
            if values is not None:
                column.copy_(values)
        self._rows['sums'].append(total)
        if 'image_narrow_bins' in self._rows:
            self._rows['image_narrow_bins'].append(image_narrow_bins())

    def _in_order(self, name: str) -> Tensor:
        """Return one of the rows of the images, in the order of the data set."""
        return self._rows[name].rows[self._rows['places'].rows.argsort(stable=True)]

    def _units(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return ``(U, 3, B)`` bins, ``(U, S)`` sums and ``(U, L, 2)`` values and bounds.

        Units are what is averaged, and drawn by the bootstrap: images, or batches of them. Where
        images are pooled, there is one value for all of them.
        """
        bins, sums = self._in_order('bins'), self._in_order('sums')
        if self._protocol.group is None:
            return bins, sums, self._groups.values()[None]
        if self._protocol.group == 1:
            return bins, sums, self._in_order('large')
        keys, unit = (self._in_order('places') // self._protocol.group).unique(return_inverse=True)
        bins = bins.new_zeros(len(keys), *bins.shape[1:]).index_add_(0, unit, bins)
        sums = sums.new_zeros(len(keys), sums.shape[1]).index_add_(0, unit, sums)
        large = torch.zeros(len(keys), len(self._large), 2, dtype=torch.float64)
        if large.numel():
            large = torch.stack([self._groups.values(key) for key in keys.tolist()])
        return bins, sums, large

    def _estimate(self, bins: Tensor, sums: Tensor, weights: Tensor) -> dict[str, Tensor]:
        """Return the ``(R,)`` metrics of rows for ``(R, U)`` weights of the units."""
        pooled = self._protocol.group is None
        if pooled:
            bins = (weights @ bins.flatten(1)).view(len(weights), *bins.shape[1:])
            sums = weights @ sums
        count = bins[:, 0].sum(dim=-1)
        values = {}
        for name, definition in self._definitions.items():
            if isinstance(definition, OfBins):
                values[name] = definition.value(bins)
            elif isinstance(definition, OfMean):
                total = sums[:, SUMS.index(definition.sum)]
                values[name] = definition.factor * total / count
            else:
                continue
            if not pooled:
                values[name] = self._mean(values[name], count, weights)
        return values

    def _mean(self, values: Tensor, count: Tensor, weights: Tensor) -> Tensor:
        """Average ``(U,)`` values for ``(R, U)`` weights of units; what is NaN drops out.

        That is every value of an empty unit, and the AUROC of one without errors.
        """
        share = count if self._protocol.by_pixels else torch.ones_like(count)
        share = torch.where(values.isnan(), 0, share)
        return weights @ (share * values.nan_to_num(0)) / (weights @ share)
