"""The scanned digits of scikit-learn with noise: data that every installation has."""

import numpy as np
from mmengine.dataset import BaseDataset
from mmengine.registry import DATASETS

from mmcalib.options import check_choice, check_number

CLASSES = tuple(str(digit) for digit in range(10))
VALUE_RANGE = (-1.5, 2.5)  # black and white of an image with its noise, for corruptions
SPLITS = {'train': slice(0, 800), 'val': slice(800, 1000), 'test': slice(1000, 1797)}


def _load_split(split: str) -> tuple[np.ndarray, np.ndarray]:
    """Return images ``(n, 8, 8)`` float32 in [0, 1] and labels ``(n,)`` of a fixed split."""
    from sklearn.datasets import load_digits  # takes a second to import, and few need it

    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))[SPLITS[split]]
    return (digits.images[order] / 16).astype(np.float32), digits.target[order].astype(np.int64)


@DATASETS.register_module()
class Digits(BaseDataset):
    """1,797 scanned digits of 8×8 pixels with additive noise: 800 train, 200 validation, 797 test.

    The noise is drawn once per image from a fixed seed, so a network can learn it by heart: plain
    cross-entropy over-fits into over-confidence, as it does on hard real data.

    Args:
        split: ``'train'``, ``'val'`` or ``'test'``.
        noise: Standard deviation of the Gaussian noise, as a share of the 0-1 grey range; 0 leaves
            the digits clean. Values are not clipped.
        pipeline: Transforms; each sample comes with ``img`` ``(8, 8)`` float32 and ``gt_label``, or
            with the fields of :class:`DigitScenes`.
        **kwargs: Further arguments of mmengine's ``BaseDataset``, such as ``indices``.

    Raises:
        TypeError: If the noise is no number.
        ValueError: If the split is unknown or the noise negative.
    """

    METAINFO = dict(classes=CLASSES, value_range=VALUE_RANGE)

    def __init__(self, split: str, *, noise: float = 0.4, pipeline=(), **kwargs) -> None:
        self.split = check_choice('split', split, SPLITS)
        self.noise = check_number('noise', noise)
        super().__init__(pipeline=list(pipeline), **kwargs)

    def load_data_list(self) -> list[dict]:
        images, labels = _load_split(self.split)
        rng = np.random.default_rng([1, list(SPLITS).index(self.split)])
        images = images + self.noise * rng.standard_normal(images.shape, dtype=np.float32)
        return [
            dict(img=image, gt_label=int(label), img_shape=(8, 8), ori_shape=(8, 8))
            for image, label in zip(images, labels, strict=True)
        ]


@DATASETS.register_module()
class DigitScenes(Digits):
    """Canvases with digits pasted onto them, for segmentation: 200 train, 50 validation, 200 test.

    Each 40×40 canvas holds sixteen digits of its own split at random places, under the additive
    noise of :class:`Digits`. Pixels of a digit's stroke have its class, 1 to 10, the
    rest is background (0), and a border one pixel wide around each stroke is 255, as in VOC.

    Its options are those of :class:`Digits`; each sample comes with ``img`` ``(40, 40)`` float32
    and ``gt_seg_map`` ``(40, 40)`` uint8.
    """

    METAINFO = dict(
        classes=('background', *CLASSES),
        value_range=VALUE_RANGE,
        # Tol's bright and muted schemes, which the colour-blind can tell apart.
        palette=[
            [0, 0, 0], [68, 119, 170], [102, 204, 238], [34, 136, 51], [204, 187, 68],
            [238, 102, 119], [170, 51, 119], [187, 187, 187], [51, 34, 136], [221, 204, 119],
            [136, 34, 85],
        ],
    )  # fmt: skip
    SIZES = dict(train=200, val=50, test=200)
    CANVAS = 40
    GRID = 4  # digits per row and column

    def load_data_list(self) -> list[dict]:
        images, labels = _load_split(self.split)
        rng = np.random.default_rng([2, list(SPLITS).index(self.split)])
        return [self._draw_scene(images, labels, rng) for _ in range(self.SIZES[self.split])]

    def _draw_scene(self, images: np.ndarray, labels: np.ndarray, rng: np.random.Generator) -> dict:
        """Return a sample of randomly chosen digits at random positions."""
        from scipy.ndimage import binary_dilation

        size = self.CANVAS
        img = np.zeros((size, size), np.float32)
        mask = np.zeros((size, size), np.uint8)
        cell = size // self.GRID
        digit_indices = rng.choice(len(labels), self.GRID**2, replace=False)
        for cell_number, index in enumerate(digit_indices):
            # Each digit has a cell of its own, so that digits never cover one another.
            jitter = rng.integers(0, cell - 8 + 1, 2)
            top, left = cell * np.array(divmod(cell_number, self.GRID)) + jitter
            window = slice(top, top + 8), slice(left, left + 8)
            img[window] = images[index]
            mask[window] = np.where(images[index] > 0.5, labels[index] + 1, 0)
        mask[binary_dilation(mask > 0) & (mask == 0)] = 255
        img += self.noise * rng.standard_normal(img.shape, dtype=np.float32)
        return dict(
            img=img,
            gt_seg_map=mask,
            seg_fields=['gt_seg_map'],
            img_shape=(size, size),
            ori_shape=(size, size),
        )
