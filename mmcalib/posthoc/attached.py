"""A fitted scaling as a module of a model, for the scalings that no layer can absorb."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from copy import copy
from inspect import Parameter
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, nn

from mmcalib.errors import UserError
from mmcalib.options import check_choice, check_integer
from mmcalib.posthoc.methods import SCALERS
from mmcalib.posthoc.per_label import ScalerPerLabel
from mmcalib.posthoc.scaler import LogitScaler
from mmcalib.predictions.find_logits import Logits, find_logits, logits_key
from mmcalib.predictions.model_inputs import forward_signature
from mmcalib.tensors import at_least_single, is_exporting, on_float64_device
from mmcalib.texts import command_text


def remedy() -> str:
    """Return what to do about a model and a calibration that do not fit."""
    tool = command_text('calibrate')
    return f'test the config and the checkpoint that {tool} wrote beside each other'


def build_scaling(
    method: str, *, labels: int | None = None, **options: Any
) -> AttachedScaling | AttachedScalingPerLabel:
    """Return the module that a config describes, which is empty until a checkpoint fills it.

    ``calibration=dict(method='ets')`` is one scaling, and ``dict(method='ets', labels=20)`` a list
    of twenty, one for each label.

    Args:
        method: A key of :data:`mmcalib.posthoc.methods.SCALERS`.
        labels: The number of labels that an image can have any number of, each of which has a
            scaling. None for a softmax, and for one sigmoid.
        **options: The options of the scaler.

    Raises:
        ValueError: If the method is unknown, or there is less than one label.
    """
    if labels is None:
        return AttachedScaling(method, **options)
    check_integer('labels', labels)
    return AttachedScalingPerLabel(AttachedScaling(method, **options) for _ in range(labels))


def scaling_module(
    scaler: LogitScaler | ScalerPerLabel,
) -> AttachedScaling | AttachedScalingPerLabel:
    """Return a fitted scaler as a module of a model."""
    if isinstance(scaler, ScalerPerLabel):
        return AttachedScalingPerLabel(map(scaling_module, scaler.scalers))
    return AttachedScaling(scaler.method, **scaler.get_params()).take(scaler)


class AttachedScaling(nn.Module):
    """Maps logits ``(N, K, *)`` to calibrated ones, with the learned parameters as buffers.

    It computes in double precision, whatever the model is cast to, so that steps of a curve are
    where the fit has put them. An exported model computes in single precision, which many engines
    have alone, except for ``isotonic``, whose steps may lie too near to each other. The buffers are
    empty until a checkpoint or :meth:`take` fills them; their shapes depend on the fit. One of
    them, ``about``, holds the method and K as text, and a checkpoint of another method is refused.

    Args:
        method: A key of :data:`mmcalib.posthoc.methods.SCALERS`.
        **options: The options of the scaler.

    Attributes:
        scaler: The scaler, which is not fitted: it applies the buffers.
        num_logits: K. None before a fit, and for a checkpoint of version 0.3.0.

    Raises:
        ValueError: If the method is unknown; while loading, if the checkpoint has another; while
            calibrating, if no checkpoint has filled it, or one for another number of logits.
    """

    def __init__(self, method: str, **options: Any) -> None:
        super().__init__()
        scaler_class = SCALERS[check_choice('method', method, tuple(SCALERS))]
        self.scaler = scaler_class(**options)
        self.num_logits: int | None = None
        for name in (*self.scaler.learned, 'about'):
            self.register_buffer(name, None)

    def take(self, scaler: LogitScaler) -> AttachedScaling:
        """Fill the buffers with the learned parameters of a scaler, and return self."""
        num_logits = vars(scaler).get('num_logits_')
        description = json.dumps({'method': scaler.method, 'num_logits': num_logits})
        description_bytes = torch.tensor(list(description.encode()), device='cpu')
        self._fill({**scaler.tensors, 'about': description_bytes})
        return self

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> AttachedScaling:
        """Move the buffers as a model does, in their precision.

        They stay where they are if the device has no float64.
        """

        def move(value: Tensor) -> Tensor:
            try:
                moved = fn(value)
            except (TypeError, RuntimeError):
                return value
            return moved if moved.dtype == value.dtype else value.to(moved.device)

        return super()._apply(move, recurse)

    def forward(self, logits: Tensor) -> Tensor:
        values = on_float64_device(logits)
        dtype = torch.float64
        if is_exporting() and not self.scaler.has_near_steps:
            dtype = at_least_single(logits).dtype
        learned = {name: value.to(values.device, dtype) for name, value in self.named_buffers()}
        learned.pop('about', None)
        if not learned:
            raise UserError(
                f'the model has a calibration, but its checkpoint holds none: {remedy()}'
            )
        num_logits = logits.shape[1]
        if self.num_logits not in (None, num_logits):
            raise UserError(
                f'the calibration is of {self.num_logits} logits of a prediction, and the model '
                f'has {num_logits}: {remedy()}'
            )
        scaled = self.scaler.apply(values.to(dtype), **learned)
        return scaled.to(at_least_single(logits).dtype).to(logits.device)

    def _fill(self, state: Mapping[str, Tensor]) -> None:
        learned = dict(state)
        description_bytes = learned.pop('about', None)
        if description_bytes is None:
            description = {'method': self.scaler.method, 'num_logits': None}
        else:
            self.about = description_bytes.to(torch.uint8)
            description = json.loads(bytes(self.about.tolist()))
        try:
            check_choice('method', description['method'], (self.scaler.method,))
            self.scaler.check_learned(learned)
        except ValueError as error:
            raise UserError(
                f'the scaling in the checkpoint is not that of the config: {error}: {remedy()}'
            ) from error
        self.num_logits = description['num_logits']
        for name, value in learned.items():
            setattr(self, name, value.double())

    def _load_from_state_dict(
        self,
        state_dict: Mapping[str, Tensor],
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: list[str],
        *errors: list[str],
    ) -> None:
        state = {}
        for key, value in state_dict.items():
            if key.startswith(prefix):
                state[key.removeprefix(prefix)] = value
        for name in self.scaler.learned:
            if name not in state:
                missing_keys.append(prefix + name)
        if state:
            self._fill(state)


class AttachedScalingPerLabel(nn.ModuleList):
    """A list of L :class:`AttachedScaling`, one for each label.

    Logits are ``(N, L)``, or ``(N, 1, *, L)``: the last axis is one of labels.
    """

    def forward(self, logits: Tensor) -> Tensor:
        num_labels = logits.shape[-1]
        if num_labels != len(self):
            raise UserError(
                f'the calibration is of {len(self)} labels, and the model has {num_labels}: '
                f'{remedy()}'
            )
        columns = logits.split(1, dim=-1)
        scaled = [scaling(column) for scaling, column in zip(self, columns, strict=True)]
        return torch.cat(scaled, dim=-1)


class CalibratedOutput(nn.Module):
    """Any model whose logits are calibrated; the rest of its output is as it was.

    Its ``state_dict`` has the model's keys behind ``model.`` and those of the calibration behind
    ``calibration.``; it loads into ``CalibratedOutput(model, AttachedScaling(method))``, and that
    of several labels into ``CalibratedOutput(model, build_scaling(method, labels=L))``.

    Args:
        model: A model that returns logits.
        calibration: A module that calibrates logits ``(N, K, *)``.
        logits: The function of :func:`mmcalib.calibrate` that takes the logits out of an output;
            the output is then the calibrated logits alone.
    """

    def __init__(
        self, model: nn.Module, calibration: nn.Module, logits: Logits | None = None
    ) -> None:
        super().__init__()
        self.model = model
        self.calibration = calibration
        self.logits = logits
        self._take_signature()

    def _take_signature(self) -> None:
        """Give ``forward`` the model's signature, by which torch.export names inputs and shapes."""
        signature = forward_signature(self.model)
        self_parameter = Parameter('self', Parameter.POSITIONAL_ONLY)
        parameters = [self_parameter, *signature.parameters.values()]
        forward = CalibratedOutput.forward
        signed = FunctionType(forward.__code__, forward.__globals__, forward.__name__)
        signed.__signature__ = signature.replace(parameters=parameters)
        self.forward = MethodType(signed, self)

    def __getstate__(self) -> dict:
        state = dict(vars(self))
        state.pop('forward', None)  # It is bound to this object, and a copy needs its own.
        return state

    def __setstate__(self, state: dict) -> None:
        super().__setstate__(state)
        self._take_signature()

    def _replicate_for_data_parallel(self) -> CalibratedOutput:
        replica = super()._replicate_for_data_parallel()
        replica.forward = MethodType(replica.forward.__func__, replica)
        return replica

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        output = self.model(*args, **kwargs)
        scaled = self.calibration(find_logits(output, self.logits))
        if self.logits is not None:
            return scaled
        if torch.is_tensor(output):
            return scaled.reshape(output.shape)
        key = logits_key(output)
        if type(output) is dict:  # The strict mode of torch.export cannot trace a copy.
            return {**output, key: scaled}
        calibrated_output = copy(output)
        if key is None:
            calibrated_output.logits = scaled
        else:
            calibrated_output[key] = scaled
        return calibrated_output
