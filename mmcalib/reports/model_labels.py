"""Names of tested models in tables and figures: the loss, and the steps after the training."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from mmcalib.record import view_count
from mmcalib.reports.loss_labels import loss_label


def model_label(
    loss: Mapping | None,
    calibration: Mapping | None,
    model: Mapping | None,
    *,
    experiment: str,
    losses: Sequence[Mapping] = (),
) -> str:
    """Return ``CE``, ``MbLS m=6 α=0.1 + temperature``, ``CE × 5 + TTA (2) + temperature`` etc.

    Args:
        loss: Type and parameters; None to say the experiment instead.
        calibration: Of the checkpoint, or of each member of an ensemble.
        model: Of the record; None to leave it out.
        experiment: Name of the config.
        losses: Those of members that differ.
    """
    label = loss_label(loss) if loss else experiment
    if losses:
        label = ' & '.join(map(loss_label, losses))
    return label + _calibrated(calibration) + ensemble_label(model)


def ensemble_label(model: Mapping | None) -> str:
    """Return `` × 5 + TTA (2) + MC dropout (20) + temperature`` and the like, with a space first.

    In brackets are the views of an image, and the passes with random dropout.
    """
    if not model:
        return ''
    members = [member['calibration'] for member in model['members']]
    label = f' × {len(members)}' if len(members) > 1 else ''
    if any(each != members[0] for each in members):
        texts = Counter(filter(None, map(_calibrated, members)))
        label += f' ({", ".join(f"{count} of them{text}" for text, count in texts.items())})'
    if model['views']:
        label += f' + TTA ({view_count(model)})'
    if model['mc_dropout']:
        label += f' + MC dropout ({model["mc_dropout"]})'
    return label + _calibrated(model['calibration'])


def _calibrated(calibration: Mapping | None) -> str:
    if not calibration:
        return ''
    forced = ''.join(f', {reason}' for reason in calibration['forced'])
    return f' + {" + ".join(map(str, calibration["methods"]))}{forced}'
