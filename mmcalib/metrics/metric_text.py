"""Keys under which evaluators print metrics, and the names and units of these in text."""

from __future__ import annotations

from collections.abc import Iterable

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
CLASSWISE_ECE = 'calibration/ClasswiseECE'
AUGRC = 'calibration/AUGRC'
# One of these two says how good a model is; other metrics say how well it is calibrated.
QUALITIES = (TOP1, MIOU)
ACCURACIES = 'accuracy/'  # The prefix of mmpretrain's metrics, which are in percent.
OOD = 'ood/'  # Text keeps this prefix as OOD, since AUROC and others are also of failures.
PREFIX = 'calibration/'  # Text leaves it out; another prefix tells two metrics apart.
# Metrics of mmseg, all of them in percent.
SEGMENTATION_METRICS = (AACC, MIOU, 'mAcc', 'mDice', 'mFscore', 'mPrecision', 'mRecall')
# Endings of the keys of an interval's ends, and of the mean over several labels.
INTERVAL = ('_low', '_high')
MACRO = '_macro'

# The unit of a metric, and which value is better, by its base name.
UNITS = {
    **dict.fromkeys(SEGMENTATION_METRICS, ('%', 'greater')),
    **{name: (metric.unit, metric.better) for name, metric in METRICS.items()},
    **{name: ('%', better) for name, (_, better) in WITH_LEVEL.items()},
    'AUPR': ('%', 'greater'),
    'risk': ('%', 'less'),
    'Spearman': ('', 'greater'),
}


def metric_name(key: str, *, num_classes: int | None = None) -> str:
    """Return ``top-1`` for ``accuracy/top1``, ``ECE`` for ``calibration/ECE``.

    ``OOD AUROC svhn`` for ``ood/svhn/AUROC``.

    Args:
        key: The key.
        num_classes: The number of classes, if it is known: of two, ``ClasswiseECE`` is the ECE of
            the probability of class 1.
    """
    if key.startswith(OOD):
        *sets, figure = key.removeprefix(OOD).split('/')
        return ' '.join(['OOD', figure, *sets])
    top = f'{ACCURACIES}top'
    if key.startswith(top):
        return f'top-{key.removeprefix(top)}'
    name = key.removeprefix(PREFIX)
    return name.replace('ClasswiseECE', 'ECE of P(y = 1)') if num_classes == 2 else name


def metric_heading(key: str, *, num_classes: int | None = None) -> str:
    """Return the name of a metric and its unit, such as ``ECE (%)``; alone where none is known.

    The arguments are those of :func:`metric_name`.
    """
    unit, _ = unit_and_better(key)
    name = metric_name(key, num_classes=num_classes)
    return f'{name} ({unit})' if unit else name


def unit_and_better(key: str) -> tuple[str, str | None]:
    """Return the unit of a metric, and ``'less'``, ``'greater'`` or None for what is better."""
    default = ('%', 'greater') if key.startswith(ACCURACIES) else ('', 'less')
    return UNITS.get(base_name(key), default)


def is_percentage(key: str) -> bool:
    """Return whether a metric is known to be in percent."""
    unit, _ = unit_and_better(key)
    return unit == '%'


def number_text(value: float, key: str) -> str:
    """Return a value with two digits behind the point if it is in percent, else with four."""
    return f'{value:.2f}' if is_percentage(key) else f'{value:.4f}'


def base_name(key: str) -> str:
    """Return the name of a metric without prefix, level, column, and the ending of an interval.

    It is ``risk@coverage`` for ``calibration/risk@coverage_0.8``, and ``ECE`` for
    ``calibration/ECE worst``, a metric over shifts.
    """
    name = key.split('/')[-1].split(' ')[0]
    for ending in (*INTERVAL, MACRO):
        name = name.removesuffix(ending)
    return name if name in METRICS else name.split('_')[0]


def worst_value(key: str, values: Iterable[float]) -> float:
    """Return the worst value of a metric: the lowest of a quality, the largest of an error."""
    return min(values) if better_rule(key) == 'greater' else max(values)


def better_rule(key: str) -> str | None:
    """Return mmengine's rule for a metric: ``'less'``, ``'greater'``, or None."""
    _, better = unit_and_better(key)
    return better
