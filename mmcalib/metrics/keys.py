"""The keys under which evaluators print metrics, and their names in tables and figures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from mmcalib.metrics.definitions import METRICS, WITH_LEVEL

TOP1 = 'accuracy/top1'
MIOU = 'mIoU'
AACC = 'aAcc'
ECE = 'calibration/ECE'
AECE = 'calibration/AECE'
GAP = 'calibration/gap'
ACCURACY = 'calibration/accuracy'
CONFIDENCE = 'calibration/confidence'
NLL = 'calibration/NLL'
AUGRC = 'calibration/AUGRC'
# One of them says how good a model is; the others how well it is calibrated.
QUALITIES = (TOP1, MIOU)
HEADLINE = (*QUALITIES, ECE, AECE)
ACCURACIES = 'accuracy/'  # of mmpretrain, all in percent
OOD = 'ood/'  # in tables, whatever the prefix; AUROC and others are of failures too
PREFIX = 'calibration/'  # goes without saying; another one tells two metrics apart
# What mmseg's IoUMetric measures, beside the accuracy of all pixels, by each of its `iou_metrics`.
OF_IOU_METRICS = {
    'mIoU': (MIOU, 'mAcc'),
    'mDice': ('mDice', 'mAcc'),
    'mFscore': ('mFscore', 'mPrecision', 'mRecall'),
}
# The unit of a metric, and which way is better, by its base name.
KINDS = {
    **dict.fromkeys([AACC, *sum(OF_IOU_METRICS.values(), ())], ('%', 'greater')),
    **{name: (metric.unit, metric.better) for name, metric in METRICS.items()},
    **{name: ('%', better) for name, (_, better) in WITH_LEVEL.items()},
    **{'AUPR': ('%', 'greater'), 'risk': ('%', 'less'), 'Spearman': ('', 'greater')},
}
# Ends of an interval: they belong to the metric before them.
INTERVAL = ('_low', '_high')
# What a test under shift has of each metric, behind its key and a space.
CLEAN, MEAN, WORST = OVER_SHIFTS = ('clean', 'mean', 'worst')


def metric_name(key: str) -> str:
    """Return ``top-1`` for ``accuracy/top1``, ``ECE`` for ``calibration/ECE``.

    ``OOD AUROC svhn`` for ``ood/svhn/AUROC``.
    """
    if key.startswith(OOD):
        *sets, figure = key.removeprefix(OOD).split('/')
        return ' '.join(['OOD', figure, *sets])
    if key.startswith(f'{ACCURACIES}top'):
        return f'top-{key.removeprefix(f"{ACCURACIES}top")}'
    return key.removeprefix(PREFIX)


def metric_heading(key: str) -> str:
    """Return the name of a metric and its unit, such as ``ECE (%)``; alone where none is known."""
    unit = kind_of(key)[0]
    return f'{metric_name(key)} ({unit})' if unit else metric_name(key)


def kind_of(key: str) -> tuple[str, str | None]:
    """Return the unit, and ``'less'``, ``'greater'`` or None for what is better."""
    known = ('%', 'greater') if key.startswith(ACCURACIES) else ('', 'less')
    return KINDS.get(base_name(key), known)


def is_percentage(key: str) -> bool:
    """Return whether a metric is known to be in percent."""
    return kind_of(key)[0] == '%'


def number_text(value: float, key: str) -> str:
    """Return a metric with two digits behind the point if it is in percent, else with four."""
    return f'{value:.2f}' if is_percentage(key) else f'{value:.4f}'


def headline(metrics: Mapping[str, float]) -> str:
    """Return ``top-1 95.00, ECE 2.00`` and the like, of what was measured."""
    shown = [key for key in (*QUALITIES, ECE) if key in metrics]
    return ', '.join(f'{metric_name(key)} {number_text(metrics[key], key)}' for key in shown)


def base_name(key: str) -> str:
    """Return ``risk@coverage`` for ``calibration/risk@coverage_0.8``, and so of any bound.

    Of a metric over shifts, such as ``calibration/ECE worst``, it is the metric.
    """
    name = key.split('/')[-1].split(' ')[0]
    return name if name in METRICS else name.split('_')[0]


def worst(key: str, values: Iterable[float]) -> float:
    """Return the worst value of a metric: the lowest of a quality, the largest of an error."""
    return (min if better_rule(key) == 'greater' else max)(values)


def better_rule(key: str) -> str | None:
    """Return mmengine's rule for a metric: ``'less'``, ``'greater'``, or None."""
    return kind_of(key)[1]


def columns_of(keys: Iterable[str]) -> list[str]:
    """Return the keys that a table has columns for: the headline ones first, each once."""
    found = dict.fromkeys(key for key in keys if not key.endswith(INTERVAL))
    return [key for key in HEADLINE if key in found] + [k for k in found if k not in HEADLINE]
