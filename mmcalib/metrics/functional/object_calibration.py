"""From the score of an object to how often such objects are right, and how well they fit."""

from __future__ import annotations

import numpy as np

from mmcalib.arrays import Array, floats_of
from mmcalib.checks import check_range

RIGHT = 0.5  # above which IoU an object counts as found


class ObjectCalibration:
    r"""Calibrates the scores of objects on a validation, by two isotonic regressions.

    One is of the objects' :math:`[\mathrm{IoU} > 0.5]`: of those to which it gives 0.8, 80 % are
    found. The other is of the IoU itself: those to which it gives 0.8 have one of 0.8 on average.
    All classes have the same curves. Between two scores of the validation a curve is a line, and
    level beyond the ends.

    Source: Zadrozny and Elkan, KDD 2002.

    Args:
        scores: ``(O,)`` such as the expected IoUs of :func:`~mmcalib.samples.objects.find_objects`.
        ious: ``(O,)`` of :func:`~mmcalib.samples.objects.object_ious`; NaN leaves an object out.

    Attributes:
        num_objects: How many objects had an IoU.

    Raises:
        ValueError: If none had, or the arrays do not fit each other.
    """

    def __init__(self, scores: Array, ious: Array) -> None:
        from sklearn.isotonic import IsotonicRegression  # takes a second to import, few need it

        scores, ious = (floats_of(*x).numpy() for x in (('scores', scores), ('ious', ious)))
        if scores.ndim != 1 or ious.shape != scores.shape:
            raise ValueError(f'scores and ious must be (O,), got {scores.shape} and {ious.shape}')
        known = ~np.isnan(ious)
        self.num_objects = int(known.sum())
        if not self.num_objects:
            raise ValueError(
                f'none of the {len(ious)} objects has a labelled pixel: validate on images whose '
                'predictions have objects'
            )
        check_range(floats_of('ious', ious[known]), 'ious')
        targets = (ious[known] > RIGHT).astype(float), ious[known].astype(float)
        self._right, self._iou = (
            IsotonicRegression(out_of_bounds='clip').fit(scores[known], target)
            for target in targets
        )

    def __call__(self, scores: Array) -> tuple[np.ndarray, np.ndarray]:
        """Return the probability of an IoU above 0.5, and the IoU to expect, of each score."""
        scores = floats_of('scores', scores).numpy()
        if not len(scores):
            return np.zeros(0), np.zeros(0)
        return self._right.predict(scores), self._iou.predict(scores)
