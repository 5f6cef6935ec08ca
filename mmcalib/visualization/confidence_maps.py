"""Segmented images as the paper shows them: labels, prediction, confidence, errors, reliability."""

from __future__ import annotations

import json
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import matplotlib
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from mmcalib.checks import UserError
from mmcalib.metrics.errors import calibration_error
from mmcalib.visualization.reliability import draw_bars, draw_diagonal
from mmcalib.visualization.style import GREY, LETTER, percent
from mmcalib.work_dir import whole_file

PANELS = ('image', 'ground truth', 'prediction', 'confidence', 'errors')
# Dark where sure, as in the paper, so that doubt lights up.
COLOURMAP = 'cividis_r'
# RGB of the pixels in the panel of errors.
RIGHT_COLOUR, WRONG_COLOUR, IGNORED_COLOUR = (221, 221, 221), (213, 94, 0), (255, 255, 255)
ERROR_COLOURS = {'right': RIGHT_COLOUR, 'wrong': WRONG_COLOUR, 'ignored': IGNORED_COLOUR}
PANEL = 1.75  # inches
# What numpy raises for files that are cut off, overwritten, or of another kind.
BROKEN_FILE = (EOFError, KeyError, TypeError, ValueError, zipfile.BadZipFile, zlib.error)
ARRAYS = ('image', 'label', 'predicted', 'conf', 'valid', 'table')


@dataclass(frozen=True)
class ConfidenceView:
    """One segmented image, at the size at which it is drawn.

    Attributes:
        index: Its place in the dataset.
        name: What captions call it, such as its file name.
        image: ``(H, W, 3)`` uint8, RGB.
        label: ``(H, W)`` int16 true classes.
        predicted: ``(H, W)`` int16.
        conf: ``(H, W)`` float16 probability of the predicted class.
        valid: ``(H, W)`` booleans, False where the label is to be ignored.
        table: ``(3, B)`` bins of equal width of the whole image: count, correct, sum of
            confidences.
    """

    index: int
    name: str
    image: np.ndarray
    label: np.ndarray
    predicted: np.ndarray
    conf: np.ndarray
    valid: np.ndarray
    table: np.ndarray

    @property
    def error(self) -> float:
        """The expected calibration error of the image, in percent; NaN without a valid pixel."""
        return calibration_error(torch.from_numpy(self.table)).item()

    def renamed(self, name: str) -> ConfidenceView:
        """Return the same view under another name."""
        return replace(self, name=name)


