"""The logits behind what a toolbox's model predicts, of a batch, or of all images of a split."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from mmengine.structures import BaseDataElement
from torch import Tensor, nn

from mmcalib.calibration.draw import LogitRows
from mmcalib.errors import UserError
from mmcalib.openmmlab.calibrated_model import evaluated_sample, logits_behind
from mmcalib.openmmlab.heads import head_of, returns_scores
from mmcalib.openmmlab.samples import read_field, read_logits, sample_name
from mmcalib.predictions.full_precision import full_precision
from mmcalib.predictions.kept_batches import KeptBatches
from mmcalib.predictions.progress import progress
from mmcalib.predictions.ranks import dataset_index


@dataclass
class ImageLogits:
    """One evaluated image.

    Attributes:
        predicted: Its data sample.
        sample: The same as metrics read it.
        logits: ``(K, *)``, behind it.
        name: What errors call it.
    """

    predicted: BaseDataElement
    sample: dict
    logits: Tensor
    name: str


@contextmanager
def predictor(
    model: nn.Module, *, of_samples: bool = False
) -> Iterator[Callable[[Any], list[ImageLogits]]]:
    """Give a function from a batch to the images' predictions, with the logits behind them.

    They are read from the data samples (:func:`~mmcalib.openmmlab.calibrated_model.logits_behind`),
    up to what a softmax ignores. A head that draws at random, as SegNeXt's does, draws the same
    whenever a batch is predicted: so two predictions of a batch differ in nothing but the weights.

    Args:
        model: mmpretrain's or mmseg's, or one with the same methods.
        of_samples: Whether a binary segmentor's are of its samples too, whose sigmoid has lost the
            digits of logits above 17. By default they are those before the sigmoid, which a layer
            would scale.

    Raises:
        ValueError: If the model has no head.
    """
    if getattr(model, 'head', model) is None:
        raise UserError(f'{type(model).__name__} has no head, so it predicts no classes')
    exact: list[Tensor] = []
    watched = getattr(head_of(model), 'out_channels', None) == 1 and not of_samples
    calibrated = hasattr(model, 'calibration')
    count = itertools.count()

    def postprocess(seg_logits: Tensor, data_samples: list | None = None) -> list:
        original = type(model).postprocess_result
        # A second channel makes them logits of a softmax, which are left as they are.
        pair = torch.cat([torch.zeros_like(seg_logits), seg_logits], dim=1)
        exact.extend(s.seg_logits.data[1:] for s in original(model, pair, data_samples))
        return original(model, seg_logits, data_samples)

    def image_of(sample: BaseDataElement) -> ImageLogits:
        logits = exact.pop(0) if watched else logits_behind(model, sample, calibrated=calibrated)
        read = evaluated_sample(model, sample)
        return ImageLogits(sample, read, logits, sample_name(sample, next(count)))

    def predict(batch: Any) -> list[ImageLogits]:
        device = next(model.parameters()).device
        with torch.no_grad(), torch.random.fork_rng([device] if device.type == 'cuda' else []):
            torch.manual_seed(0)
            return [image_of(sample) for sample in model.val_step(batch)]

    training = model.training
    model.eval()
    if watched:
        model.postprocess_result = postprocess
    try:
        with full_precision():
            yield predict
    finally:
        model.train(training)
        vars(model).pop('postprocess_result', None)


def image_logits(model: nn.Module, batch: Any, *, of_samples: bool = False) -> list[Tensor]:
    """Return the logits ``(K, *)`` of the images of a batch, see :func:`predictor`."""
    with predictor(model, of_samples=of_samples) as predict:
        return [image.logits for image in predict(batch)]


def predictions(
    model: nn.Module,
    loader: Iterable,
    text: str,
    *,
    of_samples: bool = False,
    ignore_index: int = 255,
    kept: KeptBatches | None = None,
) -> Iterator[LogitRows]:
    """Yield the valid predictions of each image of a split that this process predicts.

    Those beyond the data set, which only fill up the share of a process, are left out.

    Args:
        model: See :func:`predictor`.
        loader: Batches of the split, in a fixed order.
        text: What the progress bar says.
        of_samples: See :func:`predictor`.
        ignore_index: Label of the pixels to leave out.
        kept: Keeps a few of the batches.

    Raises:
        ValueError: For what :func:`~mmcalib.openmmlab.samples.read_logits` refuses.
    """
    scores = returns_scores(model) and not hasattr(model, 'calibration')

    def predict_all(predict: Callable[[Any], list[ImageLogits]]) -> Iterator[ImageLogits]:
        for batch in progress(loader, text):
            images = predict(batch)
            if kept is not None:
                kept.add(batch, [image.logits for image in images])
            yield from images

    with ExitStack() as contexts:
        predict = contexts.enter_context(predictor(model, of_samples=of_samples))
        if kept is not None:
            contexts.enter_context(kept.watching())
        images = predict_all(predict)
        for number, image in enumerate(images):
            if (place := dataset_index(number)) < len(loader.dataset):
                options = dict(ignore_index=ignore_index, name=image.name)
                logits, labels, predicted = read_logits(image.sample, image.logits, **options)
                places, shown = torch.full((len(labels),), place, device='cpu'), None
                if scores:  # of which metrics read the softmax
                    seg_logits = read_field(image.sample, 'seg_logits')
                    shown = read_logits(image.sample, seg_logits, **options)[0]
                yield LogitRows(logits, labels, places, predicted, shown)
