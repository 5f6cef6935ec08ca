"""Segmented images as the paper shows them: labels, prediction, confidence, errors, reliability."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib
import numpy as np
import torch
from matplotlib.collections import PatchCollection
from matplotlib.figure import Figure
from matplotlib.image import BboxImage
from matplotlib.patches import Rectangle
from matplotlib.transforms import Bbox, TransformedBbox

from mmcalib.visualization.figure_style import (
    GREY,
    percent,
    shortened,
    text_width,
    wrapped,
)
from mmcalib.visualization.reliability_panels import draw_small
from mmcalib.visualization.saved_confidence_maps import ConfidenceView

PANELS = ('image', 'ground truth', 'prediction', 'confidence', 'errors')
# Dark where sure, as in the paper, so that doubt lights up.
COLOURMAP = 'cividis_r'
# RGB of the pixels in the panel of errors.
RIGHT_COLOUR, WRONG_COLOUR, IGNORED_COLOUR = (221, 221, 221), (213, 94, 0), (255, 255, 255)
ERROR_COLOURS = {RIGHT_COLOUR: 'right', WRONG_COLOUR: 'wrong', IGNORED_COLOUR: 'ignored'}
PANEL = 1.75  # inches
GAP = 0.08
CAPTION = 0.24
MARGIN = 0.15
LINE = 0.17
PER_LINE = 5  # classes in the legend, at most
HEAD = 0.22  # of the columns
TITLE = 0.2  # a line


def draw_confidence_maps(
    views: Sequence[ConfidenceView],
    *,
    classes: Sequence[str],
    palette: Sequence[Sequence[int]] | None = None,
    title: str = '',
    diagrams: bool = True,
) -> Figure:
    """Draw a row of panels for each view: five maps and a small reliability diagram.

    The scale of confidence is always 0 to 100 %, dark where the network is sure. Where the same
    image follows itself, as when several methods are compared, the image and its ground truth are
    not repeated.

    Source: the paper's qualitative figures of segmentation.

    Args:
        views: At least one; of any sizes.
        classes: K names.
        palette: K RGB colours, 0 to 255; a palette of matplotlib's if None.
        title: Above the figure.
        diagrams: Whether each row ends with its reliability diagram.

    Returns:
        The figure; ``savefig`` writes it.

    Raises:
        ValueError: If there is no view, or there are fewer colours than classes.
    """
    if not views:
        raise ValueError('there is no image to draw')
    colours = class_colours(classes, palette)
    # One grid for all, so that headings fit; its shape is that of the widest image.
    ratio = min(view.label.shape[0] / view.label.shape[1] for view in views)
    ratio = min(max(ratio, 0.5), 1.2)
    height = PANEL * ratio
    shown = _classes_shown(views, len(classes))

    strip = len(PANELS) * PANEL + (len(PANELS) - 1) * GAP
    diagram = min(height, PANEL)
    left = MARGIN
    width = left + strip + MARGIN + (0.55 + diagram + MARGIN if diagrams else 0)
    # Bold letters are a tenth wider.
    title = wrapped(title, (width - left - MARGIN) / 1.1, 11)
    top = MARGIN + (TITLE * (title.count('\n') + 1) + 0.1 if title else 0) + HEAD
    # The legend of the classes is as wide as three panels.
    legend = 3 * (PANEL + GAP)
    widest = max((text_width(classes[k], 8) for k in shown), default=0.0)
    per_line = min(max(int(legend // (widest + 0.35)), 1), PER_LINE)
    bottom = max(LINE * -(-len(shown) // per_line), 0.6) + 0.25
    total = top + len(views) * (height + CAPTION) + bottom
    figure = Figure(figsize=(width, total))

    def place(x: float, y: float, w: float, h: float) -> list[float]:
        """Return fractions of the figure for inches from its left and its top."""
        return [x / width, 1 - (y + h) / total, w / width, h / total]

    def paint(pixels: np.ndarray, *inches: float) -> None:
        """Put pixels onto the figure; axes would take several times longer."""
        box = TransformedBbox(Bbox.from_bounds(*place(*inches)), figure.transFigure)
        image = BboxImage(box, interpolation='nearest', origin='upper')
        image.set_data(pixels)
        figure.add_artist(image)

    def write(x: float, y: float, text: str, **style) -> None:
        figure.text(x / width, 1 - y / total, text, **style)

    if title:
        write(left, MARGIN, title, va='top', fontsize=11, weight='bold')
    for column, name in enumerate(PANELS):
        x = left + column * (PANEL + GAP) + PANEL / 2
        write(x, top - 0.04, name, ha='center', va='bottom', fontsize=9)
    if diagrams:
        x = left + strip + 0.55 + diagram / 2
        write(x, top - 0.04, 'reliability (%)', ha='center', va='bottom', fontsize=9)
    for row, view in enumerate(views):
        y = top + row * (height + CAPTION)
        again = row > 0 and _same_image(view, views[row - 1])
        paint(_strip(view, colours, height / PANEL, again), left, y, strip, height)
        write(left, y + height + 0.04, _caption(view, strip), va='top', fontsize=8, color=GREY)
        if diagrams:
            axes = figure.add_axes(place(left + strip + 0.55, y, diagram, diagram))
            draw_small(axes, torch.from_numpy(view.table))

    y = total - bottom + 0.12
    x = left + 3 * (PANEL + GAP)
    paint(confidence_colours(np.linspace(0, 1, 256))[None], x, y, PANEL, 0.12)
    for share in (0, 50, 100):
        write(x + PANEL * share / 100, y + 0.15, share, ha='center', va='top', fontsize=7)
    write(x + PANEL / 2, y + 0.28, 'confidence (%)', ha='center', va='top', fontsize=8)
    # Drawn by hand, since matplotlib's own legends take a third of the whole figure's time.
    column = legend / per_line
    entries = [
        (left + column * (n % per_line), y + LINE * (n // per_line), colours[k], classes[k])
        for n, k in enumerate(shown)
    ]
    x = left + 4 * (PANEL + GAP) + 0.2
    for line, (colour, name) in enumerate(ERROR_COLOURS.items()):
        entries.append((x, y + LINE * line, np.array(colour), name))
    swatches = [
        Rectangle(place(px, py, 0.15, 0.1)[:2], 0.15 / width, 0.1 / total) for px, py, *_ in entries
    ]
    figure.add_artist(
        PatchCollection(
            swatches, facecolors=[colour / 255 for *_, colour, _ in entries], edgecolors=GREY,
            linewidths=0.4, transform=figure.transFigure,
        )
    )  # fmt: skip
    for px, py, _, name in entries:
        write(px + 0.2, py - 0.02, name, va='top', fontsize=8)
    return figure


def confidence_colours(conf: np.ndarray) -> np.ndarray:
    """Return the ``(*, 3)`` uint8 colours of confidences from 0 to 1."""
    scale = (matplotlib.colormaps[COLOURMAP](np.arange(256))[:, :3] * 255).astype(np.uint8)
    return scale[(conf.astype(np.float32) * 255).round().astype(np.uint8)]


def _strip(view: ConfidenceView, colours: np.ndarray, ratio: float, again: bool) -> np.ndarray:
    """Return the five panels as one image, the first two blank if they are shown `again`."""
    label = np.where(
        view.valid[..., None], colours[np.where(view.valid, view.label, 0)], IGNORED_COLOUR
    )
    conf = confidence_colours(view.conf)
    right = np.where((view.predicted == view.label)[..., None], RIGHT_COLOUR, WRONG_COLOUR)
    errors = np.where(view.valid[..., None], right, IGNORED_COLOUR)
    panels = [view.image, label, colours[view.predicted], conf, errors]
    if again:
        panels[:2] = [np.full_like(panel, 255) for panel in panels[:2]]
    height, width = view.label.shape
    # Letterboxed to the panel's shape, and enlarged so that the gap is a whole number of pixels.
    across = max(width, round(height / ratio), 200)
    canvas = (round(across * ratio), across)
    gap = np.full((canvas[0], round(across * GAP / PANEL), 3), 255, np.uint8)
    parts = []
    for panel in panels:
        parts += [_fit(panel.astype(np.uint8), canvas), gap]
    return np.concatenate(parts[:-1], axis=1)


def _fit(pixels: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Enlarge or shrink an image to as much of a white canvas as it fills, in its middle."""
    scale = min(size[0] / pixels.shape[0], size[1] / pixels.shape[1])
    height, width = (max(1, round(extent * scale)) for extent in pixels.shape[:2])
    rows = np.arange(height) * pixels.shape[0] // height
    columns = np.arange(width) * pixels.shape[1] // width
    canvas = np.full((*size, 3), 255, np.uint8)
    top, left = (size[0] - height) // 2, (size[1] - width) // 2
    canvas[top : top + height, left : left + width] = pixels[rows[:, None], columns]
    return canvas


