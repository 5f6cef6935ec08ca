"""Names of losses, models and ensembles, as tables, figures and summaries show them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from mmcalib.choices import SHORT_NAMES, SYMBOLS
from mmcalib.runs.record import Record, view_count

# mmseg's default counts ignored pixels as well, which neither our losses nor the paper's code do.
COUNTS_VALID_PIXELS = ('avg_non_ignore', True)
# A label names the frequencies of so many classes at most.
MOST_FREQUENCIES = 5


def loss_label(loss: Mapping) -> str:
    """Return ``MbLS m=6 α=0.1`` and the like; for a sum of losses ``FL γ=3 + MDCA``."""
    if loss['type'] == 'CombinedLoss':
        return ' + '.join(loss_label(term) for term in loss.get('losses', ()))
    parts = [SHORT_NAMES.get(loss['type'], loss['type'])]
    symbols = [key for key in SYMBOLS if key in loss]
    others = sorted(key for key in loss if key not in SYMBOLS and key != 'type')
    for key in [*symbols, *others]:
        value = loss[key]
        if (key, value) != COUNTS_VALID_PIXELS:
            text = f'{value:g}' if isinstance(value, float) else value
            parts.append(f'{SYMBOLS.get(key, key)}={text}')
    return ' '.join(parts)


def model_label(model: Mapping, *, experiment: str) -> str:
    """Return ``CE``, ``MbLS m=6 α=0.1 + temperature``, ``CE × 5 + TTA (2) + temperature`` etc.

    Args:
        model: Description of a model, from a record.
        experiment: Name of the config, which stands for members without a loss.
    """
    members = model['members']
    losses = dict.fromkeys(loss_label(member['loss']) for member in members if member['loss'])
    label = ' & '.join(losses) or experiment
    first_calibration = members[0]['calibration']
    if all(member['calibration'] == first_calibration for member in members):
        label += calibration_label(first_calibration)
    return label + ensemble_label(model)


def record_label(record: Record) -> str:
    """Return the label of a test's model, which says if a scaling was fitted to the test's images.

    Figures of such a test do not stand beside others without a word.
    """
    label = model_label(record.model, experiment=record.experiment)
    if record.has_fitted_images:
        label += ', measured on images of its fit'
    return label


def ensemble_label(model: Mapping) -> str:
    """Return `` × 5 + TTA (2) + MC dropout (20) + temperature`` and the like, with a space first.

    In brackets are the views of an image, and the passes with random dropout.
    """
    calibrations = [member['calibration'] for member in model['members']]
    label = f' × {len(calibrations)}' if len(calibrations) > 1 else ''
    if any(calibration != calibrations[0] for calibration in calibrations):
        labels = [calibration_label(calibration) for calibration in calibrations]
        counts = Counter(text for text in labels if text)
        parts = [f'{count} of them{text}' for text, count in counts.items()]
        label += f' ({", ".join(parts)})'
    if model['views']:
        label += f' + TTA ({view_count(model)})'
    if model['mc_dropout']:
        label += f' + MC dropout ({model["mc_dropout"]})'
    return label + calibration_label(model['calibration'])


def calibration_label(calibration: Mapping | None) -> str:
    """Return `` + temperature`` and the like, with a space first; nothing without one."""
    if not calibration:
        return ''
    parts = [' + '.join(str(method) for method in calibration['methods']), *calibration['forced']]
    prior = calibration.get('class_prior')
    if prior is not None and len(prior) <= MOST_FREQUENCIES:
        parts.append(f'shifted to {", ".join(f"{100 * share:.3g}" for share in prior)} %')
    elif prior is not None:
        parts.append('shifted to other frequencies of the classes')
    return f' + {", ".join(parts)}'