@dataclass(frozen=True)
class ConfidenceMaps:
    """The images that one run keeps for confidence maps.

    Attributes:
        views: The chosen ones, in the order of the dataset.
        worst: Those with the largest calibration error, the worst first.
        classes: K names.
        palette: K RGB colours, 0 to 255; None for a palette of matplotlib's.
    """

    views: list[ConfidenceView]
    worst: list[ConfidenceView]
    classes: list[str]
    palette: list[list[int]] | None = None

    def save(self, path: str | Path) -> None:
        """Write everything to one compressed ``.npz`` file, in place of what it held."""
        arrays = {
            f'{kind}_{number}_{key}': value
            for kind in ('views', 'worst')
            for number, view in enumerate(getattr(self, kind))
            for key, value in vars(view).items()
            if key in ARRAYS
        }
        info = {
            kind: [{'index': view.index, 'name': view.name} for view in getattr(self, kind)]
            for kind in ('views', 'worst')
        }
        info |= {'classes': self.classes, 'palette': self.palette}
        with whole_file(path) as file:
            np.savez_compressed(file, info=json.dumps(info), **arrays)

    @classmethod
    def load(cls, path: str | Path) -> ConfidenceMaps:
        """Read what :meth:`save` wrote.

        Raises:
            ValueError: For another kind of file, or one that was cut off.
        """
        try:
            with np.load(path) as file:
                info = json.loads(str(file['info']))
                for kind in ('views', 'worst'):
                    info[kind] = [
                        ConfidenceView(
                            **view, **{key: file[f'{kind}_{number}_{key}'] for key in ARRAYS}
                        )
                        for number, view in enumerate(info[kind])
                    ]
                return cls(**info)
        except BROKEN_FILE as error:
            raise UserError(f'{path} does not hold confidence maps: {error!r}') from error


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
        raise UserError('there is no image to draw')
    colours = class_colours(classes, palette)
    columns = len(PANELS) + diagrams
    heights = [PANEL * min(max(v.label.shape[0] / v.label.shape[1], 0.5), 1.2) + 0.3 for v in views]
    heights[0] += 0.3  # the names of the panels
    shown = _classes_shown(views, len(classes))
    longest = max((len(classes[k]) for k in shown), default=0)
    across = max(1, int(3 * PANEL / (LETTER * longest + 0.45)))
    heights.append(max(0.18 * -(-len(shown) // across), 0.6) + 0.15)
    figure = Figure(
        figsize=(PANEL * columns, sum(heights) + 0.3 * bool(title)), layout='constrained'
    )
    figure.get_layout_engine().set(w_pad=0.03, h_pad=0.04, wspace=0, hspace=0)
    if title:
        figure.suptitle(title, fontsize=11, weight='bold', x=0.01, ha='left', wrap=True)
    *rows, below = figure.subfigures(len(heights), 1, height_ratios=heights)
    for number, (row, view) in enumerate(zip(rows, views, strict=True)):
        again = number > 0 and _same_image(view, views[number - 1])
        panels = row.subplots(1, columns)
        _draw_row(panels, view, colours, again)
        if number == 0:
            for axes, name in zip(panels, (*PANELS, 'reliability (%)'), strict=False):
                axes.set_title(name, fontsize=9, pad=3)
        row.supxlabel(_caption(view), fontsize=8, color=GREY, x=0.01, ha='left', y=0.0, va='bottom')
    left, middle, right = below.subplots(1, 3, width_ratios=(3, 1, columns - 4))
    for axes in (left, middle, right):
        axes.set_axis_off()
    _legend(left, {classes[k]: colours[k] for k in shown}, across)
    _legend(right, ERROR_COLOURS, 1)
    scale = ScalarMappable(Normalize(0, 100), COLOURMAP)
    bar = middle.inset_axes((0.05, 0.75, 0.9, 0.2))
    below.colorbar(scale, cax=bar, orientation='horizontal', ticks=(0, 50, 100))
    bar.set_xlabel('confidence (%)', fontsize=8)
    bar.tick_params(labelsize=7, length=2)
    return figure


def _draw_row(panels: np.ndarray, view: ConfidenceView, colours: np.ndarray, again: bool) -> None:
    """Draw the panels of a view, the first two blank if they are shown `again`."""
    errors = np.where((view.predicted == view.label)[..., None], RIGHT_COLOUR, WRONG_COLOUR)
    maps = [
        view.image,
        np.where(
            view.valid[..., None], colours[np.where(view.valid, view.label, 0)], IGNORED_COLOUR
        ),
        colours[view.predicted],
        confidence_colours(view.conf),
        np.where(view.valid[..., None], errors, IGNORED_COLOUR),
    ]
    for number, (axes, pixels) in enumerate(zip(panels, maps, strict=False)):
        axes.set(xticks=(), yticks=())
        axes.spines[:].set(linewidth=0.4, color=GREY)
        if again and number < 2:
            axes.set_axis_off()
        else:
            axes.imshow(pixels.astype(np.uint8), interpolation='nearest')
    if len(panels) > len(maps):
        small, ends = panels[-1], (0, 50, 100)
        draw_bars(small, torch.from_numpy(view.table))
        draw_diagonal(small)
        small.set(box_aspect=1, xlim=(0, 100), ylim=(0, 100), xticks=ends, yticks=ends)
        small.tick_params(labelsize=7, pad=1.5, length=2)


def _legend(axes: Axes, colours: Mapping[str, Sequence[int]], columns: int) -> None:
    patches = [
        Patch(facecolor=np.array(colour) / 255, edgecolor=GREY, linewidth=0.4, label=name)
        for name, colour in colours.items()
    ]
    axes.legend(
        handles=patches, loc='upper left', ncols=columns, frameon=False, fontsize=8,
        handlelength=1.2, borderpad=0, labelspacing=0.3,
    )  # fmt: skip


def confidence_colours(conf: np.ndarray) -> np.ndarray:
    """Return the ``(*, 3)`` uint8 colours of confidences from 0 to 1."""
    scale = (matplotlib.colormaps[COLOURMAP](np.arange(256))[:, :3] * 255).astype(np.uint8)
    return scale[(conf.astype(np.float32) * 255).round().astype(np.uint8)]


def _same_image(view: ConfidenceView, other: ConfidenceView) -> bool:
    return view.index == other.index and np.array_equal(view.label, other.label)


def _caption(view: ConfidenceView) -> str:
    count, correct, conf = view.table.sum(axis=1)
    if count == 0:
        return f'{view.name}: no valid pixel'
    return (
        f'{view.name}: ECE {percent(view.error)}, accuracy {percent(100 * correct / count)}, '
        f'mean confidence {percent(100 * conf / count)}, {int(count):,} pixels'
    )


def class_colours(classes: Sequence[str], palette: Sequence[Sequence[int]] | None) -> np.ndarray:
    """Return the ``(K, 3)`` RGB colours of a palette, or of matplotlib's if it is None."""
    if palette is None:
        colours = matplotlib.colormaps['tab20'](np.arange(len(classes)) % 20)[:, :3]
        return (colours * 255).astype(np.uint8)
    if len(palette) < len(classes):
        raise UserError(f'{len(classes)} classes need as many colours, got {len(palette)}')
    return np.asarray(palette, dtype=np.uint8)


def _classes_shown(views: Sequence[ConfidenceView], num_classes: int) -> list[int]:
    seen = {int(k) for view in views for k in np.unique(view.label[view.valid])}
    seen |= {int(k) for view in views for k in np.unique(view.predicted)}
    return sorted(k for k in seen if 0 <= k < num_classes)
