"""Raw logits out of a toolbox's model while it predicts."""

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

from mmcalib.ensembles import MeanProbabilityModel
from mmcalib.posthoc.full_precision import full_precision
from mmcalib.posthoc.predicted_samples import evaluated_sample, logits_behind


class NotLogitsError(ValueError):
    """A head returns something else than one tensor of logits."""


@dataclass
class ImageLogits:
    """One evaluated image: its data sample as a dict, and the ``(K, …)`` logits behind it."""

    sample: dict
    logits: Tensor
    name: str


@contextmanager
def predictor(
    model: nn.Module, *, of_samples: bool = False
) -> Iterator[Callable[[Any], list[ImageLogits]]]:
    """Give a function from a batch to the images' predictions, with the logits behind them.

    A classifier's logits are what its head returns; a segmentor's those that it would return as
    ``seg_logits``, also where a sigmoid comes in between, at the images' original size. A head
    that draws at random, as SegNeXt's does, draws the same whenever a batch is predicted: so two
    predictions of a batch differ in nothing but the weights.

    Args:
        model: mmpretrain's or mmseg's, or one with the same methods.
        of_samples: Whether to take the logits that the predicted scores stand for, whatever the
            head has returned, see :func:`~mmcalib.posthoc.predicted_samples.logits_behind`; always
            those of a :class:`~mmcalib.ensembles.MeanProbabilityModel`.

    Raises:
        TypeError: If it is neither.
        NotLogitsError: While predicting, if a head returns anything but one tensor of logits.
    """
    captured: list[Tensor] = []
    of_samples = of_samples or isinstance(model, MeanProbabilityModel)
    calibrated = hasattr(model, 'calibration')
    if of_samples:
        watching = nullcontext()
    elif hasattr(model, 'postprocess_result'):
        watching = _watch_segmentor(model, captured)
    elif isinstance(getattr(model, 'head', None), nn.Module):
        watching = _watch_classifier(model.head, captured)
    else:
        raise TypeError(
            f'{type(model).__name__} is neither an mmpretrain classifier with a head nor an mmseg '
            'segmentor, so its logits are unknown'
        )
    count = 0

    def predict(batch: Any) -> list[ImageLogits]:
        nonlocal count
        captured.clear()
        with torch.no_grad(), _same_draws(next(model.parameters()).device):
            samples = model.val_step(batch)
        if of_samples:
            captured.extend(logits_behind(model, s, calibrated=calibrated) for s in samples)
        if len(captured) != len(samples):
            raise ValueError(
                f'{type(model).__name__} predicted {len(samples)} images out of {len(captured)} '
                'rows of logits: leave out test-time augmentation and second calls of the head'
            )
        images = []
        for sample, logits in zip(samples, captured, strict=True):
            name = sample.get('img_path') or f'sample {count}'
            content = evaluated_sample(model, sample) if of_samples else sample.to_dict()
            images.append(ImageLogits(content, logits, str(name)))
            count += 1
        return images

    training = model.training
    model.eval()
    try:
        with watching, full_precision():
            yield predict
    finally:
        model.train(training)


@contextmanager
def _same_draws(device: torch.device) -> Iterator[None]:
    with torch.random.fork_rng([device] if device.type == 'cuda' else []):
        torch.manual_seed(0)
        yield


@contextmanager
def _watch_segmentor(model: nn.Module, captured: list[Tensor]) -> Iterator[None]:
    original = model.postprocess_result

    def postprocess(seg_logits: Tensor, data_samples: list | None = None) -> list:
        binary = seg_logits.shape[1] == 1
        if binary:
            # Of one channel only its sigmoid comes out, whose logit has lost digits; a second one
            # makes them logits of a softmax, which are left as they are.
            pair = torch.cat([torch.zeros_like(seg_logits), seg_logits], dim=1)
            captured.extend(s.seg_logits.data[1:] for s in original(pair, data_samples))
        samples = original(seg_logits, data_samples)
        if not binary:
            captured.extend(s.seg_logits.data for s in samples)
        return samples

    model.postprocess_result = postprocess
    try:
        yield
    finally:
        del model.postprocess_result


@contextmanager
def _watch_classifier(head: nn.Module, captured: list[Tensor]) -> Iterator[None]:
    def keep(module: nn.Module, inputs: tuple, output: Any) -> None:
        if not torch.is_tensor(output) or output.ndim != 2:
            what = tuple(output.shape) if torch.is_tensor(output) else type(output).__name__
            raise NotLogitsError(
                f'{type(head).__name__} returns {what}, not (N, K) logits, so what it predicts is '
                'not one linear layer'
            )
        captured.extend(output.detach())

    handle = head.register_forward_hook(keep)
    try:
        yield
    finally:
        handle.remove()


def progress(items: Iterable, text: str, *, total: int | None = None) -> Iterable:
    """Show a progress bar on stderr, of batches of a loader, or of so many items.

    The first of several processes shows it.
    """
    total = len(items) if total is None else total
    console = Console(stderr=True)
    return track(items, text, total=total, console=console, disable=not is_main_process())
