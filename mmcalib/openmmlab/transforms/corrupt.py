"""Corruptions of images as in ImageNet-C, the same on any number of workers and processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from hashlib import blake2b

import numpy as np
from mmengine.registry import TRANSFORMS

from mmcalib.choices import CORRUPTION_GROUPS, CORRUPTIONS, SEVERITIES
from mmcalib.errors import UserError
from mmcalib.options import check_choice, check_integer
from mmcalib.tensors import unchanged_randomness

CHANNEL_STEPS = {'bgr': -1, 'rgb': 1}  # Slices of these steps change channels to RGB and back.
# These corruptions change each pixel by itself; the others depend on its neighbours.
PIXELWISE = (*CORRUPTION_GROUPS['noise'], 'speckle_noise', 'brightness', 'contrast', 'saturate')
LEAST_SIZE = 32  # imagecorruptions requires it of both sides, for all corruptions.
# These corruptions take their random numbers from generators of their own.
SEEDED = ('impulse_noise', 'glass_blur')


@TRANSFORMS.register_module()
class Corrupt:
    """Transform that corrupts an image as in ImageNet-C, by one of 15 corruptions or 4 held out.

    It stands after the image was loaded and resized, and before it is normalised or packed; labels
    do not change. Random choices depend only on the pixels of the image, the corruption, its
    severity and the seed, so a test gives the same numbers on any number of workers and processes,
    and of any part of its data.

    Source: Hendrycks and Dietterich, "Benchmarking Neural Network Robustness to Common Corruptions
    and Perturbations", ICLR 2019, in the form for images of any size of Michaelis et al.,
    "Benchmarking Robustness in Object Detection", 2019; ``docs/howto/shift.md`` lists the
    differences. The first two arguments are those of mmdetection's ``Corrupt``.

    Args:
        corruption: Name of one of :data:`mmcalib.choices.CORRUPTIONS`.
        severity: Severity from 1 to 5; 0 leaves the image as it is.
        seed: Seed of all random choices.
        channel_order: Channel order of the image: ``'bgr'``, as the toolboxes load files, or
            ``'rgb'``, like mmpretrain's CIFAR-10. Irrelevant for grey images.
        value_range: Values of black and white in images that are not 8-bit. These are converted to
            8 bits, corrupted and converted back; values outside the range are clipped.

    Raises:
        ImportError: If the extra ``mmcalib[shift]`` is not installed.
        TypeError: If the seed is no integer, or the range no numbers.
        ValueError: If an option is unknown or out of range; while transforming, for an image that
            has not 8 bits and no range, or is too small for the corruption.
    """

    def __init__(
        self,
        corruption: str,
        severity: int = 1,
        *,
        seed: int = 0,
        channel_order: str = 'bgr',
        value_range: Sequence[float] | None = None,
    ) -> None:
        self.corruption = check_choice('corruption', corruption, CORRUPTIONS)
        self.severity = check_choice('severity', severity, (0, *SEVERITIES))
        self.seed = check_integer('seed', seed, least=0)
        check_choice('channel_order', channel_order, CHANNEL_STEPS)
        self.channel_step = CHANNEL_STEPS[channel_order]
        self.value_range = value_range
        if value_range is not None and not -np.inf < value_range[0] < value_range[1] < np.inf:
            raise UserError(f'value_range must rise from black to white, got {value_range}')
        if severity:
            function = corruption_function(corruption)
            if corruption == 'glass_blur':  # It is compiled now, not in each worker that is forked.
                function(np.zeros((1, 1, 3), np.uint8), severity, seed=0)

    def __call__(self, results: dict) -> dict:
        if not self.severity:
            return results
        image = results['img']
        check_image(image, self.value_range)
        check_size(image.shape, [self.corruption])
        low, high = self.value_range or (0, 255)
        levels = np.rint(np.clip((image - low) / (high - low), 0, 1) * 255)
        values = low + self._corrupt(np.uint8(levels)) * ((high - low) / 255)
        if image.dtype.kind in 'iu':
            values = np.rint(values)
        results['img'] = np.ascontiguousarray(values, image.dtype)
        return results

    def _corrupt(self, image: np.ndarray) -> np.ndarray:
        """Return a corrupted 8-bit image."""
        is_grey = image.ndim == 2 or image.shape[2] == 1
        if is_grey:  # Three equal channels are corrupted, and red is kept.
            rgb = image.reshape(*image.shape[:2], 1).repeat(3, axis=2)
            return self._corrupt_rgb(rgb)[..., 0].reshape(image.shape)
        rgb = np.ascontiguousarray(image[..., :: self.channel_step])
        return self._corrupt_rgb(rgb)[..., :: self.channel_step]

    def _corrupt_rgb(self, rgb: np.ndarray) -> np.ndarray:
        """Return a corrupted 8-bit image of three channels."""
        from PIL import Image

        # The seed is a digest of the image and the options, four words of 32 bits.
        options = f'{self.seed} {self.corruption} {self.severity} {rgb.shape}'
        digest = blake2b(options.encode(), digest_size=16)
        digest.update(rgb)
        seeds = np.frombuffer(digest.digest(), '<u4')
        function = corruption_function(self.corruption)
        with unchanged_randomness():
            np.random.seed(seeds)
            if self.corruption in SEEDED:
                corrupted = function(Image.fromarray(rgb), self.severity, seed=int(seeds[0]))
            else:
                corrupted = function(Image.fromarray(rgb), self.severity)
        return np.uint8(corrupted)


def check_image(image: object, value_range: Sequence[float] | None = None) -> None:
    """Raise a ValueError unless an image has 8 bits or a range, without which it would wrap."""
    dtype = getattr(image, 'dtype', type(image))
    if dtype != np.uint8 and value_range is None:
        raise UserError(
            f'corruptions require 8-bit images, got {dtype}: corrupt before normalising, or set '
            'their black and white as value_range=(0, 65535), in metainfo or in Corrupt'
        )


def corruptions_too_large(shape: Sequence[int], corruptions: Sequence[str]) -> list[str]:
    """Return the corruptions that require larger images."""
    if min(shape[:2]) >= LEAST_SIZE:
        return []
    return [name for name in corruptions if name not in PIXELWISE]


def check_size(shape: Sequence[int], corruptions: Sequence[str]) -> None:
    """Raise a ValueError that names the corruptions that require larger images."""
    too_large = corruptions_too_large(shape, corruptions)
    if too_large:
        raise UserError(
            f'an image of {shape[0]}×{shape[1]} pixels is smaller than the '
            f'{LEAST_SIZE}×{LEAST_SIZE} that these corruptions require: leave out '
            f'{", ".join(too_large)}. Any size suits {", ".join(PIXELWISE)}'
        )


@cache
def corruption_function(name: str) -> Callable:
    """Return the function from a PIL image and a severity to the corrupted image.

    Raises:
        UserError: If its package is missing.
    """
    try:
        from imagecorruptions import corruption_dict
    except ImportError as error:
        raise UserError(
            "Corrupt requires imagecorruptions-imaug: pip install 'mmcalib[shift]'"
        ) from error
    return corruption_dict[name]
