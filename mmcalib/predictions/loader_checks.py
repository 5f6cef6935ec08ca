"""Checks of a loader that need several of its batches."""

from __future__ import annotations

import torch
from torch import Tensor

from mmcalib.errors import UserError, warn
from mmcalib.predictions.labels import ONE_HOT, is_one_hot
from mmcalib.predictions.model_logits import FEW_OUTPUTS


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
    """A check that what is given as logits are not the probabilities of sigmoids.

    It prevents a wrong number: a sigmoid of a probability lies between 0.5 and 0.73.
    """

    def __init__(self) -> None:
        self._num_images = 0
        self._num_outputs = 0
        self._are_from_zero_to_one = True
        self._are_of_sigmoid = False

    def add(self, logits: Tensor, labels: Tensor) -> None:
        """Take in logits ``(N, K, *)``, and labels ``(N, *)`` or those of several labels."""
        self._num_images += len(logits)
        self._num_outputs += logits.numel()
        self._are_of_sigmoid = labels.shape == logits.shape or logits.shape[1] == 1
        if self._are_from_zero_to_one and logits.numel():
            self._are_from_zero_to_one = bool(logits.min() >= 0 and logits.max() <= 1)

    def merge(self, other: OutputCheck) -> None:
        """Take in what another check has taken in, such as that of another process."""
        self._num_images += other._num_images
        self._num_outputs += other._num_outputs
        self._are_from_zero_to_one &= other._are_from_zero_to_one
        self._are_of_sigmoid |= other._are_of_sigmoid

    def finish(self, *, refuse: bool = True) -> None:
        """Raise a UserError for outputs of a sigmoid, and warn of those that may be of several.

        Args:
            refuse: Whether to raise. False warns, for a training whose first outputs may be small.
        """
        # The pixels of an image are alike, so a few images of several classes tell nothing.
        count = self._num_outputs if self._are_of_sigmoid else self._num_images
        if not self._are_from_zero_to_one or count < FEW_OUTPUTS:
            return
        problem = 'the outputs of the model all lie in [0, 1], as those of a sigmoid do'
        if not self._are_of_sigmoid:
            warn(f'{problem}: a softmax over them is wrong if they are')
        elif refuse:
            raise UserError(f'{problem}: leave the sigmoid out, or give logits=torch.logit')
        else:
            warn(f'{problem}: if they are, leave the sigmoid out, or give torch.logit of them')


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
