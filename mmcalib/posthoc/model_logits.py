"""The logits behind what a toolbox's model predicts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from mmengine.dist import is_main_process
from rich.console import Console
from rich.progress import track
from torch import Tensor, nn

from mmcalib.models.predicting_head import head_of
from mmcalib.posthoc.attached import evaluated_sample, logits_behind
from mmcalib.posthoc.full_precision import full_precision


@dataclass
class ImageLogits:
    """One evaluated image: its data sample as a dict, and the ``(K, *)`` logits behind it."""

    sample: dict
    logits: Tensor
    name: str


@contextmanager
def predictor(
    model: nn.Module, *, of_samples: bool = False
) -> Iterator[Callable[[Any], list[ImageLogits]]]:
    """Give a function from a batch to the images' predictions, with the logits behind them.

    They are read from the data samples (:func:`~mmcalib.posthoc.attached.logits_behind`), up to
    what a softmax ignores. A head that draws at random, as SegNeXt's does, draws the same whenever
    a batch is predicted: so two predictions of a batch differ in nothing but the weights.

    Args:
        model: mmpretrain's or mmseg's, or one with the same methods.
        of_samples: Whether a binary segmentor's are of its samples too, whose sigmoid has lost the
            digits of logits above 17. By default they are those before the sigmoid, which a layer
            would scale.

    Raises:
        ValueError: If the model has no head.
    """
    if getattr(model, 'head', model) is None:
        raise ValueError(f'{type(model).__name__} has no head, so it predicts no classes')
    exact: list[Tensor] = []
    binary = getattr(head_of(model), 'out_channels', None) == 1
    watched = binary and not of_samples and hasattr(model, 'postprocess_result')
    calibrated = hasattr(model, 'calibration')
    count = 0

    def predict(batch: Any) -> list[ImageLogits]:
        nonlocal count
        exact.clear()
        with torch.no_grad(), _same_draws(next(model.parameters()).device):
            samples = model.val_step(batch)
        images = []
        for sample in samples:
            logits = (
                exact.pop(0) if watched else logits_behind(model, sample, calibrated=calibrated)
            )
            name = sample.get('img_path') or f'sample {count}'
            images.append(ImageLogits(evaluated_sample(model, sample), logits, str(name)))
            count += 1
        return images

    training = model.training
    model.eval()
    try:
        with _before_the_sigmoid(model, exact) if watched else nullcontext(), full_precision():
            yield predict
    finally:
        model.train(training)


@contextmanager
def _same_draws(device: torch.device) -> Iterator[None]:
    with torch.random.fork_rng([device] if device.type == 'cuda' else []):
        torch.manual_seed(0)
        yield


@contextmanager
def _before_the_sigmoid(model: nn.Module, exact: list[Tensor]) -> Iterator[None]:
    original = model.postprocess_result

    def postprocess(seg_logits: Tensor, data_samples: list | None = None) -> list:
        # A second channel makes them logits of a softmax, which are left as they are.
        pair = torch.cat([torch.zeros_like(seg_logits), seg_logits], dim=1)
        exact.extend(s.seg_logits.data[1:] for s in original(pair, data_samples))
        return original(seg_logits, data_samples)

    model.postprocess_result = postprocess
    try:
        yield
    finally:
        del model.postprocess_result


def progress(items: Iterable, text: str, *, total: int | None = None) -> Iterable:
    """Show a progress bar on stderr, of batches of a loader, or of so many items.

    The first of several processes shows it.
    """
    total = len(items) if total is None else total
    console = Console(stderr=True)
    return track(items, text, total=total, console=console, disable=not is_main_process())
