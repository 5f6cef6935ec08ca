"""A temperature for each predicted class."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torch import Tensor

from mmcalib.checks import check_number
from mmcalib.posthoc.binned_temperatures import temperatures_of_bins
from mmcalib.posthoc.gaps_to_top import gaps_to_top, of_given_head
from mmcalib.posthoc.logit_scaler import LogitReader, LogitScaler


class PredictedClassTemperatureScaler(LogitScaler):
    r"""Divide the logits of a prediction by the temperature of its predicted class.

    .. math:: z'_k = (z_k - z_c) / T_c, \qquad c = \arg\max_k z_k

    which changes no argmax. With T the single temperature of the least NLL, those of the classes
    minimise

    .. math:: \sum_c \frac{N_c}{n_c} \sum_{i: c_i = c} \mathrm{NLL}_i
        + \lambda \sum_c (T / T_c - 1)^2

    where the :math:`n_c` predictions of a class, such as pixels of a few images, count as the
    number :math:`N_c` of independent ones that they amount to
    (:func:`~mmcalib.posthoc.effective_number.effective_number`). So a class that is rarely
    predicted, or in few images, hardly departs from T, and one that never is has T.

    Source: after Frenkel and Goldberger, Network Calibration by Class-based Temperature Scaling,
    2021; the penalty and its units are ours.

    Args:
        penalty: :math:`\lambda`, in effective predictions.

    Attributes:
        temperature_: ``(K,)``, within [0.01, 100]; of a sigmoid's logits (2,), of those that are
            not positive and of the positive ones.

    Raises:
        TypeError: If the penalty is no number.
        ValueError: If the penalty is negative or infinite.
    """

    learned = ('temperature',)
    keeps_argmax = True

    def __init__(self, *, penalty: float = 10.0) -> None:
        self.penalty = check_number('penalty', penalty)

    def _apply(self, logits: Tensor, learned: Mapping[str, Tensor]) -> Tensor:
        gaps, predicted = gaps_to_top(logits)
        return of_given_head(gaps / learned['temperature'][predicted].unsqueeze(1), logits)

    def _fit(self, read: LogitReader, groups: Tensor | None) -> None:
        num_classes = 0

        def with_predicted() -> Iterable[tuple[Tensor, Tensor, Tensor]]:
            nonlocal num_classes
            for logits, labels in read():
                gaps, predicted = gaps_to_top(logits.double())
                num_classes = gaps.shape[1]
                yield gaps, labels, predicted

        next(iter(with_predicted()))
        self.temperature_ = temperatures_of_bins(
            with_predicted, groups, num_bins=num_classes, penalty=self.penalty
        )
