"""Which values of a sweep may be the best one, given the noise of the validation."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import variance

import torch
from torch import Tensor

from mmcalib.metrics.calibration_errors import calibration_error
from mmcalib.metrics.intervals import bootstrap_weights, widening_factors

COVERAGE = 0.95
NUM_BOOTSTRAP = 1000


def may_be_best(
    errors: Sequence[Sequence[float]], tables: Sequence[Sequence[Tensor]] | None, *, seed: int = 0
) -> list[bool] | None:
    r"""Return for each value whether its error is within the noise of the least one.

    The best value is among these with a probability of 95 %. A value v is left out if the error
    :math:`E` of another one is lower by more than noise explains:

    .. math:: \max_w \frac{E_v - E_w}{\sigma_{vw}} > q, \qquad
        P\Big(\max_w \frac{z_v - z_w}{\sigma_{vw}} \leq q\Big) = 0.95

    for noise z of a value's mean error, and the standard deviation :math:`\sigma_{vw}` of
    :math:`z_v - z_w`. The noise has two parts: of the images, by a bootstrap that draws the same
    images for all values, and of the trainings, by the variance between seeds, which is pooled over
    values. Of one training of each value, the second is unknown and left out.

    Source: Gupta, On some multiple decision (selection and ranking) rules, Technometrics, 1965;
    with a bootstrap, the model confidence set of Hansen, Lunde and Nason, Econometrica, 2011.

    Args:
        errors: The ECE of each training, in percent, by values.
        tables: Of the same trainings, ``(n, 3, B)`` bins of the same n images: count, correct, sum
            of confidences; None if they are not known.
        seed: Seed of the noise.

    Returns:
        None if there is neither kind of noise to go by.
    """
    means = torch.tensor(
        [sum(each) / len(each) for each in errors], dtype=torch.float64, device='cpu'
    )
    noise = torch.zeros(NUM_BOOTSTRAP, len(errors), dtype=torch.float64, device='cpu')
    degrees = sum(len(each) - 1 for each in errors)
    if tables is not None:
        noise += _noise_of_images(tables, seed)
    if degrees:
        noise += _noise_of_trainings(errors, degrees, seed)
    if tables is None and not degrees:
        return None
    # Of values v and w, as of the same trainings: no difference has no noise.
    differences = noise[:, :, None] - noise[:, None, :]
    spread = differences.square().mean(dim=0).sqrt()
    known = spread > 0
    scale = torch.where(known, spread, 1.0)
    limits = (differences / scale).amax(dim=2).quantile(COVERAGE, dim=0)
    observed = means[:, None] - means
    excess = torch.where(known, observed / scale, torch.where(observed > 0, torch.inf, 0.0))
    return (excess.amax(dim=1) <= limits).tolist()


def _noise_of_images(tables: Sequence[Sequence[Tensor]], seed: int) -> Tensor:
    """Return how the mean errors of values vary with the images, ``(R, V)``."""
    num_images = len(tables[0][0])
    parts = []
    for weights in bootstrap_weights(num_images, num_bootstrap=NUM_BOOTSTRAP, seed=seed):
        columns = []
        for trainings in tables:
            drawn = [(weights @ t.flatten(1)).view(-1, *t.shape[1:]) for t in trainings]
            columns.append(sum(map(calibration_error, drawn)) / len(trainings))
        parts.append(torch.stack(columns, dim=1))
    draws = torch.cat(parts)
    factors = widening_factors(num_images, NUM_BOOTSTRAP, seed)[:, None]
    return factors * (draws - draws.mean(dim=0))


def _noise_of_trainings(errors: Sequence[Sequence[float]], degrees: int, seed: int) -> Tensor:
    """Return how the mean errors of values vary with the seeds, ``(R, V)``."""
    squares = sum(variance(each) * (len(each) - 1) for each in errors if len(each) > 1)
    counts = torch.tensor([len(each) for each in errors], dtype=torch.float64, device='cpu')
    generator = torch.Generator().manual_seed(seed)
    normal = torch.randn(
        NUM_BOOTSTRAP, len(errors), generator=generator, dtype=torch.float64, device='cpu'
    )
    # A variance of few trainings is itself uncertain, as in Student's t.
    factors = (
        widening_factors(degrees + 1, NUM_BOOTSTRAP, seed)[:, None]
        * (degrees / (degrees + 1)) ** 0.5
    )
    return factors * normal * (squares / degrees / counts).sqrt()
