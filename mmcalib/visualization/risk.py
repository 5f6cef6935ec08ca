"""Risk–coverage curves: the error rate among the most confident predictions, or trusted images."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from mmcalib.errors import UserError
from mmcalib.metrics.bins import sum_by_key
from mmcalib.metrics.image_scores import image_failure_figures
from mmcalib.metrics.ranking import augrc, aurc, auroc, risk_coverage_curve
from mmcalib.metrics.statistics import CalibrationStatistics
from mmcalib.visualization import style

COMPUTED = {'AURC': aurc, 'AUGRC': augrc, 'AUROC': auroc}
BEST = dict(color=style.GREY, linestyle='--', linewidth=0.9)
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
    style.check_drawable(runs)
    figure, panels = style.panels_of(runs, overlay=overlay)
    highest = 0.01
    for (axes,), shown in panels:
        for name, found, look in shown:
            figures = {key: of_bins(found.narrow_bins).item() for key, of_bins in COMPUTED.items()}
            figures |= {key: found.metrics[key] for key in COMPUTED if key in found.metrics}
            title = style.title_of(name, found, figures, between=', ' if overlay else '\n')
            coverage, risk = _curve(found.narrow_bins)
            highest = max(highest, risk[-1], risk[coverage >= STEADY].max())
            colour, line = look['color'], look['linestyle'] if overlay else '-'
            label = title if overlay else 'by confidence; area: AURC'
            axes.plot(coverage, risk, color=colour, linestyle=line, linewidth=1.6, label=label)
            axes.plot(100, risk[-1], 'o', color=colour, markersize=5, clip_on=False, zorder=6)
            covered = np.linspace(max(100 - risk[-1], 1e-6), 100, 200)
            best = 100 * (1 - (100 - risk[-1]) / covered)
            axes.plot([0, *covered], [0, *best], **(BEST | dict(color=colour)))
        if not overlay:
            axes.fill_between(coverage, 0, risk, color=colour, alpha=0.12, linewidth=0)
            axes.axhline(risk[-1], color='black', linestyle=':', linewidth=1.1, label='by chance')
            style.set_title(axes, title)
    axes.plot([], [], **BEST, label='best order')
    for axes in figure.axes:
        axes.set(xlim=(0, 100), ylim=(0, min(1.15 * highest, 100)), xlabel='coverage (%)')
        axes.set_ylabel('risk: errors among the accepted (%)')
        axes.grid(True, linewidth=0.4, alpha=0.5)
    style.legend(figure)
    return figure


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
    runs = style.labelled(runs)
    drawn, titles = {}, []
    for name, (scores, risks) in runs.items():
        kept = ~np.isnan(risks)
        if not scores or not kept.any():
            raise UserError(f'{name!r} has {len(scores)} scores of {kept.sum()} images with a risk')
        titles.append(f'{name}, {kept.sum():,} images')
        several = f'{name}, ' * (len(runs) > 1)
        drawn |= {several + key: (each[kept], risks[kept]) for key, each in scores.items()}
    figure, (((curves,), _), *panels) = style.panels_of({'': None, **drawn})
    for (axes,), ((name, (values, risks), look),) in panels:
        figures = image_failure_figures(values, risks)
        label = f'{name}: AURC {figures["AURC"]:.2f} %, Spearman {figures["Spearman"]:.2f}'
        line = dict(color=look['color'], linestyle=look['linestyle'], linewidth=1.6)
        curve = _curve(_table(values, risks))
        curves.plot(*curve, **line, label=label)
        curves.plot(*_curve(_table(-risks, risks)), **BEST)
        ordered = 100 * risks[np.argsort(-values, kind='stable')]
        at = 100 * (np.arange(len(risks)) + 0.5) / len(risks)
        axes.scatter(at, ordered, s=9, color=look['color'], alpha=0.6, linewidths=0)
        axes.plot(*curve, color=style.GREY, label='running mean')
        axes.set(xlabel='images by their score (%)', ylabel='risk (%)', ylim=(0, 100))
        style.set_title(axes, f'{name}\nmost trusted first')
    curves.plot([], [], **BEST, label='best order')
    curves.set(xlabel='images kept (%)', ylabel='mean risk (%)', ylim=(0, None))
    style.set_title(curves, '\n'.join(titles))
    for axes in figure.axes:
        axes.set_xlim(0, 100)
        style.tidy(axes)
    style.legend(figure, 2)
    return figure


def _curve(table: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Return coverages and risks, from coverage 0 on: the most confident bin has one risk."""
    coverage, risk = risk_coverage_curve(table).numpy()
    return np.concatenate([[0], coverage]), np.concatenate([risk[:1], risk])


def _table(scores: np.ndarray, risks: np.ndarray) -> Tensor:
    """Return the bins of images, with tied ones together: the mean over their orders."""
    rows = np.stack([np.ones_like(risks), 1 - risks, 0 * risks])
    return sum_by_key(torch.from_numpy(scores), torch.from_numpy(rows))[1]


def read_image_scores(path: str | Path) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Return the scores and risks from the file of an ``ImageScoreMetric``.

    Raises:
        FileNotFoundError: If there is none.
        ValueError: If it is of something else, or was cut off.
    """
    try:
        with Path(path).open(newline='', encoding='utf-8') as file:
            (_, *names), *rows = csv.reader(file)
        columns = np.array([row[1:] for row in rows], dtype=np.float64).T
        scores = dict(zip(names, columns, strict=True))
        return scores, scores.pop('risk')
    except (KeyError, ValueError) as error:
        problem = f'{path} cannot be read as scores of images ({error!r})'
        raise UserError(f'{problem}: test that run again') from error
