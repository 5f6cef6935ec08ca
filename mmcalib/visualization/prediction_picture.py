"""A prediction without labels as a picture: classes, confidence, and what a threshold keeps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

import numpy as np
from matplotlib import font_manager
from PIL import Image, ImageDraw, ImageFont

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
    scores: Sequence[tuple[int, str]] = (),
    objects: np.ndarray | None = None,
    numbers: Sequence[int] = (),
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
        scores: Classes and what the legend says of them.
        objects: ``(H, W)`` numbers of objects, 0 for none, to be outlined on the image.
        numbers: Of the objects that `scores` are of, which are written beside them.
    """
    size = _size(predicted.shape)
    colours = class_colours(classes, palette)
    predicted = _resized(predicted.astype(np.int32), size)
    confidence = _resized(confidence, size)
    kept = np.where((confidence > threshold)[..., None], colours[predicted], 255).astype(np.uint8)
    shown = _resized(image, size, Image.Resampling.BOX)
    if objects is not None:
        objects = _resized(objects.astype(np.int32), size)
        shown = _outlined(shown, objects, colours[predicted], numbers)
    panels = {
        'image': shown,
        'prediction': colours[predicted],
        'confidence (yellow 0, blue 100 %)': confidence_colours(confidence),
        f'kept above {threshold:.6g} (white: dropped)': kept,
    }
    marks = [f'{number}: ' for number in numbers] or [''] * len(scores)
    legend = [
        (colours[k], f'{mark}{classes[k]}{"," * bool(mark)} {text}'.strip())
        for mark, (k, text) in zip(marks, scores, strict=True)
    ]
    return _composed(panels, captions, legend)


def _outlined(
    pixels: np.ndarray, objects: np.ndarray, colours: np.ndarray, numbers: Sequence[int]
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
            distance = np.abs(places - places.mean(axis=0)).sum(axis=1)
            y, x = places[distance.argmin()]
            outline = dict(stroke_width=2, stroke_fill='black', anchor='mm')
            draw.text((int(x), int(y)), str(number), 'white', _font(), **outline)
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
    first = np.argsort(-probabilities, kind='stable')[:MOST_CLASSES]
    colours = confidence_colours(probabilities[first].clip(max=1))
    legend = [
        (colour, f'{100 * probabilities[k]:.1f} % {classes[k]}')
        for colour, k in zip(colours, first, strict=True)
    ]
    return _composed({'image': _resized(image, size, method)}, captions, legend)


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
    legend: Sequence[tuple[np.ndarray, str]],
) -> Image.Image:
    """Return panels of one size beside each other, with lines and coloured names below."""
    font = _font()
    width_of = lambda text: int(font.getlength(text)) + 1  # noqa: E731
    high, wide = next(iter(panels.values())).shape[:2]
    step = max([wide, *map(width_of, panels)]) + GAP
    column = max([width_of(text) for _, text in legend], default=0) + LINE + GAP
    width = max([len(panels) * step, column, *map(width_of, captions)])
    per_line = width // column
    lines = 1 + len(captions) + -(-len(legend) // per_line)
    size = width + 2 * GAP, high + LINE * lines + 3 * GAP
    picture = Image.new('RGB', size, 'white')
    draw = ImageDraw.Draw(picture)
    for number, (name, pixels) in enumerate(panels.items()):
        x = GAP + number * step
        draw.text((x, GAP // 2), name, 'dimgrey', font)
        picture.paste(Image.fromarray(pixels), (x, GAP // 2 + LINE))
        corners = x - 1, GAP // 2 + LINE - 1, x + wide, GAP // 2 + LINE + high
        draw.rectangle(corners, outline='dimgrey')
    y = high + LINE + GAP
    for line in captions:
        draw.text((GAP, y), line, 'black', font)
        y += LINE
    for number, (colour, text) in enumerate(legend):
        x, line = GAP + column * (number % per_line), y + LINE * (number // per_line)
        draw.rectangle((x, line + 3, x + 12, line + 15), tuple(map(int, colour)), 'dimgrey')
        draw.text((x + LINE, line), text, 'black', font)
    return picture


@cache
def _font() -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(font_manager.findfont('DejaVu Sans'), 13)
