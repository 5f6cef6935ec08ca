"""The base of hooks by which a loss learns from the validations of its training."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

from mmengine.dist import all_gather_object
from mmengine.hooks import Hook
from mmengine.model import is_model_wrapper
from mmengine.runner import Runner

from mmcalib.checks import check_integer
from mmcalib.datasets.same_data import same_data
from mmcalib.losses import CalibrationLoss
from mmcalib.samples.reading import Sample, name_of


class ValidationLearningHook(Hook):
    """Update losses of a model after each validation of its training, from its predictions there.

    Each sample of the validation data counts once, whatever the sampler repeats, and its ignored
    pixels do not. All processes update from the statistics of all of them, in one order, so that
    they stay alike to the last bit. A loss of an auxiliary head, whose predictions a validation
    does not have, learns from those of the main head.

    A subclass says what each sample leaves, by :meth:`measure`, and what a loss does with that of
    all samples, by :meth:`update`.

    Args:
        ignore_index: Label of the pixels to leave out. Classifiers do not use it.

    Attributes:
        loss_type: Of the losses to update.

    Raises:
        TypeError: If `ignore_index` is no integer.
        ValueError: Before training, if the model has no such loss, or the run no validation.
    """

    # After EMAHook has put the trained weights back, before CheckpointHook saves the best.
    priority = 'LOW'
    loss_type: type[CalibrationLoss]

    def __init__(self, *, ignore_index: int = 255) -> None:
        self.ignore_index = check_integer('ignore_index', ignore_index, least=-(1 << 62))
        self._losses: list = []
        self._trained: list = []

    def measure(self, loss: CalibrationLoss, sample: Sample, name: str) -> Any:
        """Return the counted part of an evaluated data sample, which errors call `name`."""
        raise NotImplementedError

    def update(self, loss: CalibrationLoss, measured: Sequence) -> dict[str, float]:
        """Update a loss from what its samples have left, and return figures to log."""
        raise NotImplementedError

    def before_train(self, runner: Runner) -> None:
        name = type(self).__name__
        model = runner.model.module if is_model_wrapper(runner.model) else runner.model
        self._losses = [loss for loss in model.modules() if isinstance(loss, self.loss_type)]
        if not self._losses:
            raise ValueError(f'{name}: the model has no {self.loss_type.__name__} to update')
        if runner.val_loop is None:
            raise ValueError(
                f'{name}: a {self.loss_type.__name__} learns from validations, and this run has '
                'none: set val_cfg, val_dataloader and val_evaluator'
            )
        if same_data(runner.cfg.get('val_dataloader'), runner.cfg.get('test_dataloader')):
            runner.logger.warning(
                f'{name}: the validation data, which a {self.loss_type.__name__} learns from, are '
                'the test data too, whose figures then say too much. Validate on a part of the '
                'training images that the training leaves out, as SeededSplit draws it'
            )

    def after_train(self, runner: Runner) -> None:
        self._losses = []

    def before_val(self, runner: Runner) -> None:
        # What the loss has learnt so far, before EMAHook puts the average of it there.
        self._trained = copy.deepcopy(self._losses)

    def before_val_epoch(self, runner: Runner) -> None:
        self._measured: list[list] = []

    def after_val_iter(
        self,
        runner: Runner,
        batch_idx: int,
        data_batch: Any = None,
        outputs: Sequence | None = None,
    ) -> None:
        if not self._losses:  # a validation that is no training's
            return
        for sample in outputs:
            name = name_of(sample, len(self._measured))
            self._measured.append([self.measure(loss, sample, name) for loss in self._trained])

    def after_val_epoch(self, runner: Runner, metrics: dict | None = None) -> None:
        if not self._losses:
            return
        # mmengine's samplers interleave the ranks, and repeat samples at the end.
        turns = zip_longest(*all_gather_object(self._measured))
        size = len(runner.val_loop.dataloader.dataset)
        samples = [sample for turn in turns for sample in turn if sample is not None][:size]
        for loss, *measured in zip(self._losses, *samples, strict=True):
            for key, value in self.update(loss, measured).items():
                runner.message_hub.update_scalar(f'train/{key}', value)
