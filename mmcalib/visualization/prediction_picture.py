"""A prediction without labels as a picture: classes, confidence, and what a threshold keeps."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
from matplotlib import font_manager
from PIL import Image, ImageDraw, ImageFont

from mmcalib.visualization.confidence_maps import class_colours, confidence_colours

# Of an image on the picture, in pixels.
LARGEST, SMALLEST = 420, 160
GAP, LINE, BAR = 12, 20, 150
WHITE, BLACK, GREY = (255, 255, 255), (0, 0, 0), (90, 90, 90)
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
    rows, columns = (
        (np.arange(new) * old // new) for new, old in zip(size[::-1], predicted.shape, strict=True)
    )
    predicted, confidence = (plane[rows[:, None], columns] for plane in (predicted, confidence))
    kept = np.where((confidence > threshold)[..., None], colours[predicted], WHITE)
    resized = np.array(Image.fromarray(image).resize(size, Image.Resampling.BOX))
    if objects is not None:
        objects = objects[rows[:, None], columns]
        resized = _outlined(resized, objects, colours[predicted], numbers)
    panels = {
        'image': resized,
        'prediction': colours[predicted],
        'confidence (%)': confidence_colours(confidence),
        f'kept above {threshold:.6g} (white: dropped)': kept,
    }
    marks = [f'{number}: ' for number in numbers] or [''] * len(scores)
    legend = [
        (colours[k], f'{mark}{classes[k]}{"," * bool(mark)} {text}'.strip())
        for mark, (k, text) in zip(marks, scores, strict=True)
    ]
    column = max([_width(text) + 32 for _, text in legend], default=1)
    step = max([size[0], *map(_width, panels)]) + GAP  # of small images, names are wider
    width = max(
        [len(panels) * step + GAP, column + GAP, *(_width(line) + 2 * GAP for line in captions)]
    )
    per_line = max(1, (width - GAP) // column)
    lines = -(-len(legend) // per_line)
    height = LINE + size[1] + LINE * (1 + len(captions) + lines) + 2 * GAP
    picture = Image.new('RGB', (width, height), WHITE)
    draw = ImageDraw.Draw(picture)
    for number, (name, pixels) in enumerate(panels.items()):
        x = GAP + number * step
        _write(draw, (x, GAP // 2), name, GREY)
        picture.paste(Image.fromarray(pixels.astype(np.uint8)), (x, GAP // 2 + LINE))
        draw.rectangle(
            (x - 1, GAP // 2 + LINE - 1, x + size[0], GAP // 2 + LINE + size[1]), outline=GREY
        )
        if name.startswith('confidence'):
            _draw_scale(picture, x, GAP + LINE + size[1], size[0])
    y = GAP + size[1] + 2 * LINE
    for line in captions:
        _write(draw, (GAP, y), line)
        y += LINE
    for number, (colour, text) in enumerate(legend):
        x, line = GAP + column * (number % per_line), y + LINE * (number // per_line)
        draw.rectangle((x, line + 3, x + 16, line + 14), fill=tuple(map(int, colour)), outline=GREY)
        _write(draw, (x + 22, line), text)
    return picture


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
            place = (int(x) - _width(str(number)) // 2, int(y) - LINE // 2)
            draw.text(
                place, str(number), font=_font(), fill=WHITE, stroke_width=2, stroke_fill=BLACK
            )
    return np.asarray(picture)


def draw_classification(
    image: np.ndarray,
    probabilities: np.ndarray,
    *,
    classes: Sequence[str],
    captions: Sequence[str] = (),
) -> Image.Image:
    """Draw an image beside bars of its most probable classes.

    Args:
        image: ``(h, w, 3)`` uint8, RGB.
        probabilities: ``(K,)``.
        classes: K names.
        captions: Lines below.
    """
    size = _size(image.shape[:2])
    method = Image.Resampling.NEAREST if size[0] > image.shape[1] else Image.Resampling.BOX
    first = np.argsort(-probabilities, kind='stable')[:MOST_CLASSES]
    names = max(_width(classes[k]) for k in first)
    beside = 2 * GAP + size[0]
    width = beside + names + BAR + 90
    width = max([width, *(_width(line) + 2 * GAP for line in captions)])
    height = max(size[1], LINE * len(first)) + LINE * len(captions) + 3 * GAP
    picture = Image.new('RGB', (width, height), WHITE)
    draw = ImageDraw.Draw(picture)
    picture.paste(Image.fromarray(image).resize(size, method), (GAP, GAP))
    for number, k in enumerate(first):
        y, share = GAP + LINE * number, float(probabilities[k])
        _write(draw, (beside, y), classes[k])
        x = beside + names + GAP
        colour = tuple(map(int, confidence_colours(np.array(min(share, 1)))))
        draw.rectangle((x, y + 3, x + BAR, y + 14), outline=GREY)
        draw.rectangle((x, y + 3, x + round(BAR * share), y + 14), fill=colour, outline=GREY)
        _write(draw, (x + BAR + 6, y), f'{100 * share:.1f} %')
    for number, line in enumerate(captions):
        _write(draw, (GAP, height - GAP - LINE * (len(captions) - number)), line)
    return picture


def _size(shape: tuple[int, int]) -> tuple[int, int]:
    """Return width and height on the picture of what is so high and wide."""
    largest = max(shape)
    factor = min(1, LARGEST / largest) if largest > SMALLEST else SMALLEST / largest
    return max(1, round(factor * shape[1])), max(1, round(factor * shape[0]))


def _draw_scale(picture: Image.Image, x: int, y: int, width: int) -> None:
    width -= _width('100') + 6
    colours = confidence_colours(np.linspace(0, 1, width))
    start = x + _width('0') + 4
    width -= start - x
    picture.paste(Image.fromarray(np.repeat(colours[None, :width], 10, axis=0)), (start, y + 2))
    draw = ImageDraw.Draw(picture)
    _write(draw, (x, y - 2), '0')
    _write(draw, (start + width + 4, y - 2), '100')


@cache
def _font() -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(font_manager.findfont('DejaVu Sans'), 13)


def _width(text: str) -> int:
    return int(_font().getlength(text)) + 1


def _write(draw: ImageDraw.ImageDraw, place: tuple[int, int], text: str, colour=BLACK) -> None:
    draw.text(place, text, font=_font(), fill=colour)
