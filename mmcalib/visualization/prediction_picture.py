"""A prediction without labels as a picture: classes, confidence, and what a threshold keeps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from types import MappingProxyType

import numpy as np
from matplotlib import font_manager
from PIL import Image, ImageDraw, ImageFont

from mmcalib.texts import printable
from mmcalib.visualization.confidence_maps import class_colours, confidence_colours

# Of an image on the picture, in pixels.
LARGEST, SMALLEST = 420, 160
GAP, LINE = 12, 20
MOST_CLASSES = 5


def draw_segmentation(
    image: np.ndarray,
    predicted: np.ndarray,
    confidence: np.ndarray,
    *,
    threshold: float,
    classes: Sequence[str],
    palette: Sequence[Sequence[int]] | None = None,
    captions: Sequence[str] = (),
    objects: np.ndarray | None = None,
    scores: Mapping[int, tuple[int, str]] = MappingProxyType({}),
) -> Image.Image:
    """Draw an image, its predicted classes, their confidence, and what a threshold keeps of them.

    The scale of confidence is always 0 to 100 %, dark where the network is sure.

    Args:
        image: ``(h, w, 3)`` uint8, RGB.
        predicted: ``(H, W)`` classes.
        confidence: ``(H, W)``, in [0, 1].
        threshold: What is not above it is white in the last panel.
        classes: K names.
        palette: K RGB colours; those of matplotlib if None.
        captions: Lines below the panels.
        objects: ``(H, W)`` numbers of objects, 0 for none, to be outlined on the image.
        scores: By numbers of objects, their classes and what the legend says of them.
    """
    size = _size(predicted.shape)
    colours = class_colours(classes, palette)
    predicted = _resized(predicted.astype(np.int32), size)
    confidence = _resized(confidence, size)
    kept = np.where((confidence > threshold)[..., None], colours[predicted], 255).astype(np.uint8)
    shown = _resized(image, size, Image.Resampling.BOX)
    if objects is not None:
        objects = _resized(objects.astype(np.int32), size)
        shown = _outlined(shown, objects, colours[predicted], scores)
    panels = {
        'image': shown,
        'prediction': colours[predicted],
        'confidence (yellow 0, blue 100 %)': confidence_colours(confidence),
        f'kept above {threshold:.6g} (white: dropped)': kept,
    }
    texts = [f'{number}: {classes[k]}, {text}' for number, (k, text) in scores.items()]
    return _composed(panels, captions, texts, [colours[k] for k, _ in scores.values()])


def _outlined(
    pixels: np.ndarray, objects: np.ndarray, colours: np.ndarray, numbers: Iterable[int]
) -> np.ndarray:
    """Return an image with a line in its class's colour around each object, and some numbers."""
    padded = np.pad(objects, 1, constant_values=-1)
    inner = [padded[1:-1, :-2], padded[1:-1, 2:], padded[:-2, 1:-1], padded[2:, 1:-1]]
    edge = (objects > 0) & np.any([objects != other for other in inner], axis=0)
    picture = Image.fromarray(np.where(edge[..., None], colours, pixels).astype(np.uint8))
    draw = ImageDraw.Draw(picture)
    for number in numbers:
        places = np.argwhere(objects == number)
        if len(places):  # not of an object that the picture is too small for
            y, x = places[np.abs(places - places.mean(axis=0)).sum(axis=1).argmin()].tolist()
            outline = dict(stroke_width=2, stroke_fill='black', anchor='mm')
            draw.text((x, y), str(number), 'white', _font(), **outline)
    return np.asarray(picture)


def draw_classification(
    image: np.ndarray,
    probabilities: np.ndarray,
    *,
    classes: Sequence[str],
    captions: Sequence[str] = (),
) -> Image.Image:
    """Draw an image above its most probable classes, in the colours of their probabilities.

    Args:
        image: ``(h, w, 3)`` uint8, RGB.
        probabilities: ``(K,)``.
        classes: K names.
        captions: Lines below.
    """
    size = _size(image.shape[:2])
    method = Image.Resampling.NEAREST if size[0] > image.shape[1] else Image.Resampling.BOX
    panels = {'image': _resized(image, size, method)}
    first = np.argsort(-probabilities, kind='stable')[:MOST_CLASSES]
    texts = [f'{100 * probabilities[k]:.1f} % {classes[k]}' for k in first]
    return _composed(panels, captions, texts, confidence_colours(probabilities[first].clip(max=1)))


def _size(shape: tuple[int, int]) -> tuple[int, int]:
    """Return width and height on the picture of what is so high and wide."""
    largest = max(shape)
    factor = min(1, LARGEST / largest) if largest > SMALLEST else SMALLEST / largest
    return max(1, round(factor * shape[1])), max(1, round(factor * shape[0]))


def _resized(
    pixels: np.ndarray, size: tuple[int, int], method: Image.Resampling = Image.Resampling.NEAREST
) -> np.ndarray:
    return np.asarray(Image.fromarray(pixels).resize(size, method))


def _composed(
    panels: Mapping[str, np.ndarray],
    captions: Sequence[str],
    texts: Sequence[str],
    colours: Sequence[np.ndarray],
) -> Image.Image:
    """Return panels of one size beside each other, with captions and coloured texts below."""
    # A name of a class may have a new line, which Pillow does not measure.
    captions = [printable(caption) for caption in captions]
    texts = [printable(text) for text in texts]
    widest = lambda lines: int(max(map(_font().getlength, lines), default=0)) + 1  # noqa: E731
    high, wide = next(iter(panels.values())).shape[:2]
    step, column = max(wide, widest(panels)) + GAP, widest(texts) + LINE + GAP
    width = max(len(panels) * step, column, widest(captions))
    per_line = width // column
    lines = 1 + len(captions) + -(-len(texts) // per_line)
    picture = Image.new('RGB', (width + 2 * GAP, high + LINE * lines + 3 * GAP), 'white')
    draw = ImageDraw.Draw(picture)
    draw.font, top = _font(), GAP // 2 + LINE
    for number, (name, pixels) in enumerate(panels.items()):
        x = GAP + number * step
        draw.text((x, GAP // 2), name, 'dimgrey')
        draw.rectangle((x - 1, top - 1, x + wide, top + high), outline='dimgrey')
        picture.paste(Image.fromarray(pixels), (x, top))
    below = high + LINE + GAP
    for number, line in enumerate(captions):
        draw.text((GAP, below + LINE * number), line, 'black')
    below += LINE * len(captions)
    for number, (text, colour) in enumerate(zip(texts, colours, strict=True)):
        x, y = GAP + column * (number % per_line), below + LINE * (number // per_line)
        draw.rectangle((x, y + 3, x + 12, y + 15), tuple(map(int, colour)), 'dimgrey')
        draw.text((x + LINE, y), text, 'black')
    return picture


@cache
def _font() -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(font_manager.findfont('DejaVu Sans'), 13)
