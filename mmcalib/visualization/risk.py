"""Risk–coverage curves: the error rate among the most confident predictions, or trusted images."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from mmcalib.checks import UserError
from mmcalib.metrics.image_scores import image_failure_figures
from mmcalib.metrics.ranking import augrc, aurc, auroc, risk_coverage_curve
from mmcalib.metrics.statistics import CalibrationStatistics
from mmcalib.visualization.style import (
    GREY,
    PER_ROW,
    SIDE,
    check_drawable,
    legend,
    looks_of,
    panel_figure,
    tidy,
    title_of,
    wrapped,
)

COMPUTED = {'AURC': aurc, 'AUGRC': augrc, 'AUROC': auroc}
# Below this coverage a few predictions make the risk, so the axis of risks need not reach them.
STEADY = 5.0


def draw_risk_coverage(
    runs: Mapping[str, CalibrationStatistics], *, overlay: bool = False
) -> Figure:
    r"""Draw the risk against the coverage of one evaluation, or several.

    At a coverage c the risk is the error rate of the share c of the predictions that the network is
    most sure of; at 100 % that of all. The dashed line is the best order, all right predictions
    first, and the dotted one an order by chance. Both axes are in percent. AURC, AUGRC and AUROC
    are those that were printed; what was not is computed from the bins.

    Source: Geifman and El-Yaniv, Selective Classification for Deep Neural Networks, NeurIPS 2017.

    Args:
        runs: One panel each, four in a row, by their names.
        overlay: Draw all in one panel instead.

    Returns:
        The figure; ``savefig`` writes it.

    Raises:
        ValueError: If there is nothing to draw.
    """
    check_drawable(runs)
    figure, panels = panel_figure(1 if overlay else len(runs))
    highest = []
    for number, ((name, found), look) in enumerate(
        zip(runs.items(), looks_of([*runs]), strict=True)
    ):
        (axes,) = panels[0 if overlay else number]
        own = {key: of_bins(found.narrow_bins).item() for key, of_bins in COMPUTED.items()}
        figures = {key: found.metrics.get(key, value) for key, value in own.items()}
        title = title_of(name, found, figures, between=', ' if overlay else '\n')
        coverage, risk = _curve(found.narrow_bins)
        highest.append(max(risk[-1], risk[coverage >= STEADY].max(), 0.01))
        look = look if overlay else {**look, 'linestyle': '-'}
        line = dict(color=look['color'], linestyle=look['linestyle'], linewidth=1.6, zorder=5)
        axes.plot(coverage, risk, **line, label=title if overlay else 'by confidence; area: AURC')
        axes.plot(100, risk[-1], 'o', color=look['color'], markersize=5, clip_on=False, zorder=6)
        covered = np.linspace(max(100 - risk[-1], 1e-6), 100, 200)
        best = 100 * (1 - (100 - risk[-1]) / covered)
        dashed = dict(color=look['color'] if overlay else GREY, linestyle='--', linewidth=0.9)
        axes.plot([0, *covered], [0, *best], **dashed, zorder=4)
        if not overlay:
            axes.fill_between(coverage, 0, risk, color=look['color'], alpha=0.12, linewidth=0)
            axes.axhline(risk[-1], color='black', linestyle=':', linewidth=1.1, label='by chance')
            axes.set_title(wrapped(title, SIDE), fontsize=8)
    panels[0][0].plot([], [], color=GREY, linestyle='--', linewidth=0.9, label='best order')
    for number, (axes,) in enumerate(panels):
        axes.set(xlim=(0, 100), ylim=(0, min(1.15 * max(highest), 100)), xlabel='coverage (%)')
        axes.grid(True, linewidth=0.4, alpha=0.5)
        if number % PER_ROW == 0:
            axes.set_ylabel('risk: errors among the accepted (%)')
    legend(figure)
    return figure


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
        raise UserError(f'{name!r} has {len(scores)} scores of {labelled.sum()} images with a risk')
    risks = risks[labelled]
    figure, ((curves,), *panels) = panel_figure(1 + len(scores))
    places = 100 * (np.arange(len(risks)) + 0.5) / len(risks)
    for (key, values), look, (axes,) in zip(
        scores.items(), looks_of([*scores]), panels, strict=True
    ):
        values = values[labelled]
        figures = image_failure_figures(values, risks)
        label = f'{key}: AURC {figures["AURC"]:.2f} %, Spearman {figures["Spearman"]:.2f}'
        line = dict(color=look['color'], linestyle=look['linestyle'], linewidth=1.6)
        curves.plot(*_curve(_table(values, risks)), **line, label=label)
        ordered = 100 * risks[np.argsort(-values, kind='stable')]
        axes.scatter(places, ordered, s=9, color=look['color'], alpha=0.6, linewidths=0)
        running = ordered.cumsum() / np.arange(1, len(risks) + 1)
        axes.plot(places, running, color=GREY, linewidth=1.2, label='running mean')
        axes.set(
            xlabel='images by their score (%)', ylabel='risk (%)', xlim=(0, 100), ylim=(0, 100)
        )
        axes.set_title(f'{key}\nmost trusted first', fontsize=8)
        tidy(axes)
    style = dict(color=GREY, linestyle='--', linewidth=0.9, label='best order')
    curves.plot(*_curve(_table(-risks, risks)), **style)
    curves.set(xlabel='images kept (%)', ylabel='mean risk (%)', xlim=(0, 100), ylim=(0, None))
    curves.set_title(wrapped(f'{name}\n{len(risks):,} images', SIDE), fontsize=8)
    tidy(curves)
    legend(figure, 2)
    return figure


def _curve(table: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Return coverages and risks, from coverage 0 on: the most confident bin has one risk."""
    coverage, risk = risk_coverage_curve(table).numpy()
    return np.concatenate([[0], coverage]), np.concatenate([risk[:1], risk])


def _table(scores: np.ndarray, risks: np.ndarray) -> Tensor:
    """Return the bins of images, with tied ones together: the mean over their orders."""
    values, group = np.unique(scores, return_inverse=True)
    counts = [np.bincount(group, weight, len(values)) for weight in (None, 1 - risks, 0 * risks)]
    return torch.from_numpy(np.stack(counts).astype(float))


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
        raise UserError(f'{path} holds no scores of images: its first line is {header}')
    columns = np.array([row[1:] for row in rows], dtype=np.float64).T
    return dict(zip(header[2:], columns[1:], strict=True)), columns[0]
