"""A loader for any torch model as the source of a calibration."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from contextlib import closing
from typing import Any

import torch
from torch import Tensor, nn

from mmcalib.errors import UserError
from mmcalib.posthoc.fit_rows import group_sums, split_rows
from mmcalib.posthoc.masked_classes import masked_logits
from mmcalib.predictions.batches import Unpack
from mmcalib.predictions.distributed import gather_one_process
from mmcalib.predictions.find_logits import Logits
from mmcalib.predictions.group_names import check_order
from mmcalib.predictions.image_predictions import ImagePredictions
from mmcalib.predictions.kept_batches import KeptBatches
from mmcalib.predictions.loader import read_loader, reader


class LoaderSource:
    """A loader of held-out batches, which may shuffle, and is read once.

    Images are told apart by what the model predicts for them, and not by their order: so a loader
    that shuffles gives the same draw, folds and metrics as one that does not.

    Args:
        loader: Batches of inputs and labels, see :mod:`mmcalib.predictions.loader`.
        unpack: A function from a batch to its inputs and labels; None for the usual batches.
        logits: A function that takes the logits out of the output of the model; None for the
            usual places.
        ignore_index: The label of predictions that are not valid.
    """

    threshold = 0.5

    def __init__(
        self,
        loader: Iterable,
        *,
        unpack: Unpack | None = None,
        logits: Logits | None = None,
        ignore_index: int | None = None,
    ) -> None:
        self.loader = loader
        self.unpack = unpack
        self.logits = logits
        self.ignore_index = ignore_index
        self.gather = gather_one_process
        self.kept = KeptBatches()

    @property
    def in_order(self) -> bool:
        """Whether the sampler of the loader reads the images in their order."""
        try:
            check_order(self.loader)
        except UserError:
            return False
        return True

    def read(self, model: nn.Module, text: str) -> Iterator[ImagePredictions]:
        """Yield the predictions of each batch."""
        batches = read_loader(
            model,
            self.loader,
            text,
            self.kept,
            unpack=self.unpack,
            logits=self.logits,
            ignore_index=self.ignore_index,
        )
        # An error would otherwise keep the random state of the model until it is freed.
        with closing(batches):
            yield from batches

    def run(self, model: nn.Module, batch: Any) -> list[Tensor]:
        """Return the logits ``(K, *)`` of the images of a batch."""
        with reader(model, unpack=self.unpack, logits=self.logits) as read:
            return list(read(batch))

    def image_seeds(self, part: ImagePredictions) -> list[int]:
        """Return a seed for each map that its labels decide."""
        seeds = []
        for labels in part.labels:
            valid_labels = labels[labels >= 0]
            seeds.append(zlib.crc32(valid_labels.cpu().numpy().tobytes()))
        return seeds

    def image_numbers(self, rows: ImagePredictions) -> Tensor:
        """Return which image each row is of, numbered in an order that their content decides."""
        image_index = rows.images.unique(return_inverse=True)[1]
        logits = rows.logits.flatten(1)
        factors = torch.arange(1, logits.shape[1] + 1, dtype=torch.float64, device='cpu').cos()
        labels = rows.labels.double().reshape(len(rows), -1).mean(dim=1)
        projections = []
        for (part,) in split_rows(logits):
            is_masked = masked_logits(part)
            if is_masked is not None:  # A logit of -1e9 would leave no digits of the others.
                part = part.masked_fill(is_masked, 0)
            projections.append(part.double() @ factors)
        content = group_sums(torch.cat(projections) + labels, image_index)
        return content.argsort().argsort()[image_index]
