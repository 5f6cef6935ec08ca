"""The parts of the NLL that a temperature removes and does not, from curves that add up."""

from __future__ import annotations

import math

import numpy as np
from torch import Tensor

from mmcalib.metrics.counts import BETAS


def least_nll(curve: Tensor, count: float) -> float:
    r"""Return the NLL at the best temperature, in nats, which no temperature removes.

    .. math:: \min_{T \in [1/16, 16]} \frac1N \sum_i \mathrm{NLL}_i(T)

    of all predictions: the temperature is one number, so it is too good for them by about
    1 / (2 N) nats.

    Source: Berta, Holzmüller, Jordan and Bach, Rethinking Early Stopping: Refine, Then Calibrate,
    arXiv:2501.19195; they take the temperature of a part of the predictions from the others.

    Args:
        curve: ``(33,)`` sums of the NLL at each of ``BETAS``.
        count: N.
    """
    return _least(curve)[1] / count


def removable_nll(curve: Tensor, count: float) -> float:
    """Return the NLL less :func:`least_nll`, in nats: the part that a temperature removes."""
    return curve[BETAS.index(1.0)].item() / count - least_nll(curve, count)


def temperature(curve: Tensor, count: float) -> float:
    """Return the temperature of the least NLL: above 1 the predictions are over-confident."""
    return math.exp(-_least(curve)[0])


def _least(curve: Tensor) -> tuple[float, float]:
    """Return where in log β a cubic spline through the curve is least, and its value there."""
    from scipy.interpolate import CubicSpline  # takes a moment to import, and few need it

    places = np.log(BETAS)
    spline = CubicSpline(places, curve.double().numpy())
    inner = spline.derivative().roots(extrapolate=False)
    found = [(max(float(spline(place)), 0.0), -place) for place in (*places, *inner)]
    value, place = min(found)  # of equals the sharpest, as where all are right
    return -place, value
