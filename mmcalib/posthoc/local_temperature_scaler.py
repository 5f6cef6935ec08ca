"""A temperature for each pixel, out of a small network that sees the logits around it."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn.functional import conv2d, cross_entropy, pad

from mmcalib.checks import check_integer
from mmcalib.posthoc.gaps_to_top import gaps_to_top, of_given_head
from mmcalib.posthoc.map_scaler import IGNORED, LabelledMap, MapScaler, valid_rows
from mmcalib.posthoc.temperature_scaler import TemperatureScaler

CHANNELS = 16
# How far a pixel's temperature may be from the single one.
MOST_FACTOR = 4.0
# Share of the images whose NLL says when to stop.
HELD_OUT = 0.2
LEARNING_RATE = 3e-3
# Maps per step of the optimizer.
BATCH_SIZE = 4
# Epochs without a better NLL of the images held out.
PATIENCE = 10

# Gaps below it, in units of T, are of classes that are out of the question.
_LEAST_GAP = -16.0


class LocalTemperatureScaler(MapScaler):
    r"""Divide the logits of each pixel by a temperature that a small network predicts.

    .. math:: z'_k = (z_k - z_c) / T_x, \qquad T_x = T \cdot 4^{\tanh h_x(z)},
        \qquad c = \arg\max_k z_k

    which changes no argmax. T is the single temperature of the least NLL. The network h has three
    convolutions, of 3 × 3, of 3 × 3 with a dilation of 2, and of 1 × 1 pixels, with 16 channels and
    ReLU between them: it sees 7 × 7 pixels, of the gaps :math:`(z_k - z_c) / T` to the highest
    logit. It starts as h = 0, and is trained by Adam on the NLL of maps; the epoch with the least
    NLL of a fifth of the images (groups), held out, is taken, which may be the start. The draw of
    those, the first weights and the order of the maps follow from the seed.

    Source: Ding, Han, Liu and Niethammer, Local Temperature Scaling for Probability Calibration,
    2021. There the network also sees the image, and the temperature is a mixture, by gates that are
    convolutions too, of linear convolutions of 5 × 5 pixels with a dilation of 2, cut off at 0; it
    starts around 1, not at T, and needs no bound.

    Args:
        max_epochs: How often all maps are seen at most.
        seed: Of the first weights, the images held out and the order.

    Attributes:
        temperature_: T, within [0.01, 100].
        weight1_: ``(16, K, 3, 3)``, of two classes where K = 1.
        bias1_: ``(16,)``.
        weight2_: ``(16, 16, 3, 3)``.
        bias2_: ``(16,)``.
        weight3_: ``(1, 16, 1, 1)``.
        bias3_: ``(1,)``.

    Raises:
        TypeError: If an option is no integer.
        ValueError: If there is no epoch, or the seed is negative.
    """

    learned = ('temperature', 'weight1', 'bias1', 'weight2', 'bias2', 'weight3', 'bias3')
    keeps_argmax = True

    def __init__(self, *, max_epochs: int = 100, seed: int = 0) -> None:
        self.max_epochs = check_integer('max_epochs', max_epochs)
        self.seed = check_integer('seed', seed, least=0)

    def _apply(self, logits: Tensor, learned: Mapping[str, Tensor]) -> Tensor:
        gaps, _ = gaps_to_top(logits)
        return of_given_head(gaps / _temperatures(gaps, learned), logits)

    def _fit_maps(self, maps: Sequence[LabelledMap]) -> None:
        single = TemperatureScaler()
        single._fit(
            lambda: (
                (valid_rows(one.logits, one.labels), one.labels[one.labels != IGNORED])
                for one in maps
            ),
            None,
        )
        generator = torch.Generator().manual_seed(self.seed)
        num_classes = max(len(maps[0].logits), 2)
        start = _start(num_classes, single.temperature_, generator)
        learned = {name: value.to(maps[0].logits.device) for name, value in start.items()}
        fitted = [one for one in maps if (one.labels != IGNORED).any()]
        groups = sorted({one.group for one in fitted})
        if len(groups) == 1:
            warnings.warn(
                'one group of maps, such as a single image, can be held out or trained on, but not '
                'both: the temperature stays the same everywhere. Give maps of more images',
                stacklevel=3,
            )
        else:
            order = torch.randperm(len(groups), generator=generator).tolist()
            held_out = {groups[place] for place in order[: math.ceil(HELD_OUT * len(groups))]}
            self._train(
                learned,
                [one for one in fitted if one.group not in held_out],
                [one for one in fitted if one.group in held_out],
                generator,
            )
        for name, value in learned.items():
            setattr(self, f'{name}_', value.double().cpu())
        self.temperature_ = single.temperature_

    def _train(
        self,
        learned: dict[str, Tensor],
        maps: Sequence[LabelledMap],
        held_out: Sequence[LabelledMap],
        generator: torch.Generator,
    ) -> None:
        """Replace what is learned by that of the epoch with the least NLL of what is held out."""
        weights = {name: value for name, value in learned.items() if name != 'temperature'}
        current = {name: value.clone().requires_grad_() for name, value in weights.items()}
        known = {'temperature': learned['temperature'], **current}
        optimizer = torch.optim.Adam(current.values(), lr=LEARNING_RATE)
        least, since = _mean_nll(held_out, known), 0
        for _ in range(self.max_epochs):
            order = torch.randperm(len(maps), generator=generator).tolist()
            for start in range(0, len(order), BATCH_SIZE):
                batch = [maps[place] for place in order[start : start + BATCH_SIZE]]
                optimizer.zero_grad()
                count = sum(int((one.labels != IGNORED).sum()) for one in batch)
                for one in batch:  # maps of several sizes, one in memory at a time
                    (_sum_of_nll(one, known) / count).backward()
                optimizer.step()
            found = _mean_nll(held_out, known)
            since += 1
            if found < least:
                least, since = found, 0
                learned.update({name: value.detach().clone() for name, value in current.items()})
            if since == PATIENCE:
                break


def _start(num_classes: int, temperature: float, generator: torch.Generator) -> dict[str, Tensor]:
    """Return a network that gives one temperature, in single precision."""
    learned = {'temperature': torch.tensor(temperature)}
    for name, inputs in (('1', num_classes), ('2', CHANNELS)):
        # Kaiming's, which keeps the variance through a ReLU.
        weight = torch.randn(CHANNELS, inputs, 3, 3, generator=generator)
        learned[f'weight{name}'] = weight * (2 / (9 * inputs)) ** 0.5
        learned[f'bias{name}'] = torch.zeros(CHANNELS)
    return learned | {'weight3': torch.zeros(1, CHANNELS, 1, 1), 'bias3': torch.zeros(1)}


def _temperatures(gaps: Tensor, learned: Mapping[str, Tensor]) -> Tensor:
    """Return the temperature of each pixel, ``(N, 1, H, W)``, of gaps ``(N, K, H, W)``."""
    values = (gaps / learned['temperature']).clamp(min=_LEAST_GAP) / -_LEAST_GAP
    # Beyond the edge the map goes on as it ends: a 0 would be a tie of all classes.
    values = conv2d(pad(values, (1, 1, 1, 1), 'replicate'), learned['weight1'], learned['bias1'])
    values = pad(values.relu(), (2, 2, 2, 2), 'replicate')
    values = conv2d(values, learned['weight2'], learned['bias2'], dilation=2).relu()
    values = conv2d(values, learned['weight3'], learned['bias3'])
    return learned['temperature'] * (math.log(MOST_FACTOR) * values.tanh()).exp()


def _sum_of_nll(one: LabelledMap, learned: Mapping[str, Tensor]) -> Tensor:
    gaps, _ = gaps_to_top(one.logits[None].double())
    scaled = gaps.float()
    scaled = scaled / _temperatures(scaled, learned)
    return cross_entropy(scaled, one.labels[None], ignore_index=IGNORED, reduction='sum')


@torch.no_grad()
def _mean_nll(maps: Sequence[LabelledMap], learned: Mapping[str, Tensor]) -> float:
    total = sum(_sum_of_nll(one, learned).item() for one in maps)
    return total / sum(int((one.labels != IGNORED).sum()) for one in maps)
