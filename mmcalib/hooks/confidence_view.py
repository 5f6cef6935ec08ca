"""Image, labels and confidences of a segmentor's data sample, for drawing confidence maps."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import cv2
import numpy as np
import torch
from mmengine import fileio
from torch import Tensor

from mmcalib.samples.reading import map_size, read_map

if TYPE_CHECKING:
    from mmcalib.visualization import ConfidenceView


def view_of(
    sample,
    inputs: Tensor,
    bins: Tensor,
    index: int,
    *,
    ignore_index: int,
    unnamed: str,
    max_size: int = 512,
    from_file: bool = True,
) -> ConfidenceView:
    """Return the view of one image.

    Args:
        sample: What the segmentor returned.
        inputs: ``(C, H, W)`` what it was given.
        bins: ``(3, B)`` bins of equal width of the image.
        index: Its place in the data set.
        ignore_index: Label of the pixels to leave out.
        unnamed: What to call an image that is no file.
        max_size: Larger ones are kept at about this many pixels a side.
        from_file: Whether to show the file of the image, rather than what the model was given.

    Raises:
        ValueError: If the sample is no segmentor's.
    """
    from mmcalib.visualization import ConfidenceView

    check_segmented(sample)
    size = map_size(sample)
    pixels = read_map(sample, step=-(-max(size) // max_size))
    path = sample.get('img_path')
    shown = path if from_file else None
    return ConfidenceView(
        index=index,
        name=Path(path).name if path else unnamed,
        image=_image(shown, inputs, size, tuple(pixels.label.shape)),
        label=pixels.label.numpy().astype(np.int16),
        predicted=pixels.predicted.numpy().astype(np.int16),
        conf=pixels.conf.numpy().astype(np.float16),
        valid=(pixels.label != ignore_index).numpy(),
        table=bins.numpy().copy(),
    )


def check_segmented(sample) -> None:
    """Raise a ValueError for a sample that is no segmentor's."""
    if map_size(sample) is None:
        raise ValueError(
            "ConfidenceMapHook is for mmseg's samples, which have seg_logits; this one has "
            f'{sorted(sample.keys())}'
        )


def _image(
    path: str | None, inputs: Tensor, size: tuple[int, int], drawn: tuple[int, int]
) -> np.ndarray:
    """Return the RGB pixels of an image, from its file or from the model's input."""
    image = None
    if path and fileio.exists(path):
        image = cv2.imdecode(np.frombuffer(fileio.get(path), np.uint8), cv2.IMREAD_COLOR)
    # Evaluated at another size, as under padding, the file would not lie under its labels.
    if image is None or image.shape[:2] != size:
        image = _pixels(inputs)
    image = cv2.cvtColor(image, cv2.COLOR_BGR2RGB)
    return cv2.resize(image, drawn[::-1], interpolation=cv2.INTER_AREA)


def _pixels(inputs: Tensor) -> np.ndarray:
    """Return ``(C, H, W)`` inputs as BGR, stretched to 0 to 255 if they are no bytes."""
    if inputs.dtype != torch.uint8:
        inputs = inputs.float()
        low, high = inputs.min(), inputs.max()
        inputs = (inputs - low) * (255 / (high - low).clamp(min=1e-12))
    image = inputs.cpu().numpy().astype(np.uint8).transpose(1, 2, 0)
    if image.shape[2] < 3:
        return np.repeat(image[..., :1], 3, axis=2)
    return np.ascontiguousarray(image[..., :3])
