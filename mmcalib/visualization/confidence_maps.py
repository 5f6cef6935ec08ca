"""Segmented images as the paper shows them: labels, prediction, confidence, errors, reliability."""

from __future__ import annotations

import json
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
from PIL import Image

from mmcalib.errors import UserError
from mmcalib.files import BROKEN_FILE, whole_file
from mmcalib.metrics.calibration_errors import calibration_error
from mmcalib.metrics.counts import count_outcomes
from mmcalib.metrics.outcomes import compute_outcomes
from mmcalib.metrics.strata import stratum_figures
from mmcalib.options import check_integer, suggests_arguments
from mmcalib.predictions.arrays import Array, as_tensor
from mmcalib.predictions.from_arrays import read_arrays
from mmcalib.predictions.image_predictions import IGNORED, ImagePredictions
from mmcalib.predictions.objects import map_confidence
from mmcalib.visualization.panels import add_legend, wrap_text
from mmcalib.visualization.pixels import as_rgb
from mmcalib.visualization.reliability import draw_bars, draw_diagonal, filled_bins
from mmcalib.visualization.style import GREY, as_label

MAP_TITLES = ('image', 'ground truth', 'prediction', 'confidence', 'errors', 'reliability (%)')
MAP_WIDTH = 1.75  # inches
CONFIDENCE_TICKS = (0, 50, 100)
# Dark where sure, as in the paper, so that doubt lights up.
COLOURMAP = 'cividis_r'
# RGB of the pixels in the panel of errors.
RIGHT_COLOUR = (221, 221, 221)
WRONG_COLOUR = (213, 94, 0)
IGNORED_COLOUR = (255, 255, 255)
ERROR_COLOURS = {'right': RIGHT_COLOUR, 'wrong': WRONG_COLOUR, 'ignored': IGNORED_COLOUR}
# Attributes that are lists of views, and those of a view that are arrays.
VIEW_LISTS = ('views', 'worst')
VIEW_ARRAYS = ('image', 'label', 'predicted', 'conf', 'valid', 'table')


