"""The mean of several predictions: its config, and the temperature that was fitted for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from mmengine.config import ConfigDict

from mmcalib.errors import UserError
from mmcalib.runs.record import read_json
from mmcalib.texts import command_text


def mean_config(
    models: Sequence[ConfigDict],
    description: Mapping,
    *,
    passes_at_once: int,
    seed: int,
    disagreement: bool,
) -> ConfigDict:
    """Return the config of the mean of what members, views and passes predict.

    Args:
        models: Config of each member.
        description: Description of the mean, see :func:`mmcalib.runs.model.describe_model`.
        passes_at_once: Number of passes with random dropout that are made at a time.
        seed: Seed of the dropout.
        disagreement: Whether images get their mutual information.
    """
    first, *others = models
    return ConfigDict(
        type='MeanProbabilityModel',
        module=first,
        others=others,
        mc_dropout=description['mc_dropout'],
        passes_at_once=passes_at_once,
        seed=seed,
        temperature=description['temperature'],
        disagreement=disagreement,
    )


def read_temperature(file: str | Path) -> dict:
    """Return what a calibration of a mean has left in a file.

    Raises:
        OSError: If the file cannot be read.
        UserError: If it holds no temperature of an ensemble.
    """
    tool = command_text('calibrate')
    remedy = f'name the file that {tool} wrote for the same checkpoints and options'
    content = read_json(file, remedy)
    if 'temperature' not in content:
        raise UserError(f'{file} holds no temperature of an ensemble: {remedy}')
    return content


def short_calibration(calibration: Mapping) -> dict | None:
    """Return what records say of a calibration, None without any.

    Args:
        calibration: Record of a calibration in a checkpoint or a file; it may be empty.
    """
    if not calibration:
        return None
    short = {'methods': calibration.get('methods', [calibration['method']])}
    for key in ('options', 'split', 'forced'):
        short[key] = calibration[key]
    for key in ('limit', 'class_prior'):
        if calibration.get(key):
            short[key] = calibration[key]
    return short
