"""Maps of logits, or crops of them drawn at random, in memory that no data set outgrows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from mmcalib.posthoc.logit_scaler import LogitScaler
from mmcalib.posthoc.model_logits import predictor, progress
from mmcalib.samples.evaluated import read_logits
from mmcalib.samples.fields import label_maps

# 400 MB in single precision; of 21 classes 1162 crops of 64 pixels, or 72 of 256.
NUM_VALUES = 100_000_000
# Crops are as large as the limit lets them be, since images, not pixels, are what a fit lacks.
SIDES = (512, 256, 128, 64)
# So many pixels beside a cut are context, which a scaling sees but is not fitted to.
CONTEXT = 8


@dataclass
class DrawnMaps:
    """Maps of a split, or a crop of each.

    Attributes:
        logits: Of each map ``(K, H, W)``, float32 or float64, on the CPU.
        labels: Of each map ``(H, W)`` int64; `ignore_index` also where there is only context.
        images: ``(N,)`` int64, which image of the loader each is of.
        ignore_index: Label of the pixels to leave out.
        population: How many valid predictions the split has.
        num_images: How many images it has.
    """

    logits: list[Tensor]
    labels: list[Tensor]
    images: Tensor
    ignore_index: int
    population: int
    num_images: int

    def fit(self, scaler: LogitScaler, kept: Tensor | None = None) -> LogitScaler:
        """Fit a scaler to the maps of all images, or of those that a mask ``(n,)`` keeps."""
        kept = torch.ones(self.num_images, dtype=torch.bool) if kept is None else kept
        places = kept[self.images].nonzero()[:, 0].tolist()
        return scaler.fit(
            [self.logits[place] for place in places],
            [self.labels[place] for place in places],
            self.images[places],
            ignore_index=self.ignore_index,
        )

    @property
    def is_everything(self) -> bool:
        """Whether no prediction was left out."""
        valid = sum(int((labels != self.ignore_index).sum()) for labels in self.labels)
        return valid == self.population


@dataclass(eq=False)
class _Kept:
    image: int
    size: tuple[int, int]
    place: tuple[float, float]
    priority: float
    logits: Tensor
    labels: Tensor
    # Of the map within the image.
    top: int = 0
    left: int = 0


def draw_maps(
    model: nn.Module,
    loader: Iterable,
    *,
    num_values: int = NUM_VALUES,
    seed: int = 0,
    ignore_index: int = 255,
    of_samples: bool = False,
    text: str = 'Reading maps of logits',
) -> DrawnMaps:
    """Draw maps of logits with their labels from a split, in one pass.

    Whole maps are kept while they fit. Then all of them are cropped, to squares of at most 512,
    256, 128 and at last 64 pixels, and only then images are left out, each as likely as any other.
    At most `num_values` logits are in memory, and an image. Crops lie at random, so pixels near the
    edge of an image are rarer than others; images without a valid pixel are left out. The draw
    depends on the seed and the order of the loader, not on its batch size.

    Args:
        model: See :func:`~mmcalib.posthoc.model_logits.predictor`; a segmentor.
        loader: Batches of the split, in a fixed order.
        num_values: How many logits to keep at most, but for one crop.
        seed: Of the draw.
        ignore_index: Label of the pixels to leave out.
        of_samples: See :func:`~mmcalib.posthoc.model_logits.predictor`.
        text: What the progress bar says.

    Raises:
        TypeError: If the model is a classifier.
        ValueError: If the split has no valid prediction, or one that
            :func:`~mmcalib.samples.evaluated.read_logits` refuses.
    """
    kept = _Crops(num_values)
    num_images = population = 0
    with predictor(model, of_samples=of_samples) as predict:
        for batch in progress(loader, text):
            for image in predict(batch):
                if image.logits.ndim != 3:
                    raise TypeError(
                        f'{type(model).__name__} is a classifier: a scaling of maps requires a '
                        'segmentor'
                    )
                _, valid, _ = read_logits(
                    image.sample, image.logits, ignore_index=ignore_index, name=image.name
                )
                generator = torch.Generator().manual_seed(1_000_003 * seed + num_images)
                draws = torch.rand(3, generator=generator, dtype=torch.float64).tolist()
                if len(valid):
                    label = label_maps(image.sample, image.name)[1].cpu().long()
                    size = tuple(label.shape)
                    logits = image.logits.detach()
                    kept.add(_Kept(num_images, size, draws[:2], draws[2], logits, label))
                population += len(valid)
                num_images += 1
    if not population:
        raise ValueError(f'no valid prediction in {num_images} images: there is nothing to fit')
    for one in kept.maps:
        _ignore_context(one, ignore_index)
    return DrawnMaps(
        [one.logits for one in kept.maps],
        [one.labels for one in kept.maps],
        torch.tensor([one.image for one in kept.maps]),
        ignore_index,
        population,
        num_images,
    )


class _Crops:
    """Maps within a limit of values."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.maps: list[_Kept] = []
        self.sides = list(SIDES)
        self.side: int | None = None

    def add(self, one: _Kept) -> None:
        _crop(one, self.side)
        one.logits = one.logits.cpu()
        self.maps.append(one)
        while self._count() > self.limit and self.sides:
            self.side = self.sides.pop(0)
            for other in self.maps:
                _crop(other, self.side)
        while self._count() > self.limit and len(self.maps) > 1:
            self.maps.remove(max(self.maps, key=lambda other: other.priority))

    def _count(self) -> int:
        return sum(one.logits.numel() for one in self.maps)


def _crop(one: _Kept, side: int | None) -> None:
    """Crop a map to at most `side` pixels in height and width, in place, if it is larger."""
    height, width = one.labels.shape
    if side is None or max(height, width) <= side:
        return
    top = int(one.place[0] * (max(height - side, 0) + 1))
    left = int(one.place[1] * (max(width - side, 0) + 1))
    inside = (slice(top, top + side), slice(left, left + side))
    # A view would keep the whole map in memory.
    one.labels, one.logits = one.labels[inside].clone(), one.logits[(slice(None), *inside)].clone()
    one.top, one.left = one.top + top, one.left + left


def _ignore_context(one: _Kept, ignore_index: int) -> None:
    """Set the labels beside the cut sides of a crop to the ignored one, in place."""
    (height, width), (full_height, full_width) = one.labels.shape, one.size
    if one.top:
        one.labels[:CONTEXT] = ignore_index
    if one.top + height < full_height:
        one.labels[-CONTEXT:] = ignore_index
    if one.left:
        one.labels[:, :CONTEXT] = ignore_index
    if one.left + width < full_width:
        one.labels[:, -CONTEXT:] = ignore_index
