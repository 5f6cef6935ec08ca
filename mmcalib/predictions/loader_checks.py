"""Checks of a loader that need several of its batches."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from mmcalib.errors import UserError, warn
from mmcalib.predictions.labels import ONE_HOT, is_one_hot

# Fewer outputs may all lie in [0, 1], or sum to about 1, by chance.
FEW_OUTPUTS = 10
# Rounded probabilities have sums with such errors; few outputs must be more exact.
ROUNDED_ERROR = 2e-2
EXACT_ERROR = 1e-3


class LoaderChecks:
    """Checks of all batches of a loader.

    Args:
        ignore_index: The label of predictions that are not valid.
    """

    def __init__(self, ignore_index: int | None) -> None:
        self._tokens = _TokenCheck(ignore_index)
        self._num_images = 0
        self._num_axes: int | None = None
        self._are_one_hot = True
        self._outputs = OutputCheck()

    def add(self, tokens: Tensor | None, logits: Tensor, labels: Tensor) -> None:
        """Take in a batch.

        Args:
            tokens: Token ids ``(N, L)`` that the model has read, None if there are none.
            logits: ``(N, K, *)``.
            labels: ``(N, *)``, or those of several labels.

        Raises:
            UserError: For logits with other axes than before, and for labels that are the tokens
                that the model reads.
        """
        self._tokens.add(tokens, logits, labels)
        self._num_images += len(logits)
        if self._num_axes is None:
            self._num_axes = logits.ndim
        if logits.ndim != self._num_axes:
            raise UserError('some batches are of maps and some of rows: give a loader of each')
        self._outputs.add(logits, labels)
        if self._are_one_hot:
            self._are_one_hot = labels.shape == logits.shape and is_one_hot(labels)

    def finish(self) -> None:
        """Check all batches together.

        Warns:
            UserWarning: For outputs that may be those of several sigmoids.

        Raises:
            UserError: For a loader without batches, such as a spent generator; for labels that are
                all one-hot, which are of one class rather than several; for outputs of a sigmoid.
        """
        self._tokens.finish()
        if not self._num_images:
            raise UserError('the loader has no batches: a generator can be read only once')
        if self._are_one_hot:
            raise UserError(ONE_HOT.format(axis=1))
        self._outputs.finish()


class OutputCheck:
    """A check that what is given as logits are neither probabilities nor outputs of sigmoids.

    It prevents a wrong number: a softmax over probabilities is nearly uniform, and a sigmoid of one
    lies between 0.5 and 0.73. Few outputs may look so by chance, so all batches are looked at.
    """

    def __init__(self) -> None:
        self._num_images = 0
        self._num_outputs = 0
        self._are_from_zero_to_one = True
        self._are_of_sigmoid = False
        self._num_sums = 0
        # The largest relative error of a sum over classes, if it should be 1, or 100.
        self._sum_errors = {1: 0.0, 100: 0.0}

    def add(self, logits: Tensor, labels: Tensor) -> None:
        """Take in logits ``(N, K, *)``, and labels ``(N, *)`` or those of several labels.

        Raises:
            UserError: If enough outputs are probabilities, or percentages.
        """
        self._num_images += len(logits)
        self._num_outputs += logits.numel()
        self._are_of_sigmoid = labels.shape == logits.shape or logits.shape[1] == 1
        if self._are_from_zero_to_one and logits.numel():
            self._are_from_zero_to_one = bool(logits.min() >= 0 and logits.max() <= 1)
        may_be_probabilities = min(self._sum_errors.values()) < ROUNDED_ERROR
        if may_be_probabilities and logits.numel() and not self._are_of_sigmoid:
            self._add_sums(logits)

    def _add_sums(self, logits: Tensor) -> None:
        """Take in the sums over classes."""
        sums = logits.sum(dim=1)
        self._num_sums += sums.numel()
        for total, error in self._sum_errors.items():
            new_error = math.inf
            if logits.amin() >= 0:
                new_error = (sums / total - 1).abs().amax().item()
            self._sum_errors[total] = max(error, new_error)
        if self._num_sums >= FEW_OUTPUTS:
            self._check_sums(ROUNDED_ERROR)

    def _check_sums(self, tolerance: float) -> None:
        """Raise a UserError if all sums so far are those of probabilities, or percentages."""
        for total, error in self._sum_errors.items():
            if self._num_sums and error < tolerance:
                probs = 'p' if total == 1 else '(p / 100)'
                raise UserError(
                    f'the model returns probabilities, which sum to {total}, where logits are '
                    'wanted: leave its softmax out, or give their logarithm, as '
                    f'logits=lambda p: {probs}.log(). Where some are 0, it is '
                    f'{probs}.clamp(min=floor).log() with half of the smallest positive one of '
                    'all data as floor'
                )

    def merge(self, other: OutputCheck) -> None:
        """Take in what another check has taken in, such as that of another process."""
        self._num_images += other._num_images
        self._num_outputs += other._num_outputs
        self._are_from_zero_to_one &= other._are_from_zero_to_one
        self._are_of_sigmoid |= other._are_of_sigmoid
        self._num_sums += other._num_sums
        for total, error in other._sum_errors.items():
            self._sum_errors[total] = max(self._sum_errors[total], error)

    def state_dict(self) -> dict[str, Any]:
        """Return what was taken in, as plain numbers and dicts."""
        return copy.deepcopy(vars(self))

    def merge_state(self, state: Mapping[str, Any]) -> None:
        """Take in what the check of a state has taken in."""
        other = OutputCheck()
        vars(other).update(state)
        self.merge(other)

    def finish(self, *, refuse: bool = True) -> None:
        """Raise a UserError for probabilities and outputs of a sigmoid; warn of several sigmoids.

        Args:
            refuse: Whether to raise. False warns, for a training whose first outputs may be small.
        """
        self._check_sums(ROUNDED_ERROR if self._num_sums >= FEW_OUTPUTS else EXACT_ERROR)
        # The pixels of an image are alike, so a few images of several classes tell nothing.
        count = self._num_outputs if self._are_of_sigmoid else self._num_images
        if not self._are_from_zero_to_one or count < FEW_OUTPUTS:
            return
        problem = 'the outputs of the model all lie in [0, 1], as those of a sigmoid do'
        if not self._are_of_sigmoid:
            warn(f'{problem}: a softmax over them is wrong if they are')
        elif refuse:
            raise UserError(
                f'{problem}: leave the sigmoid out, or give '
                'logits=lambda p: torch.logit(p, eps=1e-7)'
            )
        else:
            warn(f'{problem}: if they are, leave the sigmoid out, or give torch.logit(p, eps=1e-7)')


class _TokenCheck:
    """A check that token labels are not the tokens that the model reads.

    It prevents a wrong number: a causal model's logits are of the next token, so unshifted labels
    measure how well it repeats its input.

    Args:
        ignore_index: The label of predictions that are not valid.
    """

    def __init__(self, ignore_index: int | None) -> None:
        self._ignore_index = ignore_index
        self._num_copies = 0
        self._labels_differ = False

    def add(self, tokens: Tensor | None, logits: Tensor, labels: Tensor) -> None:
        """Take in a batch, and raise a UserError if enough labels are the tokens, all of them."""
        if self._labels_differ or tokens is None:
            return
        if tokens.shape != labels.shape or logits.ndim != 3:
            return
        valid = torch.ones_like(labels, dtype=torch.bool)
        if self._ignore_index is not None:
            valid = labels != self._ignore_index
        self._labels_differ = bool((tokens.to(labels) != labels)[valid].any())
        self._num_copies += int(valid.sum())
        if self._num_copies >= FEW_OUTPUTS:
            self.finish()

    def finish(self) -> None:
        """Raise a UserError if all labels so far are the tokens that the model reads."""
        if self._num_copies and not self._labels_differ:
            raise UserError(
                'the labels equal input_ids, the tokens that the model reads, but the logits of a '
                "causal model are of the next token. Shift both: unpack=lambda b: (b, b['labels']"
                '[:, 1:]) and logits=lambda output: output.logits[:, :-1].movedim(-1, 1)'
            )
