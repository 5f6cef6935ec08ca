"""Images in the order of a score: the risk of those that are kept, and of each."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from mmcalib.metrics.image_scores import image_failure_figures
from mmcalib.metrics.ranking import risk_coverage_curve
from mmcalib.visualization.figure_style import COLOURS, GREY, add_legend, colour_of, line_of, tidy
from mmcalib.visualization.panel_grid import PER_ROW

PANEL = 3.2  # inches


def draw_image_risk(scores: Mapping[str, np.ndarray], risks: np.ndarray, *, name: str) -> Figure:
    """Draw the risk–coverage curves of image scores, and all images in the order of each score.

    The first panel has the mean risk of the share of images with the highest scores, for all
    scores; dashed, in the best order. One more panel for each score has every image, the one of the
    highest score first, with its risk, and their running mean. All axes are in percent.

    Args:
        scores: By name, ``(N,)``; higher is to be trusted more.
        risks: ``(N,)`` in [0, 1]; images whose risk is NaN are left out.
        name: Of the run.

    Raises:
        ValueError: If there is no score, or no image with a risk.
    """
    labelled = ~np.isnan(risks)
    if not scores or not labelled.any():
        raise ValueError(
            f'{name!r} has {len(scores)} scores of {labelled.sum()} images with a risk'
        )
    risks = risks[labelled]
    scores = {key: values[labelled] for key, values in scores.items()}
    columns = min(1 + len(scores), PER_ROW)
    rows = -(-(1 + len(scores)) // columns)
    figure = Figure(figsize=(PANEL * columns, PANEL * rows + 0.7), layout='constrained')
    curves, *panels = (
        figure.add_subplot(rows, columns, place) for place in range(1, 2 + len(scores))
    )
    handles = []
    for index, (key, values) in enumerate(scores.items()):
        style = dict(color=colour_of(index), linestyle=line_of(index), linewidth=1.6)
        curves.plot(*_curve(values, risks), **style)
        figures = image_failure_figures(values, risks)
        label = f'{key}: AURC {figures["AURC"]:.2f} %, Spearman {figures["Spearman"]:.2f}'
        handles.append(Line2D([], [], label=label, **style))
        _draw_images(panels[index], values, risks, key, index)
    style = dict(color=GREY, linestyle='--', linewidth=0.9)
    curves.plot(*_curve(-risks, risks), **style)
    curves.set(xlabel='images kept (%)', ylabel='mean risk (%)', xlim=(0, 100), ylim=(0, None))
    curves.set_title(f'{name}\n{len(risks):,} images', fontsize=9)
    tidy(curves)
    add_legend(figure, [*handles, Line2D([], [], label='best order', **style)], 2)
    return figure


def _draw_images(axes: Axes, scores: np.ndarray, risks: np.ndarray, name: str, index: int) -> None:
    order = np.argsort(-scores, kind='stable')
    places = 100 * (np.arange(len(order)) + 0.5) / len(order)
    axes.scatter(places, 100 * risks[order], s=9, color=colour_of(index), alpha=0.6, linewidths=0)
    running = 100 * risks[order].cumsum() / np.arange(1, len(order) + 1)
    axes.plot(places, running, color=COLOURS[-1], linewidth=1.2)
    axes.set(xlabel='images by their score (%)', ylabel='risk (%)', xlim=(0, 100), ylim=(0, 100))
    axes.set_title(f'{name}\nmost trusted first', fontsize=9)
    tidy(axes)


def _curve(scores: np.ndarray, risks: np.ndarray) -> np.ndarray:
    """Return coverages and risks, with tied images in the mean over their orders."""
    values, group = np.unique(scores, return_inverse=True)
    table = np.zeros((3, len(values)))
    np.add.at(table[0], group, 1)
    np.add.at(table[1], group, 1 - risks)
    coverage, risk = risk_coverage_curve(torch.from_numpy(table)).numpy()
    return np.stack([np.concatenate([[0], coverage]), np.concatenate([risk[:1], risk])])


def read_image_scores(path: str | Path) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Return the scores and risks from the file of an ``ImageScoreMetric``.

    Raises:
        FileNotFoundError: If there is none.
        ValueError: If it is of something else.
    """
    if not Path(path).is_file():
        raise FileNotFoundError(
            f"there is no {path}: a test with ImageScoreMetric(out_file='….csv') in its evaluator "
            'leaves one'
        )
    with Path(path).open(newline='', encoding='utf-8') as file:
        header, *rows = list(csv.reader(file)) or [[]]
    if header[:2] != ['image', 'risk'] or not rows:
        raise ValueError(f'{path} holds no scores of images: its first line is {header}')
    columns = np.array([row[1:] for row in rows], dtype=np.float64).T
    return dict(zip(header[2:], columns[1:], strict=True)), columns[0]
