"""What tables and figures call a tested model: its loss, and what was done after the training."""

from __future__ import annotations

from collections.abc import Mapping

from mmcalib.reports.loss_labels import loss_label


def model_label(
    loss: Mapping | None, calibration: Mapping | None, averaged: Mapping | None, *, experiment: str
) -> str:
    """Return ``CE``, ``MbLS m=6 α=0.1 + temperature``, ``CE × 5 + TTA (2) + temperature`` etc.

    Args:
        loss: Type and parameters; None to say the experiment instead.
        calibration: Of the checkpoint, or of each member of a mean.
        averaged: Of what predictions the mean was tested; None of a model alone.
        experiment: Name of the config.
    """
    label = loss_label(loss) if loss else experiment
    if averaged and averaged.get('losses'):
        label = ' & '.join(map(loss_label, averaged['losses']))
    return label + _calibrated(calibration) + averaging_label(averaged)


def averaging_label(averaged: Mapping | None) -> str:
    """Return `` × 5 + TTA (2) + MC dropout (20) + temperature`` and the like, with a space first.

    In brackets are the views of an image, and the passes with random dropout.
    """
    if not averaged:
        return ''
    label = f' × {averaged["members"]}' if averaged['members'] > 1 else ''
    if averaged['views'] > 1:
        label += f' + TTA ({averaged["views"]})'
    if averaged['mc_dropout']:
        label += f' + MC dropout ({averaged["mc_dropout"]})'
    return label + _calibrated(averaged['calibration'])


def _calibrated(calibration: Mapping | None) -> str:
    if not calibration:
        return ''
    forced = ''.join(f', {reason}' for reason in calibration['forced'])
    return f' + {" + ".join(map(str, calibration["methods"]))}{forced}'
