"""How often each class is predicted on average, beside how often it occurs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mmcalib.metrics.unit_tables import sum_rows
from mmcalib.predictions.image_predictions import ImagePredictions

# A difference counts from so many standard errors, and so many points, on.
DISTINCT = 2.0
# The mean probability of the other class is so much nearer to a frequency if both are exchanged.
EXCHANGED = 0.1
LEAST_POINTS = 1.0
# Sums are kept for each image and class, up to so many: 240 MB.
MOST_SUMS = 10_000_000
# A sentence names at most so many classes.
MOST_NAMES = 5


@dataclass(frozen=True)
class ClassRates:
    """The mean probability and the frequency of each of K classes, in percent.

    Attributes:
        probs: Mean probabilities.
        frequencies: Shares of the labels.
        standard_errors: Standard errors of the differences over independent units; NaN if these are
            not known.
        are_of_labels: Whether they are of K labels, of which an image may have any number.
    """

    probs: list[float]
    frequencies: list[float]
    standard_errors: list[float]
    are_of_labels: bool = False

    @classmethod
    def from_totals(cls, totals: Tensor, *, are_of_labels: bool = False) -> ClassRates:
        """Return the rates of a ``(U, 3, K)`` table: count, labels and sum of probabilities.

        A table of one unit has no standard errors.
        """
        count, labels, probs = totals.double().sum(dim=0)
        num_units = len(totals)
        if num_units > 1:
            gaps = totals[:, 2] - totals[:, 1]
            # Units differ in their number of predictions, so the mean gap is a ratio of sums.
            residuals = gaps - totals[:, 0] * ((probs - labels) / count)
            variance = residuals.square().sum(dim=0) * (num_units / (num_units - 1))
            errors = (100 * variance.sqrt() / count).tolist()
        else:
            errors = [math.nan] * len(count)
        return cls(
            probs=(100 * probs / count).tolist(),
            frequencies=(100 * labels / count).tolist(),
            standard_errors=errors,
            are_of_labels=are_of_labels,
        )

    @property
    def differing(self) -> list[int]:
        """The classes whose two rates differ, the largest difference first."""
        differences = {}
        for index, error in enumerate(self.standard_errors):
            difference = abs(self.probs[index] - self.frequencies[index])
            # The comparison is false for an error that is NaN.
            if difference > LEAST_POINTS and difference > DISTINCT * error:
                differences[index] = difference
        return sorted(differences, key=lambda index: -differences[index])

    def to_dict(self) -> dict[str, Any]:
        """Return the rates as lists of plain numbers."""
        return {
            'probs': self.probs,
            'frequencies': self.frequencies,
            'standard_errors': self.standard_errors,
        }

    @property
    def are_binary(self) -> bool:
        """Whether each is the rate of one of two classes, or of a label that is there or not."""
        return self.are_of_labels or len(self.probs) == 2

    @property
    def has_one_rate(self) -> bool:
        """Whether the rate of class 1 alone tells all, as of one sigmoid or of two classes."""
        return len(self.probs) == (1 if self.are_of_labels else 2)

    def sentences(self, remedy: str | None = None, *, names: Sequence[object] = ()) -> list[str]:
        """Return a sentence on the classes whose rates differ; none if there are none.

        Args:
            remedy: The end of the sentence, a remedy; None for the scalings that mend it.
            names: Names of the K classes; none for their numbers.
        """
        differing = self.differing
        if not differing:
            return []
        if self.has_one_rate:
            probs_of_classes = [f'P({name})' for name in names] or ['P(y = 0)', 'P(y = 1)']
            remedy = self._remedy_of_data(probs_of_classes[0]) or remedy
        if remedy is None:
            method = 'platt' if self.are_binary else 'vector'
            remedy = f'a temperature cannot mend that, {method} or auto can'
        if self.has_one_rate:
            share = f'{self.frequencies[-1]:.1f} % of the labels are {names[1] if names else 1}'
            end = '' if remedy.endswith('?') else '.'
            return [
                f'{probs_of_classes[1]} is {self.probs[-1]:.1f} % on average, and {share}: '
                f'{remedy}{end}'
            ]
        parts = []
        for index in differing[:MOST_NAMES]:
            name = names[index] if names else index
            parts.append(f'{name} ({self.probs[index]:.1f} and {self.frequencies[index]:.1f} %)')
        if len(differing) > MOST_NAMES:
            parts.append(f'{len(differing) - MOST_NAMES} more')
        noun = 'labels' if self.are_of_labels else 'classes'
        return [
            f'The mean probability is not the frequency of the {noun} {", ".join(parts)}: {remedy}.'
        ]

    def _remedy_of_data(self, other_prob: str) -> str | None:
        """Return what to ask of the data of two classes, None if they are as they should be.

        Args:
            other_prob: The text for the probability of class 0.
        """
        frequency = self.frequencies[-1]
        prob = self.probs[-1]
        if frequency in (0, 100):
            return 'measure on data with labels of both classes'
        if abs(100 - prob - frequency) < EXCHANGED * abs(prob - frequency):
            return f'is {other_prob}, {100 - prob:.1f} % on average, given in its place?'
        return None


class RateTally:
    """Sums of the probabilities and labels of each class by image, of predictions in parts."""

    def __init__(self) -> None:
        self._totals: list[tuple[Tensor, Tensor]] = []
        self._num_sums = 0
        self._several_labels = False

    def add(self, predictions: ImagePredictions) -> None:
        """Add labelled predictions of known images."""
        self._several_labels = predictions.several_labels
        images, image_index = predictions.images.unique(return_inverse=True)
        if predictions.several_labels:
            num_columns = predictions.labels.shape[1]
        else:
            num_columns = predictions.num_classes
        self._num_sums += len(images) * num_columns
        if self._num_sums > MOST_SUMS:
            self._totals.clear()
            return
        totals = torch.zeros(len(images), 3, num_columns, dtype=torch.float64, device='cpu')
        totals.index_add_(0, image_index, totals_of_entries(predictions))
        self._totals.append((images, totals))

    def rates(
        self, group_of_image: Tensor | None, gather: Callable[[Any], list]
    ) -> ClassRates | None:
        """Return the rates of all processes, None if the sums are too many.

        Args:
            group_of_image: The group of each image by its index, ``(n,)`` int64; None if every
                image is a group.
            gather: A function that returns a list of the values of all processes.
        """
        shares = gather((self._totals, self._num_sums, self._several_labels))
        entries = [entry for share, _, _ in shares for entry in share]
        if not entries or any(num_sums > MOST_SUMS for _, num_sums, _ in shares):
            return None
        images = torch.cat([image_index for image_index, _ in entries])
        totals = torch.cat([image_totals for _, image_totals in entries])
        if group_of_image is not None:
            images = group_of_image[images]
        totals = sum_rows(totals, images.unique(return_inverse=True)[1])
        is_filled = totals[:, 0].sum(dim=1) > 0
        are_of_labels = any(several_labels for _, _, several_labels in shares)
        return ClassRates.from_totals(totals[is_filled], are_of_labels=are_of_labels)


def totals_of_entries(predictions: ImagePredictions) -> Tensor:
    """Return count, labels and sum of the probabilities of each class of N entries, ``(N, 3, K)``.

    Of several labels it is ``(N, 3, L)``, of the probability that the label is present.
    """
    probs = predictions.class_probabilities()
    valid = predictions.valid
    if predictions.several_labels:
        is_label = predictions.labels == 1
        return torch.stack([valid, is_label, probs[:, 1] * valid], dim=1).double().cpu()
    num_entries, num_classes = probs.shape[:2]
    mask = valid.reshape(num_entries, 1, -1)
    probs = probs.reshape(num_entries, num_classes, -1)
    sum_of_probs = (probs * mask).sum(dim=2, dtype=torch.float64)
    entry, _, position = mask.nonzero(as_tuple=True)
    label = predictions.labels.reshape(num_entries, -1)[entry, position]
    label_count = torch.bincount(entry * num_classes + label, minlength=num_entries * num_classes)
    label_count = label_count.view(num_entries, num_classes).double()
    count = label_count.sum(dim=1, keepdim=True).expand_as(label_count)
    return torch.stack([count, label_count, sum_of_probs], dim=1).cpu()
