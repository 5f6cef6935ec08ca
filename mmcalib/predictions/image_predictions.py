"""The one data type of the library: what a model predicts for some images."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from mmcalib.tensors import at_least_single

# The label of a prediction that is not valid.
IGNORED = -1


@dataclass(frozen=True)
class ImagePredictions:
    """The predictions of a model for N images, and their labels.

    K is the number of scores of a prediction. The star is empty for classified images, (H, W) for
    maps, (D, H, W) for volumes, and (L,) for L labels that an image may have or not. Several of the
    N entries may belong to one image, as pixels that are drawn from maps do. Creating one copies
    nothing: the tensors are those of the model, on its device, in its type of float.

    Attributes:
        predicted: ``(N, *)`` int64 predicted classes.
        probs: ``(N, K, *)`` probabilities; with K = 1 the probability of class 1 of two. None if
            only logits are known: metrics then take their softmax, or their sigmoid if K = 1.
        logits: ``(N, K, *)`` logits, to which a scaling is fitted. None if nothing will be fitted.
        labels: ``(N, *)`` int64 true classes; -1 where a prediction is not valid, and K or more
            for classes that the model does not know (OOD). None for images without labels.
        images: ``(N,)`` int64 indices of the images in the data, on the CPU. None if unknown.
        several_labels: Whether the last axis holds L labels; K is then 1.
        are_bare_confidences: Whether only confidences are known, and whether they were right.
        name: The name of the predictions in errors.
    """

    predicted: Tensor
    probs: Tensor | None = None
    logits: Tensor | None = None
    labels: Tensor | None = None
    images: Tensor | None = None
    several_labels: bool = False
    are_bare_confidences: bool = False
    name: str = 'a prediction'

    def __len__(self) -> int:
        return len(self.predicted)

    @property
    def scores(self) -> Tensor:
        """The ``(N, K, *)`` tensor that metrics read: probabilities if known, else logits."""
        return self.logits if self.probs is None else self.probs

    @property
    def num_classes(self) -> int:
        """The number of classes: K, or two if one score tells two classes apart."""
        return max(self.scores.shape[1], 2)

    def class_probabilities(self) -> Tensor:
        """Return the probabilities ``(N, K, *)`` of all classes, with two for one score."""
        if self.probs is None and self.logits.shape[1] > 1:
            return at_least_single(self.logits).softmax(dim=1)
        if self.probs is None:
            probs = at_least_single(self.logits).sigmoid()
        else:
            probs = at_least_single(self.probs)
        if probs.shape[1] == 1:
            return torch.cat([1 - probs, probs], dim=1)
        return probs

    @property
    def are_maps(self) -> bool:
        """Whether each entry has a prediction for every pixel."""
        return self.predicted.ndim > 1 and not self.several_labels

    @property
    def are_of_sigmoid(self) -> bool:
        """Whether the one score of a prediction is the probability, or the logit, of class 1."""
        return self.scores.shape[1] == 1 and not self.are_bare_confidences

    @property
    def are_of_two_classes(self) -> bool:
        """Whether the probability of class 1 tells that of the only other class."""
        return self.are_of_sigmoid or (self.scores.shape[1] == 2 and not self.several_labels)

    @property
    def kind(self) -> str:
        """The kind that all batches of a model have, such as ``'maps of 21 classes'``."""
        if self.several_labels:
            return f'{self.predicted.shape[1]} labels'
        text = f'{self.num_classes} classes'
        if self.scores.shape[1] == 1:
            text = 'one sigmoid'
        return f'maps of {text}' if self.are_maps else text

    @property
    def valid(self) -> Tensor:
        """The ``(N, *)`` mask of the predictions that count."""
        return self.labels >= 0

    @property
    def has_valid(self) -> Tensor:
        """The ``(N,)`` mask of the entries that have a prediction that counts."""
        return self.valid if self.valid.ndim == 1 else self.valid.flatten(1).any(dim=1)

    def select(self, kept: Tensor | slice) -> ImagePredictions:
        """Return some of the N entries.

        Args:
            kept: A mask ``(N,)``, indices, or a slice.
        """
        selected = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if torch.is_tensor(value):
                index = kept.to(value.device) if torch.is_tensor(kept) else kept
                selected[field.name] = value[index]
        return replace(self, **selected)

    def within(self, region: Tensor) -> ImagePredictions:
        """Return the same predictions, of which only those in a mask ``(N, *)`` are valid."""
        return replace(self, labels=self.labels.masked_fill(~region, IGNORED))

    def split_maps(self) -> Iterator[ImagePredictions]:
        """Yield each map by itself, and everything else at once."""
        if not self.are_maps:
            yield self
            return
        for index in range(len(self)):
            yield self.select(slice(index, index + 1))

    def split_labels(self) -> list[ImagePredictions]:
        """Return the predictions of each of L labels, as those of a binary head with one logit."""
        if not self.several_labels:
            return [self]
        label_axes = {'predicted': 1, 'labels': 1, 'probs': 2, 'logits': 2}
        predictions = []
        for index in range(self.predicted.shape[1]):
            columns = {}
            for name, axis in label_axes.items():
                values = getattr(self, name)
                if values is not None:
                    columns[name] = values.select(axis, index)
            predictions.append(replace(self, several_labels=False, **columns))
        return predictions

    def pool_labels(self) -> ImagePredictions:
        """Return the valid predictions of all labels together, as rows of one label; else all."""
        if not self.several_labels:
            return self
        return replace(self, several_labels=False).valid_rows()

    def valid_rows(self) -> ImagePredictions:
        """Return the valid predictions as rows ``(M, K)``; of L labels as ``(M, 1, L)``.

        Of L labels, an image is kept if any of its labels is valid.
        """
        valid = self.valid.flatten() if self.are_maps else self.has_valid
        return self.rows_at(valid.nonzero()[:, 0])

    def rows_at(self, index: Tensor) -> ImagePredictions:
        """Return some predictions as rows ``(M, K)``; of L labels, those of some images.

        Args:
            index: ``(M,)`` int64 indices of entries; for maps, flat indices of their pixels.
        """
        if not self.are_maps:
            return self.select(index)
        index = index.to(self.predicted.device)
        rows = {}
        for name in ('probs', 'logits'):
            values = getattr(self, name)
            if values is not None:
                rows[name] = class_columns(values).index_select(1, index).T
        if self.images is not None:
            pixels_per_image = self.predicted[0].numel()
            rows['images'] = self.images[index.cpu() // pixels_per_image]
        if self.labels is not None:
            rows['labels'] = self.labels.flatten()[index]
        return replace(self, predicted=self.predicted.flatten()[index], **rows)

    def with_images(self, images: Tensor) -> ImagePredictions:
        """Return the same predictions with other indices of their images in the data."""
        return replace(self, images=images)

    def cpu(self) -> ImagePredictions:
        """Return the same predictions on the CPU."""
        tensors = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if torch.is_tensor(value):
                tensors[field.name] = value.cpu()
        return replace(self, **tensors)


def class_columns(values: Tensor) -> Tensor:
    """Return ``(N, K, *)`` values as ``(K, M)``; a view of one map, of rows, and of L labels."""
    return values.movedim(1, 0).flatten(1)


def concatenate(parts: Sequence[ImagePredictions]) -> ImagePredictions:
    """Return the entries of all parts in one; the parts have the same fields."""
    tensors = {}
    for field in fields(ImagePredictions):
        values = [getattr(part, field.name) for part in parts]
        if torch.is_tensor(values[0]):
            tensors[field.name] = torch.cat(values)
    return replace(parts[0], **tensors)


def predictions_from_confidences(conf: Tensor, correct: Tensor) -> ImagePredictions:
    """Return bare confidences ``(N, *)`` as the predictions of a head for "is right".

    Class 1, "is right", is always predicted, with the confidence for its probability; the label is
    1 where the prediction is right.
    """
    return ImagePredictions(
        predicted=torch.ones_like(conf, dtype=torch.int64),
        probs=conf[:, None],
        labels=correct.long(),
        are_bare_confidences=True,
        images=torch.arange(len(conf), device='cpu'),
    )
