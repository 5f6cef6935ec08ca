"""Failure detection: functions of arrays of probabilities, numpy or torch, in one call each.

Arguments and errors are those of
:func:`~mmcalib.metrics.functional.calibration_error.expected_calibration_error`.
"""

from __future__ import annotations

import numpy as np  # noqa: F401  the examples use it

from mmcalib.arrays import A
from mmcalib.metrics.functional.calibration_error import measure


def area_under_risk_coverage(
    probs: A = None,
    labels: A = None,
    *,
    conf: A = None,
    correct: A = None,
    ignore_index: int | None = None,
) -> float:
    r"""Return the area under the risk–coverage curve, AURC, in percent.

    .. math:: \frac1N \sum_{i=1}^N \frac{E_i}{i}

    for :math:`E_i` errors among the i most confident predictions, the mean over the orders of those
    that are tied. 0 if all are right, 100 if all are wrong, NaN of no predictions.

    >>> conf, correct = np.array([0.9, 0.8, 0.7, 0.6]), np.array([True, False, True, False])
    >>> round(area_under_risk_coverage(conf=conf, correct=correct), 6)
    33.333333

    Source: Geifman, Uziel and El-Yaniv, Bias-Reduced Uncertainty Estimation for Deep Neural
    Classifiers, ICLR 2019.
    """
    return measure('AURC', probs, labels, conf, correct, ignore_index=ignore_index)


def area_under_generalized_risk_coverage(
    probs: A = None,
    labels: A = None,
    *,
    conf: A = None,
    correct: A = None,
    ignore_index: int | None = None,
) -> float:
    r"""Return the area under the generalized risk–coverage curve, AUGRC, in percent.

    .. math:: \frac1N \sum_{i=1}^N \frac{E_i}{N}

    for :math:`E_i` errors among the i most confident predictions, the mean over the orders of those
    that are tied. 0 if all are right, :math:`50 (1 + 1/N)` if all are wrong.

    >>> conf, correct = np.array([0.9, 0.8, 0.7, 0.6]), np.array([True, False, True, False])
    >>> area_under_generalized_risk_coverage(conf=conf, correct=correct)
    25.0

    Source: Traub et al., Overcoming Common Flaws in the Evaluation of Selective Classification
    Systems, NeurIPS 2024.
    """
    return measure('AUGRC', probs, labels, conf, correct, ignore_index=ignore_index)


def failure_auroc(
    probs: A = None,
    labels: A = None,
    *,
    conf: A = None,
    correct: A = None,
    ignore_index: int | None = None,
) -> float:
    r"""Return the AUROC of failure detection, in percent.

    .. math:: P(\mathrm{conf}_r > \mathrm{conf}_w) + \tfrac12 P(\mathrm{conf}_r = \mathrm{conf}_w)

    for a right prediction r and a wrong one w. NaN if all are right, or all wrong.

    >>> conf, correct = np.array([0.9, 0.8, 0.7, 0.6]), np.array([True, False, True, False])
    >>> failure_auroc(conf=conf, correct=correct)
    75.0

    Source: Hendrycks and Gimpel, A Baseline for Detecting Misclassified and Out-of-Distribution
    Examples, ICLR 2017.
    """
    return measure('AUROC', probs, labels, conf, correct, ignore_index=ignore_index)


def failure_fpr95(
    probs: A = None,
    labels: A = None,
    *,
    conf: A = None,
    correct: A = None,
    ignore_index: int | None = None,
) -> float:
    r"""Return the share of wrong predictions accepted with 95 % of the right ones, in percent.

    Most confident first, until as many right ones are accepted; of those that are tied in the mean
    over their orders. NaN if all are right, or all wrong.

    >>> conf, correct = np.array([0.9, 0.8, 0.7, 0.6]), np.array([True, False, True, False])
    >>> failure_fpr95(conf=conf, correct=correct)
    50.0

    Source: Hendrycks and Gimpel, ICLR 2017.
    """
    return measure('FPR95', probs, labels, conf, correct, ignore_index=ignore_index)


def risk_at_coverage(
    probs: A = None,
    labels: A = None,
    *,
    conf: A = None,
    correct: A = None,
    coverage: float,
    ignore_index: int | None = None,
) -> float:
    r"""Return the error rate among the most confident predictions, in percent.

    .. math:: \frac{E_i}{i}, \qquad i = \lceil \mathrm{coverage} \cdot N \rceil

    for :math:`E_i` errors among the i most confident predictions, the mean over the orders of those
    that are tied.

    >>> conf, correct = np.array([0.9, 0.8, 0.7, 0.6]), np.array([True, False, True, False])
    >>> risk_at_coverage(conf=conf, correct=correct, coverage=0.5)
    50.0

    Other arguments and errors are those of
    :func:`~mmcalib.metrics.functional.calibration_error.expected_calibration_error`.

    Args:
        coverage: Share of the predictions that are accepted, in (0, 1).
    """
    return measure(
        f'risk@coverage_{coverage}', probs, labels, conf, correct, ignore_index=ignore_index
    )


def coverage_at_risk(
    probs: A = None,
    labels: A = None,
    *,
    conf: A = None,
    correct: A = None,
    risk: float,
    ignore_index: int | None = None,
) -> float:
    r"""Return the share of predictions that can be accepted at an error rate, in percent.

    .. math:: \frac1N \max \{ i : E_i / i \leq \mathrm{risk} \}

    for :math:`E_i` errors among the i most confident predictions, as many as are expected of those
    that are tied. 0 if the risk is above that at every coverage.

    >>> conf, correct = np.array([0.9, 0.8, 0.7, 0.6]), np.array([True, False, True, False])
    >>> coverage_at_risk(conf=conf, correct=correct, risk=0.4)
    75.0

    Other arguments and errors are those of
    :func:`~mmcalib.metrics.functional.calibration_error.expected_calibration_error`.

    Args:
        risk: The error rate that is allowed, in (0, 1).
    """
    return measure(f'coverage@risk_{risk}', probs, labels, conf, correct, ignore_index=ignore_index)
