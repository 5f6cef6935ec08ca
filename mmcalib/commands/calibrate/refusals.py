"""Refusals of a calibration before its long part, some of which ``--force`` allows."""

from __future__ import annotations

import inspect
import logging
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from mmengine.config import Config
from mmengine.logging import print_log
from torch import Tensor

from mmcalib.choices import AUTO
from mmcalib.cli.calibrate import CalibrateOptions
from mmcalib.commands.calibrate.held_out import MOST_LEARNED, shared_with
from mmcalib.errors import UserError
from mmcalib.files import check_writable
from mmcalib.options import check_integer
from mmcalib.posthoc.affine import TemperatureScaler
from mmcalib.posthoc.class_prior import check_class_prior
from mmcalib.posthoc.methods import SCALERS
from mmcalib.posthoc.scaler import LogitScaler
from mmcalib.runs.checkpoint import CALIBRATION, Checkpoint
from mmcalib.texts import command_text

HELD_OUT = (
    'Fit on images that no test uses: leave out --split test. With --force it fits, and the '
    'checkpoint records it'
)
SAME_DATA = (
    'The images of the fit are those of the test: before and after are cross-fitted over folds of '
    'the images (seed {seed}), and the scaling that is written is fitted on all of them.'
)


class Forced:
    """Reasons to refuse a calibration, which ``--force`` allows and the record names.

    Args:
        is_allowed: Whether ``--force`` was given.
    """

    def __init__(self, is_allowed: bool) -> None:
        self.is_allowed = is_allowed
        self.reasons: list[str] = []

    def refuse(self, reason: str, remedy: str) -> None:
        """Raise a UserError, or note its reason where the calibration is forced."""
        if not self.is_allowed:
            raise UserError(f'refused: {reason}. {remedy}')
        self.reasons.append(reason)


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


def check_not_calibrated(checkpoint: Checkpoint, forced: Forced) -> None:
    """Refuse a checkpoint that has been calibrated before: a wrong number.

    Raises:
        UserError: If it has an attached scaling, or a folded one, and this is not forced.
    """
    earlier = checkpoint.meta.get(CALIBRATION)
    if not earlier:
        return
    if earlier.get('attached'):
        raise UserError(
            f'the checkpoint has an attached scaling ({earlier["method"]}), which takes no other '
            f'on top, even with --force: calibrate the original, {earlier["checkpoint"]}'
        )
    remedy = (
        f'It holds a {earlier["method"]} scaling, fitted on {earlier["split"]} at '
        f'{earlier["date"]}: use the original, {earlier["checkpoint"]}; or --force, which puts '
        'another scaling on top; the checkpoint then records both'
    )
    forced.refuse('calibrated before', remedy)


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


def check_held_out(
    cfg: Config, split: str, loaders: Mapping[str, Iterable], forced: Forced
) -> dict[str, int]:
    """Refuse or warn of images of the fit that are also those of the training, or of the test.

    Args:
        cfg: The config of the run.
        split: The split of the fit.
        loaders: The loaders of the split and of the test that is measured, by split.
        forced: The reasons that are allowed.

    Returns:
        The counts of :func:`~mmcalib.commands.calibrate.held_out.shared_with`.

    Raises:
        UserError: If more than a tenth are training images, and this is not forced.
    """
    datasets = {name: loader.dataset for name, loader in loaders.items()}
    shared = shared_with(cfg, split, datasets)
    num_images = shared['images']
    for other, phrase in (('train', 'training'), ('test', 'test')):
        num_shared = shared.get(other, 0)
        if not num_shared:
            continue
        fact = f'{num_shared:,} of the {num_images:,} {split} images are {phrase} images too'
        if other == 'train' and num_shared > MOST_LEARNED * num_images:
            remedy = f'Set {split}_dataloader to images that the training did not see'
            forced.refuse(f'{fact}, of which the model is too sure', remedy)
        elif other == 'train':
            warn(f'{fact}, so the model is surer of them than of others')
        elif not is_whole_test(shared):
            warn(f'{fact}, so the figures of the test after the calibration are too good')
    return shared


def is_whole_test(shared: Mapping[str, int]) -> bool:
    """Return whether the images of the fit are those of the test, and no others."""
    return 'test' in shared and shared['test'] == shared['images'] == shared['test_images']


def warn(fact: str) -> None:
    """Warn of images that are shared."""
    print_log(f'{fact}: leave them out of the fit.', 'current', logging.WARNING)
