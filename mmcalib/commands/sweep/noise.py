"""Values of a sweep that may be the best one, given the noise of the validation."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import variance

import torch
from torch import Tensor

from mmcalib.metrics.intervals import bootstrap_weights, metric_values, widening_factors
from mmcalib.metrics.unit_tables import UnitTables

COVERAGE = 0.95
NUM_BOOTSTRAP = 1000


def may_be_best(
    errors: Sequence[Sequence[float]],
    tables: Sequence[Sequence[UnitTables]] | None,
    *,
    metric: str = 'NLL',
    seed: int = 0,
) -> list[bool] | None:
    r"""Return whether the error of each value is within the noise of the least one.

    The best value is among these with a probability of 95 %. A value v is left out if the error
    :math:`E` of another one is lower by more than noise explains:

    .. math:: \max_w \frac{E_v - E_w}{\sigma_{vw}} > q, \qquad
        P\Big(\max_w \frac{z_v - z_w}{\sigma_{vw}} \leq q\Big) = 0.95

    for noise z of a value's mean error, and the standard deviation :math:`\sigma_{vw}` of
    :math:`z_v - z_w`. The noise has two parts: that of the images, by a bootstrap that draws the
    same images for all values, and that of the trainings, by the variance between seeds, which is
    pooled over values. With one training of each value, the second is unknown and left out.

    Source: Gupta, On some multiple decision (selection and ranking) rules, Technometrics, 1965;
    with a bootstrap, the model confidence set of Hansen, Lunde and Nason, Econometrica, 2011.

    Args:
        errors: Metric of each training of each value, of which less is better.
        tables: Tables of the same n images for each of these trainings; None if they are not known.
        metric: Name of the metric.
        seed: Seed of the noise.

    Returns:
        A list with a truth value for each value; None if neither kind of noise is known.
    """
    means = torch.tensor(
        [sum(values) / len(values) for values in errors], dtype=torch.float64, device='cpu'
    )
    noise = torch.zeros(NUM_BOOTSTRAP, len(errors), dtype=torch.float64, device='cpu')
    degrees_of_freedom = sum(len(values) - 1 for values in errors)
    if tables is None and not degrees_of_freedom:
        return None
    if tables is not None:
        noise += image_noise(tables, metric, seed)
    if degrees_of_freedom:
        noise += training_noise(errors, degrees_of_freedom, seed)
    differences = noise[:, :, None] - noise[:, None, :]
    deviation = differences.square().mean(dim=0).sqrt()
    # Two values of the same trainings differ without noise, so that any difference decides.
    is_noisy = deviation > 0
    scale = torch.where(is_noisy, deviation, 1.0)
    limits = (differences / scale).amax(dim=2).quantile(COVERAGE, dim=0)
    observed = means[:, None] - means
    without_noise = torch.where(observed > 0, torch.inf, 0.0)
    excess = torch.where(is_noisy, observed / scale, without_noise)
    return (excess.amax(dim=1) <= limits).tolist()


def image_noise(tables: Sequence[Sequence[UnitTables]], metric: str, seed: int) -> Tensor:
    """Return the noise of the mean errors of V values over resampled images, ``(R, V)``."""
    num_images = len(tables[0][0].bins)
    parts = []
    for weights in bootstrap_weights(num_images, num_bootstrap=NUM_BOOTSTRAP, seed=seed):
        columns = []
        for trainings in tables:
            resampled_errors = [
                metric_values([metric], training, weights)[metric] for training in trainings
            ]
            columns.append(sum(resampled_errors) / len(trainings))
        parts.append(torch.stack(columns, dim=1))
    errors = torch.cat(parts)
    factors = widening_factors(num_images, NUM_BOOTSTRAP, seed)[:, None]
    return factors * (errors - errors.mean(dim=0))


def training_noise(errors: Sequence[Sequence[float]], degrees_of_freedom: int, seed: int) -> Tensor:
    """Return the noise of the mean errors of V values over seeds of trainings, ``(R, V)``."""
    squares = sum(variance(values) * (len(values) - 1) for values in errors if len(values) > 1)
    counts = torch.tensor([len(values) for values in errors], dtype=torch.float64, device='cpu')
    generator = torch.Generator().manual_seed(seed)
    normal = torch.randn(
        NUM_BOOTSTRAP, len(errors), generator=generator, dtype=torch.float64, device='cpu'
    )
    # A variance of few trainings is itself uncertain, as in Student's t.
    factors = widening_factors(degrees_of_freedom + 1, NUM_BOOTSTRAP, seed)[:, None]
    factors *= (degrees_of_freedom / (degrees_of_freedom + 1)) ** 0.5
    return factors * normal * (squares / degrees_of_freedom / counts).sqrt()
