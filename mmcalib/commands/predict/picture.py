"""A prediction without labels as a picture: classes, confidence, and what a threshold keeps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from matplotlib import font_manager
from PIL import Image, ImageDraw, ImageFont

from mmcalib.texts import printable
from mmcalib.visualization.confidence_maps import class_colours, confidence_colours

# Longer side of an image on the picture, in pixels: smaller ones are enlarged, larger ones shrunk.
LARGEST_SIDE = 420
SMALLEST_SIDE = 160
# In pixels.
PICTURE_GAP = 12
LINE_HEIGHT = 20
FONT_SIZE = 13
MOST_BARS = 5


@dataclass(frozen=True)
class LegendEntry:
    """Line of a legend: a square in a colour, which is RGB from 0 to 255, and a text."""

    text: str
    colour: np.ndarray


def draw_segmentation(
    image: np.ndarray,
    predicted: np.ndarray,
    confidence: np.ndarray,
    *,
    threshold: float,
    classes: Sequence[str],
    palette: Sequence[Sequence[int]] | None,
    captions: Sequence[str],
    objects: np.ndarray,
    scores: Mapping[int, tuple[int, str]],
) -> Image.Image:
    """Draw an image, its predicted classes, their confidence, and what a threshold keeps of them.

    The scale of confidence is always 0 to 100 %, dark where the network is sure.

    Args:
        image: ``(h, w, 3)`` uint8, RGB.
        predicted: ``(H, W)`` classes.
        confidence: ``(H, W)``, in [0, 1].
        threshold: Confidence; pixels that are not above it are white in the last panel.
        classes: K names.
        palette: K RGB colours; those of matplotlib if None.
        captions: Lines below the panels.
        objects: ``(H, W)`` numbers of objects, 0 for none, to be outlined on the image.
        scores: Class of each object and its text in the legend, by its number.
    """
    size = picture_size(predicted.shape)
    colours = class_colours(classes, palette)
    predicted = _resize(predicted.astype(np.int32), size)
    confidence = _resize(confidence, size)
    is_kept = (confidence > threshold)[..., None]
    kept = np.where(is_kept, colours[predicted], 255).astype(np.uint8)
    pixels = _resize(image, size, Image.Resampling.BOX)
    objects = _resize(objects.astype(np.int32), size)
    pixels = _outline_objects(pixels, objects, colours[predicted], scores)
    panels = {
        'image': pixels,
        'prediction': colours[predicted],
        'confidence (yellow 0, blue 100 %)': confidence_colours(confidence),
        f'kept above {threshold:.6g} (white: dropped)': kept,
    }
    legend = [
        LegendEntry(f'{number}: {classes[class_index]}, {text}', colours[class_index])
        for number, (class_index, text) in scores.items()
    ]
    return _compose(panels, captions, legend)


def _outline_objects(
    pixels: np.ndarray, objects: np.ndarray, colours: np.ndarray, numbers: Iterable[int]
) -> np.ndarray:
    """Return an image with a line in its class's colour around each object, and some numbers."""
    padded = np.pad(objects, 1, constant_values=-1)
    neighbours = [padded[1:-1, :-2], padded[1:-1, 2:], padded[:-2, 1:-1], padded[2:, 1:-1]]
    touches_other = np.any([objects != neighbour for neighbour in neighbours], axis=0)
    is_edge = ((objects > 0) & touches_other)[..., None]
    picture = Image.fromarray(np.where(is_edge, colours, pixels).astype(np.uint8))
    draw = ImageDraw.Draw(picture)
    for number in numbers:
        coordinates = np.argwhere(objects == number)
        if len(coordinates) == 0:  # The picture is too small for this object.
            continue
        distances = np.abs(coordinates - coordinates.mean(axis=0)).sum(axis=1)
        y, x = coordinates[distances.argmin()].tolist()
        draw.text(
            (x, y),
            str(number),
            'white',
            _font(),
            stroke_width=2,
            stroke_fill='black',
            anchor='mm',
        )
    return np.asarray(picture)


