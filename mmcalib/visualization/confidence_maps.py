"""Segmented images as the paper shows them: labels, prediction, confidence, errors, reliability."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib
import numpy as np
import torch
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from mmcalib.errors import UserError
from mmcalib.files import BROKEN_FILE, whole_file
from mmcalib.metrics.calibration_errors import calibration_error
from mmcalib.metrics.strata import stratum_figures
from mmcalib.visualization.reliability import bins_of, draw_bars, draw_diagonal
from mmcalib.visualization.style import GREY, as_label, labelled, legend, wrapped

PANELS = ('image', 'ground truth', 'prediction', 'confidence', 'errors', 'reliability (%)')
# Dark where sure, as in the paper, so that doubt lights up.
COLOURMAP = 'cividis_r'
# RGB of the pixels in the panel of errors.
RIGHT_COLOUR, WRONG_COLOUR, IGNORED_COLOUR = (221, 221, 221), (213, 94, 0), (255, 255, 255)
ERROR_COLOURS = {'right': RIGHT_COLOUR, 'wrong': WRONG_COLOUR, 'ignored': IGNORED_COLOUR}
PANEL, ENDS = 1.75, (0, 50, 100)  # inches, and ticks in percent
KINDS, ARRAYS = ('views', 'worst'), ('image', 'label', 'predicted', 'conf', 'valid', 'table')


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

    @property
    def caption(self) -> str:
        """Its name and figures."""
        figures = stratum_figures(torch.from_numpy(self.table)[:, None])
        return (
            '{}: ECE {:.2f} %, accuracy {:.2f} %, mean confidence {:.2f} %, {:,} pixels'
        ).format(self.name, *(value for (value,) in figures.values()))


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
        info, arrays = {'classes': self.classes, 'palette': self.palette}, {}
        for kind in KINDS:
            info[kind] = [{'index': v.index, 'name': v.name} for v in getattr(self, kind)]
            for number, view in enumerate(getattr(self, kind)):
                arrays |= {f'{kind}_{number}_{key}': getattr(view, key) for key in ARRAYS}
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
                for kind in KINDS:
                    for number, view in enumerate(info[kind]):
                        view |= {key: file[f'{kind}_{number}_{key}'] for key in ARRAYS}
                    info[kind] = [ConfidenceView(**view) for view in info[kind]]
                return cls(**info)
        except BROKEN_FILE as error:
            problem = f'{path} cannot be read as confidence maps ({error!r})'
            raise UserError(f'{problem}: test that run again') from error


def draw_confidence_maps(
    runs: Mapping[str, ConfidenceMaps], *, worst: bool = False, images: Sequence[str] | None = None
) -> Figure:
    """Draw a row of panels for each image: five maps and a small reliability diagram.

    The scale of confidence is always 0 to 100 %, dark where the network is sure. The same image of
    several runs is drawn below one another, and itself and its ground truth only once.

    Source: the paper's qualitative figures of segmentation.

    Args:
        runs: Of the same classes, by their names; a single one heads the figure.
        worst: Draw the worst-calibrated images of each run, not those that all runs have.
        images: Names of those to draw; None for all.

    Returns:
        The figure; ``savefig`` writes it.

    Raises:
        ValueError: If there is no image, none of a name, or the runs have other classes.
    """
    rows = _rows(runs, worst, images)
    runs = labelled(runs)
    first = next(iter(runs.values()))
    colours = class_colours(first.classes, first.palette)
    shapes = [view.label.shape[0] / view.label.shape[1] for _, view in rows]
    heights = [PANEL * min(max(shape, 0.5), 1.2) for shape in shapes]
    size = PANEL * len(PANELS) + 0.4, sum(heights) + 0.3 * len(rows) + 1.0
    figure = Figure(figsize=size, layout='constrained')
    figure.get_layout_engine().set(w_pad=0.03, h_pad=0.04, wspace=0, hspace=0)
    if len(runs) == 1:
        title = wrapped(*runs, 0.7 * size[0])
        figure.suptitle(title, fontsize=11, weight='bold', x=0.01, ha='left')
    grid = figure.subplots(len(rows), len(PANELS), squeeze=False, height_ratios=heights)
    for axes, name in zip(grid[0], PANELS, strict=True):
        axes.set_title(name, fontsize=9, pad=3)
    before, seen = None, set()
    for (*panels, diagram), (name, view), shape in zip(grid, rows, shapes, strict=True):
        again = before and view.index == before.index and np.array_equal(view.label, before.label)
        for axes, pixels in zip(panels, _maps(view, colours), strict=True):
            axes.set(xticks=(), yticks=(), anchor='N', box_aspect=shape)
            axes.spines[:].set(linewidth=0.4, color=GREY)
            axes.imshow(pixels.astype(np.uint8), interpolation='nearest', aspect='auto')
        if again:
            for axes in panels[:2]:
                axes.set_axis_off()
                axes.images[0].remove()
        caption = ', '.join(filter(None, [as_label(name), as_label(view.caption)]))
        panels[2].set_xlabel(wrapped(caption, 5 * PANEL), fontsize=8, color=GREY)
        draw_bars(diagram, bins_of(torch.from_numpy(view.table)))
        draw_diagonal(diagram)
        diagram.set(xticks=ENDS, yticks=ENDS, xlim=(0, 100), ylim=(0, 100), box_aspect=1)
        diagram.tick_params(labelsize=7, pad=1.5, length=2)
        before, seen = view, seen | {*view.label[view.valid].tolist(), *view.predicted.flat}
    scale = ScalarMappable(Normalize(0, 100), COLOURMAP)
    below = dict(location='bottom', panchor=False, aspect=15)
    bar = figure.colorbar(scale, ax=grid[-1, 3], ticks=ENDS, **below)
    bar.set_label('confidence (%)', fontsize=8)
    bar.ax.tick_params(labelsize=7, length=2)
    shown = {as_label(name): colours[k] for k, name in enumerate(first.classes) if k in seen}
    square = dict(marker='s', s=60, edgecolor=GREY, linewidth=0.4)
    for name, colour in (shown | ERROR_COLOURS).items():
        grid[0][0].scatter([], [], color=[np.array(colour) / 255], label=name, **square)
    legend(figure, 8)
    return figure


def _rows(
    runs: Mapping[str, ConfidenceMaps], worst: bool, images: Sequence[str] | None
) -> list[tuple[str, ConfidenceView]]:
    """Return the images to draw, each with the name of its run if there are several."""
    if len({tuple(each.classes) for each in runs.values()}) > 1:
        raise UserError(f'{", ".join(runs)} have other classes: compare runs on the same data')
    views = [each.worst if worst else each.views for each in runs.values()]
    there = dict.fromkeys(view.name for found in views for view in found)
    for image in images or ():
        if image not in there:
            raise UserError(f'no image {image!r} was drawn; there are {", ".join(there)}')
    places = [{(view.index, view.name) for view in found} for found in views]
    shared = set.union(*places) if worst else set.intersection(*places)
    rows = [
        (name * (len(runs) > 1), view)
        for name, found in zip(runs, views, strict=True)
        for view in found
        if (view.index, view.name) in shared and (not images or view.name in images)
    ]
    if not rows:
        raise UserError(
            f'the runs {", ".join(runs)} have no image in common: give their ConfidenceMapHook '
            'the same indices or interval, and compare tests of the same data'
        )
    # An image of one run below that of another.
    return rows if worst else sorted(rows, key=lambda row: row[1].index)


def _maps(view: ConfidenceView, colours: np.ndarray) -> list[np.ndarray]:
    """Return the pixels of the five maps of a view."""
    valid = view.valid[..., None]
    errors = np.where((view.predicted == view.label)[..., None], RIGHT_COLOUR, WRONG_COLOUR)
    return [
        view.image,
        np.where(valid, colours[np.where(view.valid, view.label, 0)], IGNORED_COLOUR),
        colours[view.predicted],
        confidence_colours(view.conf),
        np.where(valid, errors, IGNORED_COLOUR),
    ]


def confidence_colours(conf: np.ndarray) -> np.ndarray:
    """Return the ``(*, 3)`` uint8 colours of confidences from 0 to 1."""
    level = (conf.astype(np.float32) * 255).round().astype(np.uint8)
    return matplotlib.colormaps[COLOURMAP](level, bytes=True)[..., :3]


def class_colours(classes: Sequence[str], palette: Sequence[Sequence[int]] | None) -> np.ndarray:
    """Return the ``(K, 3)`` RGB colours of a palette, or of matplotlib's if it is None."""
    if palette is None:
        return matplotlib.colormaps['tab20'](np.arange(len(classes)) % 20, bytes=True)[:, :3]
    if len(palette) < len(classes):
        raise UserError(f'{len(classes)} classes need as many colours, got {len(palette)}')
    return np.asarray(palette, dtype=np.uint8)
