"""The scaler, the images and the files of a calibration, and what speaks against it.

Some refusals are made before the long part, and some of these ``--force`` allows.
"""

from __future__ import annotations

import inspect
import logging
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from mmengine.config import Config
from mmengine.logging import print_log
from torch import Tensor

from mmcalib.choices import AUTO
from mmcalib.cli.calibrate import CalibrateOptions
from mmcalib.errors import UserError
from mmcalib.files import check_writable
from mmcalib.openmmlab.same_data import split_images
from mmcalib.options import check_integer
from mmcalib.posthoc.affine import TemperatureScaler
from mmcalib.posthoc.class_prior import check_class_prior
from mmcalib.posthoc.methods import SCALERS
from mmcalib.posthoc.scaler import LogitScaler
from mmcalib.runs.checkpoint import CALIBRATION, Checkpoint
from mmcalib.texts import command_text

# With more training images than this share, a fit is to images that the model has learned.
MOST_LEARNED = 0.1
HELD_OUT = (
    'Fit on images that no test uses: leave out --split test. With --force it fits, and the '
    'checkpoint records it'
)
SAME_DATA = (
    'The images of the fit are those of the test: before and after are cross-fitted over folds of '
    'the images (seed {seed}), and the scaling that is written is fitted on all of them.'
)


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
    check_writable(file, chain(*options.members))
    if os.path.exists(file) and not options.overwrite:
        raise UserError(f'--out {file} exists: name another file, or add --overwrite')


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


@dataclass(frozen=True)
class Plan:
    """The images that a scaling is fitted to, and those that it is measured on.

    Attributes:
        split: The split of the fit.
        is_whole_test: Whether these images are those of the test, and no others: then each is
            scored by a scaling that was fitted without its fold, however long this takes.
        tests: Whether the test split is measured besides.
        shared: Result of :func:`count_shared`.
        forced: The reasons against the calibration that ``--force`` allowed.
    """

    split: str
    is_whole_test: bool
    tests: bool
    shared: dict[str, int]
    forced: list[str]


def make_plan(
    cfg: Config,
    options: CalibrateOptions,
    datasets: Mapping[str, object],
    checkpoint: Checkpoint | None,
) -> Plan:
    """Return what is fitted and measured; refuse or warn of images that are not held out.

    Args:
        cfg: The config of the run.
        options: The options of the command.
        datasets: The data sets of the fit and of the test that is measured, by split.
        checkpoint: The checkpoint that is calibrated, None for a mean.

    Raises:
        UserError: For a reason against the calibration that is not forced.
    """
    split = options.split
    shared = count_shared(cfg, split, datasets)
    num_images = shared['images']
    is_whole_test = split == 'test' or (
        shared.get('test') == num_images == shared.get('test_images')
    )
    forced = []
    for reason, remedy in _objections(split, shared, checkpoint):
        if not options.force:
            raise UserError(f'refused: {reason}. {remedy}')
        forced.append(reason)
    num_learned = shared.get('train', 0)
    if 0 < num_learned <= MOST_LEARNED * num_images:
        _warn(f'{_fact(split, shared, "train")}, so the model is surer of them than of others')
    if shared.get('test') and not is_whole_test:
        fact = _fact(split, shared, 'test')
        _warn(f'{fact}, so the figures of the test after the calibration are too good')
    if is_whole_test:
        print_log(SAME_DATA.format(seed=options.seed), 'current')
    return Plan(split, is_whole_test, 'test' in datasets and not is_whole_test, shared, forced)


def count_shared(cfg: Config, split: str, datasets: Mapping[str, object]) -> dict[str, int]:
    """Return the numbers of images of the fit that the training and the test data have too.

    Returns:
        ``images``, the number of different images of the fit; ``train`` and ``test``, the number of
        those that these data have; ``test_images``, the number of different images of the test. A
        split that cannot be read, or that the config lacks, is left out.
    """
    images = split_images(cfg, split, datasets)
    counts = {'images': len(images)}
    for other in ('train', 'test'):
        if other == split:
            continue
        other_images = split_images(cfg, other, datasets)
        if other_images is not None:
            counts[other] = len(images & other_images)
            if other == 'test':
                counts['test_images'] = len(other_images)
    return counts


def _objections(
    split: str, shared: Mapping[str, int], checkpoint: Checkpoint | None
) -> Iterator[tuple[str, str]]:
    """Yield the reasons against a calibration, each with its remedy.

    Raises:
        UserError: For a checkpoint with an attached scaling, which cannot be forced.
    """
    if split == 'test':
        yield 'fitted on the test split', HELD_OUT
    earlier = checkpoint.meta.get(CALIBRATION) if checkpoint is not None else None
    if earlier:
        if earlier.get('attached'):
            raise UserError(
                f'the checkpoint has an attached scaling ({earlier["method"]}), which takes no '
                f'other on top, even with --force: calibrate the original, {earlier["checkpoint"]}'
            )
        remedy = (
            f'It holds a {earlier["method"]} scaling, fitted on {earlier["split"]} at '
            f'{earlier["date"]}: use the original, {earlier["checkpoint"]}; or --force, which puts '
            'another scaling on top; the checkpoint then records both'
        )
        yield 'calibrated before', remedy
    if shared.get('train', 0) > MOST_LEARNED * shared['images']:
        remedy = f'Set {split}_dataloader to images that the training did not see'
        yield f'{_fact(split, shared, "train")}, of which the model is too sure', remedy


def _fact(split: str, shared: Mapping[str, int], other: str) -> str:
    """Return how many images of the fit another split has too."""
    kind = 'training' if other == 'train' else 'test'
    return f'{shared[other]:,} of the {shared["images"]:,} {split} images are {kind} images too'


def _warn(fact: str) -> None:
    print_log(f'{fact}: leave them out of the fit.', 'current', logging.WARNING)