def draw_classification(
    image: np.ndarray,
    probabilities: np.ndarray,
    *,
    classes: Sequence[str],
    captions: Sequence[str],
) -> Image.Image:
    """Draw an image above its most probable classes, in the colours of their probabilities.

    Args:
        image: ``(h, w, 3)`` uint8, RGB.
        probabilities: ``(K,)``.
        classes: K names.
        captions: Lines below.
    """
    size = picture_size(image.shape[:2])
    is_enlarged = size[0] > image.shape[1]
    method = Image.Resampling.NEAREST if is_enlarged else Image.Resampling.BOX
    panels = {'image': _resize(image, size, method)}
    most_probable = np.argsort(-probabilities, kind='stable')[:MOST_BARS]
    colours = confidence_colours(probabilities[most_probable].clip(max=1))
    legend = [
        LegendEntry(f'{100 * probabilities[index]:.1f} % {classes[index]}', colour)
        for index, colour in zip(most_probable, colours, strict=True)
    ]
    return _compose(panels, captions, legend)


def picture_size(shape: tuple[int, int]) -> tuple[int, int]:
    """Return the width and height on a picture of an image of some height and width."""
    height, width = shape
    longer_side = max(shape)
    if longer_side > SMALLEST_SIDE:
        factor = min(1, LARGEST_SIDE / longer_side)
    else:
        factor = SMALLEST_SIDE / longer_side
    return max(1, round(factor * width)), max(1, round(factor * height))


def _resize(
    pixels: np.ndarray, size: tuple[int, int], method: Image.Resampling = Image.Resampling.NEAREST
) -> np.ndarray:
    return np.asarray(Image.fromarray(pixels).resize(size, method))


def _compose(
    panels: Mapping[str, np.ndarray], captions: Sequence[str], legend: Sequence[LegendEntry]
) -> Image.Image:
    """Return panels of one size beside each other, with captions and a coloured legend below."""
    # The name of a class may have a new line, which Pillow does not measure.
    captions = [printable(caption) for caption in captions]
    texts = [printable(entry.text) for entry in legend]
    panel_height, panel_width = next(iter(panels.values())).shape[:2]
    panel_step = max(panel_width, _text_width(panels)) + PICTURE_GAP
    legend_step = _text_width(texts) + LINE_HEIGHT + PICTURE_GAP
    width = max(len(panels) * panel_step, legend_step, _text_width(captions))
    legend_columns = width // legend_step
    num_lines = 1 + len(captions) + -(-len(legend) // legend_columns)
    height = panel_height + LINE_HEIGHT * num_lines
    picture = Image.new('RGB', (width + 2 * PICTURE_GAP, height + 3 * PICTURE_GAP), 'white')
    draw = ImageDraw.Draw(picture)
    draw.font = _font()
    panel_top = PICTURE_GAP // 2 + LINE_HEIGHT
    for index, (name, pixels) in enumerate(panels.items()):
        x = PICTURE_GAP + index * panel_step
        draw.text((x, PICTURE_GAP // 2), name, 'dimgrey')
        frame = (x - 1, panel_top - 1, x + panel_width, panel_top + panel_height)
        draw.rectangle(frame, outline='dimgrey')
        picture.paste(Image.fromarray(pixels), (x, panel_top))
    captions_top = panel_height + LINE_HEIGHT + PICTURE_GAP
    for index, caption in enumerate(captions):
        draw.text((PICTURE_GAP, captions_top + LINE_HEIGHT * index), caption, 'black')
    legend_top = captions_top + LINE_HEIGHT * len(captions)
    for index, (text, entry) in enumerate(zip(texts, legend, strict=True)):
        row, column = divmod(index, legend_columns)
        x = PICTURE_GAP + legend_step * column
        y = legend_top + LINE_HEIGHT * row
        draw.rectangle((x, y + 3, x + 12, y + 15), tuple(entry.colour.tolist()), 'dimgrey')
        draw.text((x + LINE_HEIGHT, y), text, 'black')
    return picture


def _text_width(lines: Iterable[str]) -> int:
    """Return the width of the longest of some lines, in pixels."""
    return int(max(map(_font().getlength, lines), default=0)) + 1


@cache
def _font() -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(font_manager.findfont('DejaVu Sans'), FONT_SIZE)
