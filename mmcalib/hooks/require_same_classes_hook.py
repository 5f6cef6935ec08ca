"""Refuses to evaluate on classes that the model was not trained on."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from mmengine.hooks import Hook
from mmengine.logging import print_log
from mmengine.runner import BaseLoop, Runner

from mmcalib.checks import UserError


class SameClasses(Hook):
    """Compares the classes of each data set with those of the training.

    A missing folder of images, for example, moves every later label by one, and the numbers look
    like others. Checkpoints of mmengine name their classes; where either side names none, there is
    nothing to compare. A set that has only the first of the classes, in their order, has the right
    labels, and is warned of. Names that differ only in wording are refused too, since nobody else
    can know: give the data set the names trained on, as its ``metainfo=dict(classes=[…])``.

    Raises:
        UserError: If names, order or number of classes differ.
    """

    def __init__(self) -> None:
        self.loaded: list[str] = []

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        self.loaded = classes_of((checkpoint.get('meta') or {}).get('dataset_meta'))
        if runner._resume:
            self._check(runner, self.loaded, 'train')
        for split in ('val', 'test'):  # for what evaluates without a loop, as a calibration does
            self._check(runner, self._trained(runner), split)

    def before_train(self, runner: Runner) -> None:
        for split in ('val', 'test'):
            self._check(runner, self._trained(runner), split)

    def before_test(self, runner: Runner) -> None:
        self._check(runner, self._trained(runner), 'test')

    def _trained(self, runner: Runner) -> list[str]:
        loop = runner._train_loop
        return _classes_in(loop) if isinstance(loop, BaseLoop) else self.loaded

    def _check(self, runner: Runner, trained: list[str], split: str) -> None:
        # A runner that does not need a loop leaves it unbuilt.
        loop = getattr(runner, f'_{split}_loop')
        here = _classes_in(loop) if isinstance(loop, BaseLoop) else []
        if not trained or not here or trained == here:
            return
        text = f'the {split} set: {difference(trained, here)}'
        if trained[: len(here)] == here:
            print_log(f'Of the classes trained on, {text}.', 'current', logging.WARNING)
            return
        raise UserError(
            f'the classes differ between the training and {text}. Is the checkpoint one of these '
            'data? If so, complete them or, if only the spelling differs, set the names of the '
            f'training as {split}_dataloader.dataset.metainfo.classes'
        )


def classes_of(metainfo: object) -> list[str]:
    """Return the names of a data set's classes, of none if it does not say."""
    if not isinstance(metainfo, Mapping):
        return []
    classes = metainfo.get('classes', metainfo.get('CLASSES'))
    return [str(name) for name in classes] if isinstance(classes, (list, tuple)) else []


def difference(trained: Sequence[str], here: Sequence[str]) -> str:
    """Return in words how a data set's classes differ from those trained on."""
    parts = []
    if len(trained) != len(here):
        parts.append(f'it has {len(here)} classes, not {len(trained)}')
    for verb, names in (
        ('lacks', [name for name in trained if name not in set(here)]),
        ('adds', [name for name in here if name not in set(trained)]),
    ):
        if names:
            shown = ', '.join(map(repr, names[:5])) + (', …' if len(names) > 5 else '')
            parts.append(f'it {verb} {shown}')
    for label, (one, other) in enumerate(zip(trained, here, strict=False)):
        if one != other:
            parts.append(f'class {label} is {other!r}, not {one!r}')
            break
    return '; '.join(parts)


def _classes_in(loop: BaseLoop) -> list[str]:
    return classes_of(getattr(loop.dataloader.dataset, 'metainfo', None))
