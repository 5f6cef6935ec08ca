"""A loss whose parameter changes while it trains."""

from __future__ import annotations

from mmengine.hooks import Hook
from mmengine.model import is_model_wrapper
from mmengine.registry import HOOKS
from mmengine.runner import IterBasedTrainLoop
from torch import nn

from mmcalib.checks import check_choice, check_integer, check_number
from mmcalib.losses.calibration_loss import CalibrationLoss

MODES = ('add', 'multiply', 'step')


@HOOKS.register_module()
class LossScheduleHook(Hook):
    r"""Change a parameter of calibration losses every n epochs or iterations.

    After t whole intervals, the value that the config started from, :math:`v_0`, has become

    - ``'add'``: :math:`v_0 + t f`,
    - ``'multiply'``: :math:`v_0 f^t`,
    - ``'step'``: ``values[t - 1]`` (the last one from then on), :math:`v_0` before;

    never beyond `cap`: at most it where the values rise, at least it where they fall. The value is
    a function of the epoch or iteration alone, so a resumed run goes on with the right one, and a
    second training of one hook starts from :math:`v_0` again. It is logged as
    ``train/<parameter>``.

    Source: the schedules of the paper's published code for :math:`\alpha` and the margin; the
    paper's tables hold both constant.

    Args:
        parameter: Name of a numeric parameter of the loss, such as ``'margin'``, ``'alpha'`` or
            ``'gamma'``: a key of :attr:`CalibrationLoss.ranges`.
        mode: ``'add'``, ``'multiply'`` or ``'step'``.
        factor: f, for ``'add'`` and ``'multiply'``.
        values: The values of ``'step'``.
        interval: n.
        by_epoch: Whether n counts epochs or iterations.
        cap: Limit of the value.

    Raises:
        TypeError: If an option is of another type.
        ValueError: If the options do not fit together; before training, if no loss of the model
            has the parameter, its constructor would refuse a value, or values move away from the
            cap.
    """

    def __init__(
        self,
        parameter: str,
        *,
        mode: str = 'add',
        factor: float | None = None,
        values: list[float] | None = None,
        interval: int = 1,
        by_epoch: bool = True,
        cap: float | None = None,
    ) -> None:
        check_choice('mode', mode, MODES)
        if mode == 'step' and not (values and factor is None):
            raise ValueError(f"mode 'step' takes values and no factor; got {values}, {factor}")
        if mode != 'step' and (factor is None or values is not None):
            raise ValueError(f'mode {mode!r} takes a factor and no values; got {factor}, {values}')
        for name, numbers in (('factor', [factor]), ('cap', [cap]), ('values', values or ())):
            for number in numbers:
                if number is not None:
                    check_number(name, number, least=float('-inf'))
        self.parameter = parameter
        self.mode = mode
        self.factor = factor
        self.values = values
        self.interval = check_integer('interval', interval)
        self.by_epoch = by_epoch
        self.cap = cap
        self._losses: list = []

    def before_train(self, runner) -> None:
        """Find the losses, and the values that the config gave them."""
        if self.by_epoch and isinstance(runner.train_loop, IterBasedTrainLoop):
            raise ValueError('LossScheduleHook: this run has no epochs, so set by_epoch=False')
        losses = find_losses(runner.model, self.parameter)
        if not losses:
            raise ValueError(
                f'LossScheduleHook: no calibration loss of the model has a {self.parameter!r}'
            )
        known = {id(loss): initial for loss, initial in self._losses}
        self._losses = [
            (loss, known.get(id(loss), getattr(loss, self.parameter))) for loss in losses
        ]
        end = runner.max_epochs if self.by_epoch else runner.max_iters
        for loss, initial in self._losses:
            for step in range(0, end, self.interval):
                try:
                    loss.check_parameter(self.parameter, self.value_at(step, initial))
                except (ValueError, OverflowError) as error:
                    raise ValueError(f'LossScheduleHook, at step {step}: {error}') from error

    def before_train_epoch(self, runner) -> None:
        if self.by_epoch:
            self._set(runner, runner.epoch)

    def before_train_iter(self, runner, batch_idx: int, data_batch=None) -> None:
        if not self.by_epoch:
            self._set(runner, runner.iter)

    def value_at(self, step: int, initial: float) -> float:
        """Return the value during epoch or iteration `step`, counted from 0."""
        passed = step // self.interval
        if self.mode == 'add':
            value = initial + passed * self.factor
        elif self.mode == 'multiply':
            value = initial * self.factor**passed
        else:
            value = initial if passed == 0 else self.values[min(passed, len(self.values)) - 1]
        if self.cap is None or value == initial:
            return value
        rises = value > initial
        if self.cap != initial and rises != (self.cap > initial):
            raise ValueError(
                f'the values {"rise" if rises else "fall"} from {initial:g} to {value:g}, away '
                f'from cap={self.cap:g}'
            )
        return min(value, self.cap) if rises else max(value, self.cap)

    def _set(self, runner, step: int) -> None:
        for loss, initial in self._losses:
            value = self.value_at(step, initial)
            loss.set_parameters(**{self.parameter: value})
            runner.message_hub.update_scalar(f'train/{self.parameter}', value)


def find_losses(model: nn.Module, parameter: str) -> list[CalibrationLoss]:
    """Return the calibration losses anywhere in a model of either toolbox that have a parameter."""
    if is_model_wrapper(model):
        model = model.module
    return [
        module
        for module in model.modules()
        if isinstance(module, CalibrationLoss) and parameter in module.ranges
    ]
