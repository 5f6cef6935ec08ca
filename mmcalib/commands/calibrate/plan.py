"""The images of a calibration, known once they are built, and what speaks against it."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from mmengine.config import Config
from mmengine.logging import print_log

from mmcalib.cli.calibrate import CalibrateOptions
from mmcalib.errors import UserError
from mmcalib.openmmlab.same_data import split_images
from mmcalib.runs.checkpoint import CALIBRATION, Checkpoint

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
