"""Draw a figure of tested runs."""

from __future__ import annotations

from mmcalib.cli.visualize import VisualizeOptions
from mmcalib.options import check_number
from mmcalib.reports.figures.from_files import figure_from_files
from mmcalib.visualization.pixels import save_figure


def visualize_runs(options: VisualizeOptions) -> None:
    """Draw a figure of some runs, write it, and print its path."""
    check_number('--dpi', options.dpi, least=1)
    figure = figure_from_files(options.kind, options.paths, options.names, **options.drawing)
    save_figure(figure, options.out, dpi=options.dpi)
    print(options.out)