@dataclass(frozen=True)
class ConfidenceView:
    """One segmented image, at the size at which it is drawn.

    Attributes:
        index: Position in the dataset.
        name: Name in captions, such as that of its file.
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
        """Expected calibration error of the image, in percent; NaN without a valid pixel."""
        return calibration_error(torch.from_numpy(self.table)).item()

    @property
    def caption(self) -> str:
        """Name of the image and its metrics."""
        metrics = stratum_figures(torch.from_numpy(self.table)[:, None])
        (ece,) = metrics['ECE']
        (accuracy,) = metrics['accuracy']
        (confidence,) = metrics['confidence']
        (count,) = metrics['count']
        return (
            f'{self.name}: ECE {ece:.2f} %, accuracy {accuracy:.2f} %, '
            f'mean confidence {confidence:.2f} %, {count:,} pixels'
        )


@dataclass(frozen=True)
class ConfidenceMaps:
    """Images that one run keeps for confidence maps.

    Attributes:
        views: Chosen images, in the order of the dataset.
        worst: Images with the largest calibration error, the worst first.
        classes: K names.
        palette: K RGB colours, 0 to 255; None for a palette of matplotlib's.
    """

    views: list[ConfidenceView]
    worst: list[ConfidenceView]
    classes: list[str]
    palette: list[list[int]] | None = None

    def save(self, path: str | Path) -> None:
        """Write everything to one compressed ``.npz`` file, in place of what it held."""
        info = {'classes': self.classes, 'palette': self.palette}
        arrays = {}
        for list_name in VIEW_LISTS:
            info[list_name] = []
            for number, view in enumerate(getattr(self, list_name)):
                info[list_name].append({'index': view.index, 'name': view.name})
                for key in VIEW_ARRAYS:
                    arrays[f'{list_name}_{number}_{key}'] = getattr(view, key)
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
                for list_name in VIEW_LISTS:
                    info[list_name] = [
                        cls._read_view(file, f'{list_name}_{number}', description)
                        for number, description in enumerate(info[list_name])
                    ]
                return cls(**info)
        except BROKEN_FILE as error:
            raise UserError(
                f'{path} cannot be read as confidence maps ({error!r}): test that run again'
            ) from error

    @staticmethod
    def _read_view(
        file: Mapping[str, np.ndarray], prefix: str, description: dict
    ) -> ConfidenceView:
        arrays = {key: file[f'{prefix}_{key}'] for key in VIEW_ARRAYS}
        return ConfidenceView(**description, **arrays)


@dataclass(frozen=True)
class ViewRow:
    """Row of a figure: an image, and the name of its run if there are several."""

    run_name: str
    view: ConfidenceView

    @property
    def shape(self) -> float:
        """Height of the image, as a share of its width."""
        height, width = self.view.label.shape
        return height / width

    def shows_same_image(self, other: ViewRow | None) -> bool:
        """Return whether another row has the same image and labels."""
        if other is None or self.view.index != other.view.index:
            return False
        return np.array_equal(self.view.label, other.view.label)


def make_view(
    predictions: ImagePredictions,
    image: np.ndarray,
    bins: torch.Tensor,
    *,
    index: int,
    name: str,
    ignore_index: int,
    max_size: int,
) -> ConfidenceView:
    """Return one segmented image as it is drawn, with about `max_size` pixels per side at most.

    Args:
        predictions: Predictions of one map, with labels.
        image: ``(H', W', 3)`` uint8 RGB pixels, of any size.
        bins: ``(3, B)`` bins of the whole map.
        index: Position in the dataset.
        name: Name in captions.
        ignore_index: Value of pixels that are not valid, in the label of the view.
        max_size: Approximate largest side. Rows and columns of larger images are left out.
    """
    step = -(-max(predictions.predicted.shape[1:]) // max_size)
    shown = every_nth_pixel(predictions, step)
    valid = shown.valid[0]
    label = shown.labels[0].masked_fill(~valid, ignore_index)
    height, width = label.shape
    pixels = Image.fromarray(image).resize((width, height), Image.Resampling.BOX)
    return ConfidenceView(
        index=index,
        name=name,
        image=np.asarray(pixels),
        label=label.numpy().astype(np.int16),
        predicted=shown.predicted[0].numpy().astype(np.int16),
        conf=map_confidence(shown).numpy().astype(np.float16),
        valid=valid.numpy(),
        table=bins.numpy().copy(),
    )


def every_nth_pixel(predictions: ImagePredictions, step: int) -> ImagePredictions:
    """Return every `step`-th pixel of every `step`-th line of one map, on the CPU.

    Nothing of the size of the map is computed or kept on its device.
    """
    # One class after the other, since a strided map is copied on its device before it leaves it.
    planes = [plane[::step, ::step].cpu() for plane in predictions.scores[0]]
    scores = torch.stack(planes)[None]
    return replace(
        predictions,
        probs=None if predictions.probs is None else scores,
        logits=scores if predictions.probs is None else None,
        predicted=predictions.predicted[:, ::step, ::step].cpu(),
        labels=predictions.labels[:, ::step, ::step].cpu(),
    )


def rgb_images(images: Array, shape: Sequence[int]) -> list[np.ndarray]:
    """Return images as ``(H, W, 3)`` uint8 RGB.

    Args:
        images: See :func:`confidence_maps`.
        shape: (N, H, W) of the labels.
    """
    values = as_tensor('images', images).detach().cpu()
    if values.ndim == 3:
        values = values[:, None]
    if values.shape[1:2] in ((1,), (3,)) and (values.shape[0], *values.shape[2:]) == tuple(shape):
        values = values.movedim(1, -1)
    if values.ndim != 4 or values.shape[3] not in (1, 3) or values.shape[:3] != tuple(shape):
        raise UserError(
            f'images must be (N, C, H, W) or (N, H, W, C) with C = 1 or 3 and the size of labels '
            f'{tuple(shape)}, got {tuple(values.shape)}'
        )
    if values.dtype != torch.uint8:
        values = values.float()
    # Colours are turned, since pixels of files are BGR.
    return [as_rgb(image.flip(-1).numpy()) for image in values]


def worst_views(views: Sequence[ConfidenceView], count: int) -> list[ConfidenceView]:
    """Return the images with the largest calibration errors, the worst first."""
    return sorted(views, key=lambda view: (-view.error, view.index))[:count]


@suggests_arguments
def confidence_maps(
    images: Array,
    probs: Array,
    labels: Array,
    *,
    ignore_index: int | None = None,
    classes: Sequence[str] | None = None,
    palette: Sequence[Sequence[int]] | None = None,
    names: Sequence[str] | None = None,
    worst: int | None = None,
    num_bins: int = 15,
    max_size: int = 512,
    title: str = '',
) -> Figure:
    """Draw segmented images: ground truth, prediction, confidence, errors and reliability.

    >>> images, probs = torch.rand(2, 3, 8, 9), torch.rand(2, 4, 8, 9).softmax(dim=1)
    >>> figure = confidence_maps(images, probs, torch.randint(4, (2, 8, 9)))
    >>> figure.savefig('maps.png')  # doctest: +SKIP

    Args:
        images: ``(N, C, H, W)`` or ``(N, H, W, C)`` RGB (C = 3) or grey (C = 1); bytes as they are,
            others, such as the normalised inputs of a model, stretched from their least to their
            largest value.
        probs: ``(N, K, H, W)``, as :func:`~mmcalib.metrics.measure` takes them.
        labels: ``(N, H, W)``.
        ignore_index: Label of the pixels that are not valid.
        classes: K names; None for their numbers.
        palette: K RGB colours, 0 to 255; None for those of matplotlib.
        names: N names for the captions; None for their numbers.
        worst: Number of images with the largest calibration error to draw, the worst first; None
            to draw all N.
        num_bins: B, for the calibration error of each image.
        max_size: Approximate largest side of a drawn image, in pixels. Rows and columns of larger
            ones are left out.
        title: Text above the figure.

    Returns:
        A figure of matplotlib without pyplot, which a notebook shows and ``savefig`` writes.

    Raises:
        ValueError: For images of another number or size than the labels, probabilities that are no
            maps, or another number of names or classes.
    """
    predictions = read_arrays(probs, labels, ignore_index=ignore_index)
    if predictions.predicted.ndim != 3:
        raise UserError(
            f'probs must be maps (N, K, H, W), got {tuple(predictions.scores.shape)}: of a volume '
            'give slices, as volumes[0].movedim(1, 0)'
        )
    pixels = rgb_images(images, predictions.predicted.shape)
    if classes is None:
        classes = range(predictions.num_classes)
    elif len(classes) != predictions.num_classes:
        raise UserError(f'classes must be {predictions.num_classes} names, got {len(classes)}')
    if names is None:
        names = [f'image {index}' for index in range(len(pixels))]
    elif len(names) != len(pixels):
        raise UserError(f'names must be one for each of {len(pixels)} images, got {len(names)}')
    check_integer('num_bins', num_bins)
    views = []
    for index, part in enumerate(predictions.split_maps()):
        view = make_view(
            part,
            pixels[index],
            count_outcomes(compute_outcomes(part), num_bins).bins,
            index=index,
            name=str(names[index]),
            ignore_index=IGNORED,
            max_size=check_integer('max_size', max_size),
        )
        views.append(view)
    worst_first = []
    if worst is not None:
        worst_first = worst_views(views, check_integer('worst', worst))
    maps = ConfidenceMaps(views, worst_first, [str(name) for name in classes], palette)
    return draw_confidence_maps({title: maps}, worst=worst is not None)


def draw_confidence_maps(
    runs: Mapping[str, ConfidenceMaps], *, worst: bool = False, images: Sequence[str] | None = None
) -> Figure:
    """Draw a row of panels for each image: five maps and a small reliability diagram.

    The scale of confidence is always 0 to 100 %, dark where the network is sure. The same image of
    several runs is drawn below one another, and itself and its ground truth only once.

    Source: the paper's qualitative figures of segmentation.

    Args:
        runs: Maps of each run, by its name; all have the same classes. The name of a single one
            heads the figure.
        worst: Draw the worst-calibrated images of each run, not those that all runs have.
        images: Names of the images to draw; None for all.

    Returns:
        The figure; ``savefig`` writes it.

    Raises:
        ValueError: If there is no image, none of a name, or the runs have other classes.
    """
    rows = shown_views(runs, worst=worst, images=images)
    maps = next(iter(runs.values()))
    colours = class_colours(maps.classes, maps.palette)
    figure, grid = _map_grid(rows)
    if len(runs) == 1:
        (name,) = runs
        figure_width = figure.get_figwidth()
        figure.suptitle(
            wrap_text(as_label(name), 0.7 * figure_width),
            fontsize=11,
            weight='bold',
            x=0.01,
            ha='left',
        )
    previous_row = None
    shown_classes = set()
    for (*map_axes, diagram), row in zip(grid, rows, strict=True):
        _draw_maps(map_axes, row, colours, hide_image=row.shows_same_image(previous_row))
        _draw_reliability(diagram, row.view)
        shown_classes.update(row.view.label[row.view.valid].tolist())
        shown_classes.update(row.view.predicted.flat)
        previous_row = row
    _add_confidence_bar(figure, grid[-1, MAP_TITLES.index('confidence')])
    class_names = {}
    for index, class_name in enumerate(maps.classes):
        if index in shown_classes:
            class_names[as_label(class_name)] = colours[index]
    for name, colour in (class_names | ERROR_COLOURS).items():
        grid[0, 0].scatter(
            [],
            [],
            color=[np.array(colour) / 255],
            label=name,
            marker='s',
            s=60,
            edgecolor=GREY,
            linewidth=0.4,
        )
    add_legend(figure, most_columns=8)
    return figure


def shown_views(
    runs: Mapping[str, ConfidenceMaps], *, worst: bool, images: Sequence[str] | None
) -> list[ViewRow]:
    """Return the images to draw, in the order of the rows."""
    if len({tuple(maps.classes) for maps in runs.values()}) > 1:
        raise UserError(f'{", ".join(runs)} have other classes: compare runs on the same data')
    views_by_run = {name: maps.worst if worst else maps.views for name, maps in runs.items()}
    _check_names(images, views_by_run)
    keys_by_run = [{(view.index, view.name) for view in views} for views in views_by_run.values()]
    drawn_keys = set.union(*keys_by_run) if worst else set.intersection(*keys_by_run)
    rows = []
    for name, views in views_by_run.items():
        for view in views:
            if (view.index, view.name) in drawn_keys and (not images or view.name in images):
                rows.append(ViewRow(name if len(runs) > 1 else '', view))
    if not rows:
        raise UserError(
            f'the runs {", ".join(runs)} have no image in common: give their ConfidenceMapHook '
            'the same indices or interval, and compare tests of the same data'
        )
    if worst:
        return rows
    # The image of one run stands below the same image of another.
    return sorted(rows, key=lambda row: row.view.index)


def _check_names(
    images: Sequence[str] | None, views_by_run: Mapping[str, Sequence[ConfidenceView]]
) -> None:
    """Raise a ValueError if no run has an image of one of the names."""
    drawn_names = {}
    for views in views_by_run.values():
        drawn_names |= dict.fromkeys(view.name for view in views)
    for image in images or ():
        if image not in drawn_names:
            raise UserError(f'no image {image!r} was drawn; there are {", ".join(drawn_names)}')


def _map_grid(rows: Sequence[ViewRow]) -> tuple[Figure, np.ndarray]:
    """Return a figure with a row of axes for each image, as high as the image needs."""
    heights = [MAP_WIDTH * min(max(row.shape, 0.5), 1.2) for row in rows]
    width = MAP_WIDTH * len(MAP_TITLES) + 0.4
    height = sum(heights) + 0.3 * len(rows) + 1.0
    figure = Figure(figsize=(width, height), layout='constrained')
    figure.get_layout_engine().set(w_pad=0.03, h_pad=0.04, wspace=0, hspace=0)
    grid = figure.subplots(len(rows), len(MAP_TITLES), squeeze=False, height_ratios=heights)
    for axes, title in zip(grid[0], MAP_TITLES, strict=True):
        axes.set_title(title, fontsize=9, pad=3)
    return figure, grid


def _draw_maps(
    map_axes: Sequence[Axes], row: ViewRow, colours: np.ndarray, *, hide_image: bool
) -> None:
    """Draw the five maps of an image with its caption, or but three where the row above has two."""
    image_and_label = map_axes[:2]
    for axes, pixels in zip(map_axes, _maps(row.view, colours), strict=True):
        axes.set(xticks=(), yticks=(), anchor='N', box_aspect=row.shape)
        axes.spines[:].set(linewidth=0.4, color=GREY)
        if hide_image and axes in image_and_label:
            axes.set_axis_off()
        else:
            axes.imshow(pixels.astype(np.uint8), interpolation='nearest', aspect='auto')
    caption = as_label(row.view.caption)
    if row.run_name:
        caption = f'{as_label(row.run_name)}, {caption}'
    middle_axes = map_axes[2]
    middle_axes.set_xlabel(wrap_text(caption, 5 * MAP_WIDTH), fontsize=8, color=GREY)


def _draw_reliability(axes: Axes, view: ConfidenceView) -> None:
    draw_bars(axes, filled_bins(torch.from_numpy(view.table)))
    draw_diagonal(axes)
    axes.set(
        xticks=CONFIDENCE_TICKS,
        yticks=CONFIDENCE_TICKS,
        xlim=(0, 100),
        ylim=(0, 100),
        box_aspect=1,
    )
    axes.tick_params(labelsize=7, pad=1.5, length=2)


def _add_confidence_bar(figure: Figure, axes: Axes) -> None:
    """Add the scale of confidence below a map."""
    bar = figure.colorbar(
        ScalarMappable(Normalize(0, 100), COLOURMAP),
        ax=axes,
        ticks=CONFIDENCE_TICKS,
        location='bottom',
        panchor=False,
        aspect=15,
    )
    bar.set_label('confidence (%)', fontsize=8)
    bar.ax.tick_params(labelsize=7, length=2)


def _maps(view: ConfidenceView, colours: np.ndarray) -> list[np.ndarray]:
    """Return the pixels of the five maps of a view."""
    is_valid = view.valid[..., None]
    is_correct = (view.predicted == view.label)[..., None]
    label_colours = colours[np.where(view.valid, view.label, 0)]  # an ignored label is no class
    error_colours = np.where(is_correct, RIGHT_COLOUR, WRONG_COLOUR)
    return [
        view.image,
        np.where(is_valid, label_colours, IGNORED_COLOUR),
        colours[view.predicted],
        confidence_colours(view.conf),
        np.where(is_valid, error_colours, IGNORED_COLOUR),
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
