"""A split of a toolbox's Runner as the source of a calibration."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from mmengine.dist import all_gather_object
from mmengine.structures import BaseDataElement
from torch import Tensor, nn
from torch.utils.data import DataLoader

from mmcalib.calibration.choose import default_scaler
from mmcalib.calibration.find_layer import layers_for
from mmcalib.calibration.prove import OriginalLogits, Placement
from mmcalib.choices import AUTO
from mmcalib.errors import UserError
from mmcalib.openmmlab.calibrated_model import is_calibrated, logits_behind
from mmcalib.openmmlab.ensembles import MeanProbabilityModel
from mmcalib.openmmlab.heads import (
    find_head,
    has_several_labels,
    label_ignored_by_head,
    returns_scores,
)
from mmcalib.openmmlab.samples import read_sample, sample_name, with_logits
from mmcalib.posthoc.affine import TemperatureScaler, VectorScaler
from mmcalib.posthoc.binary import PlattScaler
from mmcalib.posthoc.logits import with_other_class
from mmcalib.posthoc.per_label import Scaler, ScalerPerLabel
from mmcalib.posthoc.scaler import LogitScaler
from mmcalib.predictions.distributed import dataset_index
from mmcalib.predictions.full_precision import full_precision
from mmcalib.predictions.image_predictions import ImagePredictions, concatenate
from mmcalib.predictions.kept_batches import KeptBatch, KeptBatches
from mmcalib.predictions.progress import progress
from mmcalib.tensors import SUM_TOLERANCE, at_least_single, seeded


@dataclass
class PredictedBatch:
    """The evaluated images of a batch.

    Attributes:
        samples: Their data samples.
        logits: The logits behind their scores: ``(K,)`` of a classifier, ``(K, H, W)`` of a
            segmentor.
    """

    samples: list[BaseDataElement]
    logits: list[Tensor]


class RunnerSource:
    """Held-out images of a split, of which each process reads its share.

    The logits of a classifier, and of a head with sigmoids, are read before its softmax or sigmoid,
    where a layer would scale them. Once :meth:`use_placement` says that the scaling is attached,
    they are those that its output stands for, which has lost the digits of large ones: above 17 of
    a sigmoid, and beyond 87 below the highest of a softmax.

    Args:
        model: The model of either toolbox, of whose head the threshold is taken.
        loader: The loader of the split, whose sampler does not shuffle.
        ignore_index: Label of the pixels to leave out; None for the one that the head ignores.
    """

    in_order = True

    def __init__(
        self, model: nn.Module, loader: DataLoader, *, ignore_index: int | None = None
    ) -> None:
        member = model.module if isinstance(model, MeanProbabilityModel) else model
        head = find_head(member)
        self.loader = loader
        self.threshold = getattr(head, 'thr', getattr(head, 'threshold', 0.5))
        self.several_labels = has_several_labels(model)
        if ignore_index is None:
            ignore_index = label_ignored_by_head(member)
        self.ignore_index = ignore_index
        self.from_scores = False
        self.was_read = False
        self.gather = all_gather_object
        self.kept = KeptBatches()

    def expected_placement(
        self, model: nn.Module, method: str | LogitScaler | None, *, shifts_prior: bool = False
    ) -> Placement:
        """Return where a scaling will probably go, found on the first batch, before a long pass.

        Args:
            model: The model.
            method: See :func:`mmcalib.calibrate`.
            shifts_prior: Whether the scaling will be shifted to other frequencies of the classes.

        Raises:
            UserError: If the method is not for such a head.
        """
        first = KeptBatch(next(iter(self.loader)))
        original = OriginalLogits(model, [first], self.run)
        num_outputs = len(original.logits_on(first)[0])
        num_logits = 1 if self.several_labels else num_outputs
        if isinstance(method, LogitScaler):
            scaler: Scaler = method
        elif method == AUTO:
            scaler = TemperatureScaler()
        else:
            scaler = default_scaler(num_logits)
        if shifts_prior and isinstance(scaler, TemperatureScaler):
            scaler = PlattScaler() if num_logits == 1 else VectorScaler()
        if self.several_labels:
            scaler = ScalerPerLabel([scaler] * num_outputs)
        layers, reason = layers_for(original, scaler)
        return Placement(layers=layers, reason=reason)

    def use_placement(self, placement: Placement) -> None:
        """Read the logits from now on where the calibrated model will have them."""
        self.from_scores = placement.reason is not None

    def read(self, model: nn.Module, text: str) -> Iterator[ImagePredictions]:
        """Yield the predictions of each map, or of the classified images of each batch.

        Images that only fill up the share of a process are left out.

        Raises:
            UserError: For what :func:`~mmcalib.openmmlab.samples.read_sample` refuses.
        """
        offset = 0
        is_first_pass = not self.was_read
        self.was_read = True
        with ExitStack() as contexts:
            predict = contexts.enter_context(predictor(model, from_scores=self.from_scores))
            if is_first_pass:
                contexts.enter_context(self.kept.watching())
            for batch in progress(self.loader, text):
                predicted = predict(batch)
                if is_first_pass:
                    self.kept.add(batch, predicted.logits)
                for part in self._predictions(model, predicted, offset):
                    indices = [dataset_index(offset + row) for row in range(len(part))]
                    offset += len(part)
                    images = torch.tensor(indices, device='cpu')
                    yield part.with_images(images).select(images < len(self.loader.dataset))

    def _predictions(
        self, model: nn.Module, predicted: PredictedBatch, offset: int
    ) -> list[ImagePredictions]:
        """Return the predictions of a batch with the logits behind them.

        Args:
            model: The model.
            predicted: Its evaluated images.
            offset: The number of images that this process has read before.
        """
        returns_mask_scores = returns_scores(model) and not is_calibrated(model)
        parts = []
        for sample, logits in zip(predicted.samples, predicted.logits, strict=True):
            part = read_sample(
                sample.to_dict(),
                sample_name(sample, offset + len(parts)),
                ignore_index=self.ignore_index,
                several_labels=self.several_labels,
            )
            if returns_mask_scores:
                # Heads such as Mask2Former's return scores of at least 0, not logits. Metrics take
                # their softmax, as the toolbox does; a scaling is fitted to their logarithms.
                part = replace(part, probs=part.class_probabilities())
            if self.several_labels:
                logits = logits[None]
            parts.append(with_logits(part, logits[None]))
        return parts if parts[0].are_maps else [concatenate(parts)]

    def run(self, model: nn.Module, batch: Any) -> list[Tensor]:
        """Return the logits ``(K, *)`` of the images of a batch, the same each time."""
        return read_logits(model, batch, from_scores=self.from_scores)

    def image_seeds(self, part: ImagePredictions) -> list[int]:
        """Return the index of each image, so that batches and processes do not matter."""
        return part.images.tolist()

    def image_numbers(self, rows: ImagePredictions) -> None:
        """Return None: images are in the order of the data."""


@contextmanager
def predictor(
    model: nn.Module, *, from_scores: bool = False
) -> Iterator[Callable[[Any], PredictedBatch]]:
    """Give a function from a batch to the evaluated images, with the logits behind their scores.

    A head that draws at random, as SegNeXt's does, draws the same whenever a batch is predicted: so
    two predictions of a batch differ in nothing but the weights.

    Args:
        model: A model of either toolbox, or one with the same methods.
        from_scores: Whether logits are read from the scores, which tell them up to what a softmax
            ignores; by default they are those that the head has computed, if the scores are their
            softmax or sigmoid.

    Raises:
        UserError: If the model has no head.
    """
    if getattr(model, 'head', model) is None:
        raise UserError(f'{type(model).__name__} has no head, so it predicts no classes')
    head = find_head(model)
    head_logits: list[Tensor] = []
    has_sigmoid = has_several_labels(model) or getattr(head, 'out_channels', None) == 1
    has_calibration = is_calibrated(model)
    is_classifier = hasattr(type(head), '_get_predictions') and not has_calibration
    is_watched = (has_sigmoid or is_classifier) and not from_scores

    def predict(batch: Any) -> PredictedBatch:
        device = next(model.parameters()).device
        with torch.no_grad(), seeded(0, device):
            samples = model.val_step(batch)
        logits = head_logits.copy()
        head_logits.clear()
        if not is_watched or not (has_sigmoid or _scores_are_softmax(samples, logits)):
            logits = [
                logits_behind(model, sample, is_calibrated_sample=has_calibration)
                for sample in samples
            ]
        return PredictedBatch(samples, logits)

    training = model.training
    model.eval()
    # The methods are replaced on the objects alone, and given back in the end.
    if is_watched and hasattr(type(head), '_get_predictions'):
        head._get_predictions = _watch_scores(head, head_logits)
    elif is_watched:
        model.postprocess_result = _watch_maps(model, head_logits)
    try:
        with full_precision():
            yield predict
    finally:
        model.train(training)
        vars(model).pop('postprocess_result', None)
        if head is not None:
            vars(head).pop('_get_predictions', None)


def read_logits(model: nn.Module, batch: Any, *, from_scores: bool = False) -> list[Tensor]:
    """Return the logits ``(K, *)`` of the images of a batch, see :func:`predictor`."""
    with predictor(model, from_scores=from_scores) as predict:
        return predict(batch).logits


def _watch_maps(model: nn.Module, head_logits: list[Tensor]) -> Callable:
    """Return a ``postprocess_result`` of a binary segmentor that notes the logits of each map."""
    original = type(model).postprocess_result

    def postprocess(seg_logits: Tensor, data_samples: list | None = None) -> list:
        # mmseg applies a sigmoid to maps of one channel, and only resizes those of two.
        pair = with_other_class(seg_logits)
        for sample in original(model, pair, data_samples):
            head_logits.append(sample.seg_logits.data[1:])
        return original(model, seg_logits, data_samples)

    return postprocess


def _scores_are_softmax(samples: list[BaseDataElement], logits: list[Tensor]) -> bool:
    """Return whether the scores of classified images are the softmax of logits ``(K,)``."""
    if len(samples) != len(logits):
        return False
    for sample, image_logits in zip(samples, logits, strict=True):
        probs = at_least_single(image_logits).softmax(dim=0)
        scores = at_least_single(sample.pred_score)
        if scores.shape != probs.shape or (scores - probs).abs().max() > SUM_TOLERANCE:
            return False
    return True


def _watch_scores(head: nn.Module, head_logits: list[Tensor]) -> Callable:
    """Return a ``_get_predictions`` of a classifier's head that notes the logits of each image."""
    original = type(head)._get_predictions

    def get_predictions(cls_score: Tensor, data_samples: list | None) -> list:
        head_logits.extend(cls_score)
        return original(head, cls_score, data_samples)

    return get_predictions
