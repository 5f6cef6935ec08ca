"""The hook that changes a parameter of a loss while it trains."""

from __future__ import annotations

from collections.abc import Mapping

from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from mmengine.runner import IterBasedTrainLoop, Runner

from mmcalib.errors import UserError
from mmcalib.losses.calibration_loss import CalibrationLoss


@HOOKS.register_module()
class LossScheduleHook(Hook):
    r"""Hook that sets a parameter of calibration losses from certain epochs or iterations on.

    The value is a function of the epoch or iteration alone, so a resumed run goes on with the right
    one. It is logged as ``train/<parameter>``. The schedules of the paper's published code for
    :math:`\alpha` and the margin are such steps; the paper's tables hold both constant.

    Args:
        parameter: Name of a numeric parameter of the loss, such as ``'margin'``, ``'alpha'`` or
            ``'gamma'``: a key of :attr:`CalibrationLoss.ranges`.
        values: Values by the epoch from which they hold, counted from 0, such as
            ``{0: 10.0, 20: 8.0}``.
        by_epoch: Whether the keys of `values` count epochs or iterations.

    Raises:
        ValueError: If `values` do not start at 0; before training, if no loss of the model has the
            parameter, or its constructor would refuse a value.
    """

    def __init__(
        self, parameter: str, *, values: Mapping[int, float], by_epoch: bool = True
    ) -> None:
        self.parameter = parameter
        self.by_epoch = by_epoch
        self.values = {int(step): value for step, value in values.items()}
        if min(self.values, default=None) != 0:
            raise UserError(
                f'values must start at 0, such as {{0: 10.0, 20: 8.0}}, got {dict(values)}'
            )

    def before_train(self, runner: Runner) -> None:
        if self.by_epoch and isinstance(runner.train_loop, IterBasedTrainLoop):
            raise UserError('LossScheduleHook: this run has no epochs, so set by_epoch=False')
        losses = [loss for loss in runner.model.modules() if isinstance(loss, CalibrationLoss)]
        self._losses = [loss for loss in losses if self.parameter in loss.ranges]
        if not self._losses:
            raise UserError(
                f'LossScheduleHook: no calibration loss of the model has a {self.parameter!r}'
            )
        for loss in self._losses:
            for value in self.values.values():
                loss.check_parameter(self.parameter, value)

    def before_train_epoch(self, runner: Runner) -> None:
        if self.by_epoch:
            self._set(runner, runner.epoch)

    def before_train_iter(self, runner: Runner, batch_idx: int, data_batch=None) -> None:
        if not self.by_epoch:
            self._set(runner, runner.iter)

    def _set(self, runner: Runner, step: int) -> None:
        """Set the value of an epoch or iteration, and log it."""
        last_start = max(start for start in self.values if start <= step)
        value = self.values[last_start]
        for loss in self._losses:
            loss.set_parameters(**{self.parameter: value})
        runner.message_hub.update_scalar(f'train/{self.parameter}', value)