def _same_image(view: ConfidenceView, other: ConfidenceView) -> bool:
    return view.index == other.index and np.array_equal(view.label, other.label)


def _caption(view: ConfidenceView, inches: float) -> str:
    count, correct, conf = view.table.sum(axis=1)
    if count == 0:
        figures = ': no valid pixel'
    else:
        figures = (
            f': ECE {percent(view.error)}, accuracy {percent(100 * correct / count)}, '
            f'mean confidence {percent(100 * conf / count)}, {int(count):,} pixels'
        )
    return shortened(view.name, inches - text_width(figures, 8) - 0.1, 8) + figures


def class_colours(classes: Sequence[str], palette: Sequence[Sequence[int]] | None) -> np.ndarray:
    """Return the ``(K, 3)`` RGB colours of a palette, or of matplotlib's if it is None."""
    if palette is None:
        colours = matplotlib.colormaps['tab20'](np.arange(len(classes)) % 20)[:, :3]
        return (colours * 255).astype(np.uint8)
    if len(palette) < len(classes):
        raise ValueError(f'{len(classes)} classes need as many colours, got {len(palette)}')
    return np.asarray(palette, dtype=np.uint8)


def _classes_shown(views: Sequence[ConfidenceView], num_classes: int) -> list[int]:
    seen = {int(k) for view in views for k in np.unique(view.label[view.valid])}
    seen |= {int(k) for view in views for k in np.unique(view.predicted)}
    return sorted(k for k in seen if 0 <= k < num_classes)
