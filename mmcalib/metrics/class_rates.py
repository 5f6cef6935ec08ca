"""How often each class is predicted on average, beside how often it occurs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

# A difference counts from so many standard errors, and so many points, on.
DISTINCT = 2.0
LEAST_POINTS = 1.0
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
    """

    probs: list[float]
    frequencies: list[float]
    standard_errors: list[float]

    @classmethod
    def from_totals(cls, totals: Tensor) -> ClassRates:
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

    def sentences(self, names: Sequence[object] | None = None) -> list[str]:
        """Return a sentence on the classes whose rates differ; none if there are none.

        Args:
            names: Names of the classes; None for their numbers.
        """
        differing = self.differing
        if not differing:
            return []
        if len(self.probs) == 2:
            return [
                f'P(y = 1) is {self.probs[1]:.1f} % on average, and {self.frequencies[1]:.1f} % of '
                'the labels are 1: a temperature cannot mend that, platt or auto can.'
            ]
        parts = []
        for index in differing[:MOST_NAMES]:
            name = index if names is None else names[index]
            parts.append(f'{name} ({self.probs[index]:.1f} and {self.frequencies[index]:.1f} %)')
        if len(differing) > MOST_NAMES:
            parts.append(f'{len(differing) - MOST_NAMES} more')
        noun = 'class' if len(differing) == 1 else 'classes'
        return [
            f'The mean probability differs from the frequency of the {noun} {", ".join(parts)}: a '
            'temperature cannot mend that, vector or auto can.'
        ]
