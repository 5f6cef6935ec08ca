"""Refusals of a calibration before its long part, some of which ``--force`` allows."""

from __future__ import annotations

import inspect
import os
from pathlib import Path

from torch import Tensor

from mmcalib.choices import AUTO
from mmcalib.cli.calibrate import CalibrateOptions
from mmcalib.errors import UserError
from mmcalib.files import check_writable
from mmcalib.options import check_integer
from mmcalib.posthoc.affine import TemperatureScaler
from mmcalib.posthoc.class_prior import check_class_prior
from mmcalib.posthoc.methods import SCALERS
from mmcalib.posthoc.scaler import LogitScaler
from mmcalib.texts import command_text


def make_scaler(options: CalibrateOptions) -> str | LogitScaler | None:
    """Return the scaler that the options ask for, AUTO, or None for the default of the head."""
    scaler_options = {}
    for name in ('criterion', 'diagonal', 'off_diagonal', 'intercept'):
        value = getattr(options, name)
        if value is not None:
            scaler_options[name] = value
    method = options.method
    if method is None:
        if not scaler_options and not options.writes_temperature:
            return None
        method = 'temperature'
    scaler_class = None if method == AUTO else SCALERS[method]
    accepted = inspect.signature(scaler_class).parameters if scaler_class else ()
    wrong = [f'--{name.replace("_", "-")}' for name in scaler_options if name not in accepted]
    if wrong:
        raise UserError(f'--method {method} does not take {", ".join(wrong)}')
    if options.writes_temperature and scaler_class is not TemperatureScaler:
        raise UserError(
            f'--out {options.out}: only a temperature can calibrate a mean: use '
            '--method temperature'
        )
    return scaler_class(**scaler_options) if scaler_class else AUTO


def check_options(options: CalibrateOptions) -> None:
    """Raise a UserError for numbers out of range, and files that cannot be written."""
    check_integer('--samples', options.samples)
    check_integer('--num-bins', options.num_bins)
    check_integer('--seed', options.seed, least=0)
    if Path(options.out).suffix == '.py':
        raise UserError(f'--out {options.out} is the name of a config: name a .pth file')
    check_file(options.out, options)
    if options.class_prior is not None:
        check_class_prior('--class-prior', options.class_prior)
        if options.writes_temperature:
            raise UserError(
                f'--out {options.out} holds a temperature of a mean alone, which --class-prior '
                'cannot shift: calibrate each checkpoint to a .pth file, and test their mean'
            )
    if options.averages and not options.writes_temperature:
        raise UserError(
            f'--out {options.out}: a temperature of the mean of several predictions is kept in a '
            f'file of its own, which {command_text("test")} --temperature reads: name a .json file'
        )


def check_file(file: str, options: CalibrateOptions) -> None:
    """Raise an error if writing a file would lose another: lost data.

    Raises:
        UserError: If it is a config or checkpoint to read, by whatever name; a folder; or there,
            unless it is to be overwritten.
        OSError: If nothing can be written there.
    """
    for member in options.members:
        for read_file, kind in zip(member, ('config', 'checkpoint'), strict=True):
            both_exist = os.path.exists(file) and os.path.exists(read_file)
            if both_exist and os.path.samefile(file, read_file):
                raise UserError(
                    f'--out {options.out}: {file} is the {kind} itself: name another file'
                )
    if os.path.exists(file) and not options.overwrite:
        raise UserError(f'--out {file} exists: name another file, or add --overwrite')
    check_writable(file)


def check_groups(group_of_image: Tensor, options: CalibrateOptions) -> None:
    """Raise a UserError if all images are of one group, which no fold can divide: lost hours."""
    if group_of_image.max() > 0:
        return
    num_images = len(group_of_image)
    if num_images == 1:
        reason = 'there is one image'
        remedy = 'take more images'
    elif options.groups:
        reason = (
            f'--groups {options.groups} finds the same in the paths of all {num_images:,} images'
        )
        remedy = 'name what differs between videos, patients or flights'
    else:
        reason = f'all {num_images:,} images are of one group'
        remedy = 'take images of other groups'
    purpose = 'a choice of the method' if options.method == AUTO else 'a fit on the test images'
    raise UserError(f'{reason}, and {purpose} needs two or more independent ones: {remedy}')
