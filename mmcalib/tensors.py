"""Checks of tensors, their types of float, and the states of random number generators."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from mmcalib.errors import UserError

# How far a probability may lie above 1, and how far the sum of a half-precision softmax from 1.
TOLERANCE = 1e-6
SUM_TOLERANCE = 1e-2


def check_labels(labels: Tensor, num_classes: int, *, name: str = 'target', hint: str = '') -> None:
    """Raise a ValueError that counts and names the labels outside [0, K), if there are any.

    Args:
        labels: Integers of any shape.
        num_classes: K.
        name: What the error calls them.
        hint: What to do about it, at the end of the error.
    """
    # In one wait for a GPU.
    lowest, highest = torch.stack(labels.aminmax()).tolist() if labels.numel() else (0, 0)
    if lowest < 0 or highest >= num_classes:
        wrong = labels[(labels < 0) | (labels >= num_classes)]
        found = wrong.unique().tolist()
        shown = ', '.join(map(str, found[:5])) + ', …' * (len(found) > 5)
        message = f'{name} has {len(wrong)} labels outside [0, {num_classes}): {shown}'
        if lowest >= 1 and highest == num_classes and labels.numel() > 1:
            message += '. No label is 0: if the classes are numbered from 1, subtract 1'
        raise UserError(f'{message}. {hint}' if hint else message)


def check_finite(scores: Tensor, name: str) -> None:
    """Raise a ValueError for values that are NaN or infinite."""
    # One sum is several times cheaper than a test per value; it is not finite if any value is not.
    if not scores.sum().isfinite() and (wrong := int((~scores.isfinite()).sum())):
        kind, cause = 'NaN or infinite values', 'the model has diverged, or its input is broken'
        if int((scores == -float('inf')).sum()) == wrong:
            kind, cause = 'values of -inf', 'leave classes that are masked out of logits and labels'
        raise UserError(f'{name} has {wrong} {kind} out of {scores.numel()}: {cause}')


def check_range(values: Tensor, name: str) -> None:
    """Raise a ValueError for values that are not from 0 to 1."""
    # One pass, twenty times cheaper than the comparisons; of NaN both are NaN.
    lowest, highest = values.aminmax() if values.numel() else (values.new_zeros(()),) * 2
    if not (lowest >= 0 and highest <= 1 + TOLERANCE):
        outside = values[~((values >= 0) & (values <= 1 + TOLERANCE))]
        first = outside[0].item()
        remedy = 'take the softmax first if they are logits, and divide percentages by 100'
        if first != first:
            remedy = 'leave out what has no prediction'
        raise ValueError(
            f'{name} has {len(outside)} of {values.numel()} values outside [0, 1], such as '
            f'{first:.7g}: {remedy}'
        )


def check_probabilities(probs: Tensor, name: str) -> None:
    """Raise a ValueError for ``(K, *)`` values that are no probabilities of K classes."""
    check_range(probs, name)
    total = probs.sum(dim=0)
    wrong = total[(total - 1).abs() > SUM_TOLERANCE]
    if len(wrong):
        raise ValueError(
            f'{name} has {len(wrong)} of {total.numel()} rows that do not sum to 1, such as '
            f'{wrong[0].item():.7g}: give the softmax over all classes'
        )


def at_least_single(values: Tensor) -> Tensor:
    """Return half-precision values in float32, others as they are."""
    return values.float() if values.is_floating_point() and values.element_size() < 4 else values


def check_explained(logits: Tensor, predicted: Tensor, name: str) -> None:
    """Raise a ValueError for logits ``(K, *)`` that are not finite, or not the prediction's."""
    check_finite(logits, f'seg_logits of {name}')
    if len(logits) == 1:
        return
    wrong = int((logits.gather(0, predicted[None])[0] < logits.amax(dim=0)).sum())
    if wrong:
        raise UserError(
            f'pred_sem_seg of {name} is not the argmax of its seg_logits at {wrong} pixels. '
            'Under test-time augmentation mmseg keeps only the logits of the last augmentation, '
            'which are not those of the prediction: test without it'
        )


def smallest_probability(dtype: torch.dtype) -> float:
    """Return what a probability counts as that its type of float has rounded to 0."""
    if dtype == torch.float16:
        return 2.0**-25  # half of the least there is
    return torch.finfo(dtype).tiny  # less is flushed to 0 on some devices


@contextmanager
def unchanged_randomness() -> Iterator[None]:
    """Put the states of the random number generators back, of Python, NumPy and PyTorch."""
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])
