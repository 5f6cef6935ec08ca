"""The keys under which evaluators print metrics, and what tables and figures call them."""

from __future__ import annotations

from collections.abc import Iterable

TOP1 = 'accuracy/top1'
MIOU = 'mIoU'
ECE = 'calibration/ECE'
AECE = 'calibration/AECE'
# One of them says how good a model is; the others how well it is calibrated.
QUALITIES = (TOP1, MIOU)
HEADLINE = (*QUALITIES, ECE, AECE)
ACCURACIES = 'accuracy/'  # of mmpretrain, all in percent
PREFIX = 'calibration/'  # goes without saying; another one tells two metrics apart
# Of mmseg's metrics, and of ours.
PERCENT = (
    *('mIoU', 'mAcc', 'aAcc', 'mDice', 'mFscore', 'mPrecision', 'mRecall'),
    *('ECE', 'AECE', 'ClasswiseECE', 'ClasswiseAECE', 'TACE', 'smECE', 'debiasedECE', 'ACE'),
    *('MCE', 'RMSCE', 'OE'),
    *('AURC', 'AUGRC', 'AUROC', 'FPR95', 'risk@coverage', 'coverage@risk'),
    *('accuracy', 'confidence'),
)
NATS = ('NLL',)
# Ends of an interval: they belong to the metric before them.
INTERVAL = ('_low', '_high')


def metric_name(key: str) -> str:
    """Return ``top-1`` for ``accuracy/top1``, ``ECE`` for ``calibration/ECE``."""
    if key.startswith(f'{ACCURACIES}top'):
        return f'top-{key.removeprefix(f"{ACCURACIES}top")}'
    return key.removeprefix(PREFIX).replace('_bound', ' bound')


def metric_heading(key: str) -> str:
    """Return the name of a metric and its unit, such as ``ECE (%)``; alone where none is known."""
    name = metric_name(key)
    if is_percentage(key):
        return f'{name} (%)'
    return f'{name} (nats)' if key.split('/')[-1] in NATS else name


def is_percentage(key: str) -> bool:
    """Return whether a metric is known to be in percent."""
    if key.startswith(ACCURACIES):
        return True
    # Before a level, as of risk@coverage_0.8, or a bound.
    return key.split('/')[-1].split('_')[0] in PERCENT


def columns_of(keys: Iterable[str]) -> list[str]:
    """Return the keys that a table has columns for: the headline ones first, each once."""
    found = dict.fromkeys(key for key in keys if not key.endswith(INTERVAL))
    return [key for key in HEADLINE if key in found] + [k for k in found if k not in HEADLINE]
