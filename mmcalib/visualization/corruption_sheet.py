"""One image under all corruptions, with the confidence of models in each of its pixels."""

from __future__ import annotations

from collections.abc import Mapping

import matplotlib
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from mmcalib.visualization.confidence_map import COLOURMAP
from mmcalib.visualization.figure_style import percent, wrapped
from mmcalib.visualization.saved_confidence_maps import ConfidenceView

PER_LINE = 5
TILE = 1.7  # inches


def draw_corruption_sheet(models: Mapping[str, Mapping[str, ConfidenceView]]) -> Figure:
    """Draw an image under each corruption and, below it, the confidence of each model.

    The scale of confidence is always 0 to 100 %, dark where a model is sure; above each map is the
    calibration error of this image alone.

    Args:
        models: By name, the views of one image by the names of what was done to it.

    Returns:
        The figure; ``savefig`` writes it.

    Raises:
        ValueError: If there is no view, or models do not have the same image.
    """
    if not models or not all(models.values()):
        raise ValueError('there is no confidence map to draw: only segmentors have them')
    first = next(iter(models.values()))
    names = [name for name in first if all(name in views for views in models.values())]
    if len({view.name for views in models.values() for view in views.values()}) > 1:
        raise ValueError('the models were tested with maps of different images: give one --image')
    ratio = max(view.label.shape[0] / view.label.shape[1] for view in first.values())
    lines = -(-len(names) // PER_LINE)
    across = -(-len(names) // lines)
    rows = 1 + len(models)
    tile = TILE * min(max(ratio, 0.5), 1.4)
    size = (across * TILE + 0.9, lines * rows * (tile + 0.2) + 0.2)
    figure = Figure(figsize=size, layout='constrained')
    grid = figure.subplots(lines * rows, across, squeeze=False)
    for axes in grid.flat:
        axes.set_axis_off()
    for number, name in enumerate(names):
        line, column = divmod(number, across)
        _show(grid[line * rows, column], first[name].image, name)
        for row, (model, views) in enumerate(models.items()):
            axes = grid[line * rows + 1 + row, column]
            title = f'ECE {percent(views[name].error)}'
            _show(axes, views[name].conf.astype(float), title, cmap=COLOURMAP, vmin=0, vmax=1)
            if column == 0:
                axes.text(
                    -0.06, 0.5, wrapped(model, tile, 8), rotation=90, ha='right', va='center',
                    fontsize=8, transform=axes.transAxes,
                )  # fmt: skip
    scale = matplotlib.cm.ScalarMappable(Normalize(0, 100), COLOURMAP)
    figure.colorbar(scale, ax=grid, label='confidence (%)', shrink=min(1.0, 1.5 / lines), aspect=30)
    return figure


def _show(axes: Axes, pixels, title: str, **options) -> None:
    axes.imshow(pixels, interpolation='nearest', **options)
    axes.set_title(title.replace('_', ' '), fontsize=8, pad=2)
