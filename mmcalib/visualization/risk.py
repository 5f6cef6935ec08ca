"""Risk–coverage curves: the error rate among the most confident predictions, or trusted images."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from mmcalib.errors import UserError
from mmcalib.metrics.bins import sum_by_key
from mmcalib.metrics.image_scores import image_failure_figures
from mmcalib.metrics.ranking import augrc, aurc, auroc, risk_coverage_curve
from mmcalib.metrics.statistics import CalibrationStatistics
from mmcalib.visualization.panels import (
    PlottedRun,
    add_legend,
    check_drawable,
    panels,
    set_panel_title,
    statistics_title,
    tidy_axes,
)
from mmcalib.visualization.style import GREY, as_label

RANKING_METRICS = {'AURC': aurc, 'AUGRC': augrc, 'AUROC': auroc}
# Below this coverage, in percent, a few predictions make the risk, so the axis need not reach it.
STEADY_COVERAGE = 5.0


def draw_risk_coverage(
    runs: Mapping[str, CalibrationStatistics], *, overlay: bool = False, ax: Axes | None = None
) -> Figure:
    r"""Draw the risk against the coverage of one evaluation, or several.

    At a coverage c the risk is the error rate of the share c of the predictions that the network is
    most sure of; at 100 % that of all. The dashed line is the best order, all right predictions
    first, and the dotted one an order by chance. Both axes are in percent. AURC, AUGRC and AUROC
    are those that were printed; what was not is computed from the bins.

    Source: Geifman and El-Yaniv, Selective Classification for Deep Neural Networks, NeurIPS 2017.

    Args:
        runs: Statistics of each evaluation, by its name: one panel each, four in a row.
        overlay: Draw all in one panel instead.
        ax: Axes of matplotlib in which one panel is drawn, without the legend, which
            ``ax.legend()`` adds. None for a new figure.

    Returns:
        The figure; ``savefig`` writes it.

    Raises:
        ValueError: If there is nothing to draw, or `ax` is for one panel and there are several.
    """
    check_drawable(runs)
    figure, risk_panels = panels(runs, overlay=overlay, ax=ax)
    highest = 0.01
    for panel in risk_panels:
        (axes,) = panel.axes
        for run in panel.runs:
            coverage, risk = _risk_curve(run.content.narrow_bins)
            highest = max(highest, risk[-1], risk[coverage >= STEADY_COVERAGE].max())
            if overlay:
                title = _ranking_title(run, separator=', ')
                _draw_curve(axes, coverage, risk, run.look.colour, run.look.line, title)
            else:
                set_panel_title(axes, _ranking_title(run, separator='\n'))
                _draw_curve(axes, coverage, risk, run.look.colour, '-', 'by confidence; area: AURC')
                _draw_area(axes, coverage, risk, run.look.colour)
    risk_panels[-1].axes[0].plot(
        [], [], color=GREY, linestyle='--', linewidth=0.9, label='best order'
    )
    for panel in risk_panels:
        (axes,) = panel.axes
        axes.set(xlim=(0, 100), ylim=(0, min(1.15 * highest, 100)), xlabel='coverage (%)')
        axes.set_ylabel('risk: errors among the accepted (%)')
        axes.grid(True, linewidth=0.4, alpha=0.5)
    if ax is None:
        add_legend(figure)
    return figure


def _ranking_title(run: PlottedRun, separator: str) -> str:
    """Return the title of a run, with the metrics that were printed, else with computed ones."""
    statistics = run.content
    metrics = {}
    for name, function in RANKING_METRICS.items():
        if name in statistics.metrics:
            metrics[name] = statistics.metrics[name]
        else:
            metrics[name] = function(statistics.narrow_bins).item()
    return statistics_title(run.label, statistics, metrics, separator=separator)


def _draw_curve(
    axes: Axes, coverage: np.ndarray, risk: np.ndarray, colour: str, line: str, label: str
) -> None:
    """Draw a curve in percent, the point of all predictions, and the best order, dashed."""
    error_rate = risk[-1]
    axes.plot(coverage, risk, color=colour, linestyle=line, linewidth=1.6, label=label)
    axes.plot(100, error_rate, 'o', color=colour, markersize=5, clip_on=False, zorder=6)
    # In the best order there is no error up to the coverage of all right predictions.
    errors_coverage = np.linspace(max(100 - error_rate, 1e-6), 100, 200)
    errors_risk = 100 * (1 - (100 - error_rate) / errors_coverage)
    axes.plot([0, *errors_coverage], [0, *errors_risk], color=colour, linestyle='--', linewidth=0.9)


def _draw_area(axes: Axes, coverage: np.ndarray, risk: np.ndarray, colour: str) -> None:
    """Fill the area under a curve, and draw the order by chance, dotted."""
    axes.fill_between(coverage, 0, risk, color=colour, alpha=0.12, linewidth=0)
    axes.axhline(risk[-1], color='black', linestyle=':', linewidth=1.1, label='by chance')


@dataclass(frozen=True)
class ScoredImages:
    """Images with one score and their risk, ``(N,)`` each; a higher score is trusted more."""

    scores: np.ndarray
    risks: np.ndarray


def draw_image_risk(runs: Mapping[str, tuple[Mapping[str, np.ndarray], np.ndarray]]) -> Figure:
    """Draw the risk–coverage curves of image scores, and all images in the order of each score.

    The first panel has the mean risk of the share of images with the highest scores, for all
    scores; dashed, in the best order. One more panel for each score has every image, the one of the
    highest score first, with its risk, and their running mean. All axes are in percent.

    Args:
        runs: By name, the scores by their names, ``(N,)`` each and higher to be trusted more, and
            the risks, ``(N,)`` in [0, 1]. Images whose risk is NaN are left out.

    Raises:
        ValueError: If there is no score, or no image with a risk.
    """
    images_by_name = {}
    titles = []
    for name, (scores, risks) in runs.items():
        has_risk = ~np.isnan(risks)
        num_images = has_risk.sum()
        if not scores or not num_images:
            raise UserError(f'{name!r} has {len(scores)} scores of {num_images} images with a risk')
        titles.append(f'{as_label(name)}, {num_images:,} images')
        for score_name, values in scores.items():
            full_name = score_name if len(runs) == 1 else f'{name}, {score_name}'
            images_by_name[full_name] = ScoredImages(values[has_risk], risks[has_risk])
    # The first panel, which has the curves of all scores, is of no score itself.
    figure, (curves_panel, *score_panels) = panels({'': None, **images_by_name})
    (curves_axes,) = curves_panel.axes
    for panel in score_panels:
        (run,) = panel.runs
        _draw_score_curves(curves_axes, run)
        _draw_ordered_images(panel.axes[0], run)
    curves_axes.plot([], [], color=GREY, linestyle='--', linewidth=0.9, label='best order')
    curves_axes.set(xlabel='images kept (%)', ylabel='mean risk (%)', ylim=(0, None))
    set_panel_title(curves_axes, '\n'.join(titles))
    for axes in figure.axes:
        axes.set_xlim(0, 100)
        tidy_axes(axes)
    add_legend(figure, most_columns=2)
    return figure


def _draw_score_curves(axes: Axes, run: PlottedRun) -> None:
    """Draw the risk–coverage curve of a score, and that of the best order."""
    images = run.content
    metrics = image_failure_figures(images.scores, images.risks)
    coverage, risk = _risk_curve(_image_bins(images.scores, images.risks))
    axes.plot(
        coverage,
        risk,
        color=run.look.colour,
        linestyle=run.look.line,
        linewidth=1.6,
        label=f'{run.label}: AURC {metrics["AURC"]:.2f} %, Spearman {metrics["Spearman"]:.2f}',
    )
    best_coverage, best_risk = _risk_curve(_image_bins(-images.risks, images.risks))
    axes.plot(best_coverage, best_risk, color=GREY, linestyle='--', linewidth=0.9)


def _draw_ordered_images(axes: Axes, run: PlottedRun) -> None:
    """Draw the risk of every image in the order of a score, and their running mean."""
    images = run.content
    order = np.argsort(-images.scores, kind='stable')
    num_images = len(images.risks)
    axes.scatter(
        100 * (np.arange(num_images) + 0.5) / num_images,
        100 * images.risks[order],
        s=9,
        color=run.look.colour,
        alpha=0.6,
        linewidths=0,
    )
    coverage, risk = _risk_curve(_image_bins(images.scores, images.risks))
    axes.plot(coverage, risk, color=GREY, label='running mean')
    axes.set(xlabel='images by their score (%)', ylabel='risk (%)', ylim=(0, 100))
    set_panel_title(axes, f'{run.label}\nmost trusted first')


def _risk_curve(bins: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Return coverages and risks in percent, from coverage 0 on: the first bin has one risk."""
    coverage, risk = risk_coverage_curve(bins).numpy()
    return np.concatenate([[0], coverage]), np.concatenate([risk[:1], risk])


def _image_bins(scores: np.ndarray, risks: np.ndarray) -> Tensor:
    """Return the bins of images, with tied ones together: the mean over their orders."""
    rows = np.stack([np.ones_like(risks), 1 - risks, np.zeros_like(risks)])
    _, bins = sum_by_key(torch.from_numpy(scores), torch.from_numpy(rows))
    return bins


def read_image_scores(path: str | Path) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Return the scores and risks from the file of an ``ImageScoreMetric``.

    Raises:
        FileNotFoundError: If there is none.
        ValueError: If it is of something else, or was cut off.
    """
    try:
        with Path(path).open(newline='', encoding='utf-8') as file:
            header, *rows = csv.reader(file)
        names = header[1:]
        columns = np.array([row[1:] for row in rows], dtype=np.float64).T
        scores = dict(zip(names, columns, strict=True))
        risks = scores.pop('risk')
    except (KeyError, ValueError) as error:
        raise UserError(
            f'{path} cannot be read as scores of images ({error!r}): test that run again'
        ) from error
    return scores, risks
