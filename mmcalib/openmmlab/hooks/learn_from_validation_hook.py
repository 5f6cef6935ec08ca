"""The hook of the losses that learn from the validations of their training."""

from __future__ import annotations

import copy
from bisect import bisect
from collections.abc import Sequence
from itertools import zip_longest

import torch
from mmengine.dist import all_gather_object
from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from mmengine.runner import EpochBasedTrainLoop, IterBasedTrainLoop, Runner
from torch import Tensor

from mmcalib.errors import UserError
from mmcalib.losses import AdaFocalLoss, CALSLoss
from mmcalib.metrics.bins import equal_mass_bins, merge_equal_confidences
from mmcalib.metrics.counts import Counts, count_outcomes, sum_counts
from mmcalib.metrics.outcomes import compute_outcomes
from mmcalib.openmmlab.heads import label_ignored_by_head
from mmcalib.openmmlab.same_data import validates_on_test_images
from mmcalib.openmmlab.sample_writing import logits_in
from mmcalib.openmmlab.samples import (
    IGNORE_INDEX,
    Sample,
    read_sample,
    sample_name,
    with_logits,
)
from mmcalib.options import check_ignore_index


@HOOKS.register_module()
class LearnFromValidationHook(Hook):
    """Hook that updates ``CALSLoss`` and ``AdaFocalLoss`` after each validation of a training.

    Each sample of the validation data counts once, whatever the sampler repeats, and its ignored
    pixels do not. All processes update from the samples of all of them, in one order, so that they
    stay alike to the last bit. A loss of an auxiliary head learns from the predictions of the main
    head, since a validation has no others.

    It logs ``train/multiplier_mean``, ``train/multiplier_max`` and ``train/rho`` of the last
    ``CALSLoss``, ``train/gamma_min`` and ``train/gamma_max`` of the last ``AdaFocalLoss``.

    Args:
        ignore_index: Label of the pixels to leave out; None for the one that the head of the model
            ignores. Classifiers do not use it.

    Raises:
        TypeError: If `ignore_index` is no integer.
        ValueError: Before training, if the model has no such loss, or the run no validation before
            its last step.
    """

    # It runs after EMAHook has put the trained weights back, before CheckpointHook saves the best.
    priority = 'LOW'

    def __init__(self, *, ignore_index: int | None = None) -> None:
        self.declares_ignore_index = ignore_index is not None
        self.ignore_index = IGNORE_INDEX
        if ignore_index is not None:
            self.ignore_index = check_ignore_index(ignore_index)
        self._losses: list[CALSLoss | AdaFocalLoss] = []

    def before_train(self, runner: Runner) -> None:
        modules = runner.model.modules()
        self._losses = [loss for loss in modules if isinstance(loss, CALSLoss | AdaFocalLoss)]
        if not self._losses:
            raise UserError(
                f'{type(self).__name__} needs a CALSLoss or an AdaFocalLoss in the model'
            )
        check_validations(runner, type(self._losses[0]).__name__)
        if not self.declares_ignore_index:
            model = getattr(runner.model, 'module', runner.model)
            self.ignore_index = label_ignored_by_head(model)
        if validates_on_test_images(runner.cfg):
            runner.logger.warning(
                f'The validation data, which a {type(self._losses[0]).__name__} learns from, are '
                'the test data too, whose figures are then too good. Validate on a part of the '
                'training images that the training leaves out, as SeededSplit draws it'
            )

    def after_train(self, runner: Runner) -> None:
        self._losses = []

    def before_val(self, runner: Runner) -> None:
        # EMAHook replaces what the loss has learnt by its average.
        self._trained = copy.deepcopy(self._losses)

    def before_val_epoch(self, runner: Runner) -> None:
        self._counted: list[list] = []

    def after_val_iter(
        self, runner: Runner, batch_idx: int, data_batch=None, outputs: Sequence[Sample] = ()
    ) -> None:
        if not self._losses:  # This validation is not part of a training.
            return
        for sample in outputs:
            name = sample_name(sample, len(self._counted))
            self._counted.append([self._count(loss, sample, name) for loss in self._trained])

    def after_val_epoch(self, runner: Runner, metrics: dict | None = None) -> None:
        if not self._losses:
            return
        samples = []
        # mmengine's samplers interleave the ranks, and repeat samples at the end.
        for one_of_each_rank in zip_longest(*all_gather_object(self._counted)):
            samples += [sample for sample in one_of_each_rank if sample is not None]
        num_samples = len(runner.val_loop.dataloader.dataset)
        for loss, *parts in zip(self._losses, *samples[:num_samples], strict=True):
            for key, value in learn(loss, parts).items():
                runner.message_hub.update_scalar(f'train/{key}', value)

    def _count(self, loss: CALSLoss | AdaFocalLoss, sample: Sample, name: str) -> Tensor | Counts:
        """Return what a loss learns from a sample.

        Args:
            loss: The loss.
            sample: The evaluated data sample.
            name: Name of the sample in errors.
        """
        predictions = read_sample(sample, name, ignore_index=self.ignore_index)
        if isinstance(loss, CALSLoss):
            predictions = with_logits(predictions, logits_in(sample)[None])
            return loss.statistics(predictions.valid_rows().logits)
        counts = count_outcomes(compute_outcomes(predictions), is_map=predictions.are_maps)
        return counts.round() if predictions.are_maps else counts


def check_validations(runner: Runner, loss: str) -> None:
    """Refuse a training in which a loss would learn nothing, and be reported as if it had.

    A smoke run (``--limit``) has one epoch, and no report shows it.

    Args:
        runner: Runner before it trains.
        loss: Name of the loss.
    """
    if runner.val_loop is None:
        raise UserError(
            f'{loss} learns from validations, but this training has none: set val_cfg, '
            'val_dataloader and val_evaluator, and leave out --no-validate'
        )
    loop = runner.train_loop
    if isinstance(loop, EpochBasedTrainLoop):
        length = 'max_epochs'
    elif isinstance(loop, IterBasedTrainLoop):
        length = 'max_iters'
    else:
        return
    if runner.cfg.get('limit') or validates_before(getattr(loop, length), loop):
        return
    schedule = {'val_interval': loop.val_interval, 'val_begin': loop.val_begin}
    schedule[length] = getattr(loop, length)
    dynamic_intervals = [*zip(loop.dynamic_milestones, loop.dynamic_intervals, strict=True)][1:]
    if dynamic_intervals:
        schedule['dynamic_intervals'] = dynamic_intervals
    values = ', '.join(f'{name}={value}' for name, value in schedule.items())
    raise UserError(
        f'{loss} learns from the validations before the last step, of which train_cfg has none: '
        f'{values}. Set the interval and val_begin below {length}'
    )


def validates_before(last: int, loop: EpochBasedTrainLoop | IterBasedTrainLoop) -> bool:
    """Return whether a loop validates after an epoch, or an iteration, before `last`."""
    for step in range(max(loop.val_begin, 1), last):
        interval = loop.dynamic_intervals[bisect(loop.dynamic_milestones, step + 1) - 1]
        if step % interval == 0:
            return True
    return False


def learn(loss: CALSLoss | AdaFocalLoss, parts: Sequence[Tensor | Counts]) -> dict[str, float]:
    """Update a loss from the counts of each sample, and return figures to log."""
    if isinstance(loss, CALSLoss):
        loss.update(torch.stack(parts).sum(dim=0))
        multipliers = loss.multipliers
        return {
            'multiplier_mean': multipliers.mean().item(),
            'multiplier_max': multipliers.max().item(),
            'rho': loss.rho.item(),
        }
    counts = sum_counts(parts)
    if counts.count:
        loss.update(*edges_and_gaps(merge_equal_confidences(counts.table), loss.num_bins))
    return {'gamma_min': loss.gammas.min().item(), 'gamma_max': loss.gammas.max().item()}


def edges_and_gaps(table: Tensor, num_bins: int) -> tuple[list[float], list[float]]:
    """Return the lower edges of bins of equal count, and their gaps.

    Args:
        table: ``(3, C)`` fine bins, ascending in confidence, with at least one confidence.
        num_bins: B.

    Returns:
        The lowest confidence of each bin but the first, ascending, and B differences of mean
        confidence and accuracy, in [-1, 1].
    """
    count, correct, conf = equal_mass_bins(table, num_bins)
    gaps = (conf - correct) / count
    cumulative_count = table[0].cumsum(0)
    bin_numbers = torch.arange(1, num_bins, dtype=torch.float64, device='cpu')
    counts_below = cumulative_count[-1] * bin_numbers / num_bins
    first_index = torch.searchsorted(cumulative_count, counts_below, right=True)
    edges = (table[2] / table[0])[first_index]
    return edges.tolist(), gaps.tolist()
