"""A fitted scaling as a module of a model, for what no layer can absorb."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from copy import copy
from inspect import Parameter
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from mmcalib.errors import UserError
from mmcalib.options import check_choice
from mmcalib.predictions.loader import Logits, key_of, logits_of
from mmcalib.tensors import at_least_single

if TYPE_CHECKING:
    from mmcalib.posthoc.per_label import ScalerPerLabel
    from mmcalib.posthoc.scaler import LogitScaler

REMEDY = 'test the config and the checkpoint that tools/calibrate.py wrote beside each other'


class AttachedScaling(nn.Module):
    """Maps logits ``(N, K, *)`` to calibrated ones, with what was learned as buffers.

    It computes in double precision, so that steps of a curve are where the fit has put them. The
    buffers are empty until a checkpoint or :meth:`take` fills them; their shapes depend on what was
    learned. One of them, ``about``, holds the method and K as text, and a checkpoint of another
    method is refused.

    Args:
        method: A key of :data:`mmcalib.posthoc.methods.SCALERS`.
        options: Those of the scaler.

    Raises:
        ValueError: If the method is unknown; while loading, if the checkpoint has another; while
            calibrating, if no checkpoint has filled it, or one for another number of logits.
    """

    def __init__(self, method: str, **options: Any) -> None:
        from mmcalib.posthoc.methods import SCALERS  # scikit-learn takes a second to import

        super().__init__()
        self.scaler = SCALERS[check_choice('method', method, tuple(SCALERS))](**options)
        self.num_logits: int | None = None  # unknown of a checkpoint of version 0.3.0
        for name in (*self.scaler.learned, 'about'):
            self.register_buffer(name, None)

    def take(self, scaler: LogitScaler) -> AttachedScaling:
        """Fill the buffers with what a scaler has learned, and return self."""
        about = {'method': scaler.method, 'num_logits': vars(scaler).get('num_logits_')}
        about_bytes = torch.tensor(list(json.dumps(about).encode()), device='cpu')
        self._fill({**scaler.tensors, 'about': about_bytes})
        return self

    def forward(self, logits: Tensor) -> Tensor:
        learned = {name: value.to(logits.device) for name, value in self.named_buffers()}
        learned.pop('about', None)
        if not learned:
            raise UserError(f'the model has a calibration, but its checkpoint holds none: {REMEDY}')
        size = logits.shape[1]
        if self.num_logits not in (None, size):
            was = f'the calibration is of {self.num_logits} logits of a prediction'
            raise UserError(f'{was}, and the model has {size}: {REMEDY}')
        return self.scaler.apply(logits.double(), **learned).to(at_least_single(logits).dtype)

    def _fill(self, state: Mapping[str, Tensor]) -> None:
        state, about = dict(state), {'method': self.scaler.method, 'num_logits': None}
        if 'about' in state:
            self.about = state.pop('about').to(torch.uint8)
            about = json.loads(bytes(self.about.tolist()))
        try:
            check_choice('method', about['method'], (self.scaler.method,))
            self.scaler.check_learned(state)
        except ValueError as error:
            said = f'the scaling in the checkpoint is not that of the config: {error}'
            raise UserError(f'{said}: {REMEDY}') from error
        self.num_logits = about['num_logits']
        for name, value in state.items():
            setattr(self, name, value.double())

    def _load_from_state_dict(
        self, state_dict: Mapping, prefix: str, _: Any, strict: bool, missing: list, *others: Any
    ) -> None:
        found = {k.removeprefix(prefix): v for k, v in state_dict.items() if k.startswith(prefix)}
        missing += [prefix + name for name in self.scaler.learned if name not in found]
        if found:
            self._fill(found)


def attached(scaler: LogitScaler | ScalerPerLabel) -> nn.Module:
    """Return a fitted scaler as a module of a model."""
    if hasattr(scaler, 'scalers'):
        return _PerLabel(map(attached, scaler.scalers))
    return AttachedScaling(scaler.method, **scaler.get_params()).take(scaler)


class _PerLabel(nn.ModuleList):
    def forward(self, logits: Tensor) -> Tensor:
        columns = zip(self, logits.split(1, dim=1), strict=True)
        return torch.cat([scaling(values) for scaling, values in columns], dim=1)


class CalibratedOutput(nn.Module):
    """Any model whose logits are calibrated; the rest of its output is as it was.

    Its ``state_dict`` has the model's keys behind ``model.`` and those of the calibration behind
    ``calibration.``; it loads into ``CalibratedOutput(model, AttachedScaling(method))``.

    Args:
        model: That returns logits.
        calibration: What calibrates logits ``(N, K, *)``.
        logits: As of :func:`mmcalib.calibrate`; the output is then the calibrated logits alone.
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
        try:
            signature = inspect.signature(self.model.forward)
        except (TypeError, ValueError):  # A compiled function may have none.
            return
        own = Parameter('self', Parameter.POSITIONAL_ONLY)
        forward = CalibratedOutput.forward
        signed = FunctionType(forward.__code__, forward.__globals__, forward.__name__)
        signed.__signature__ = signature.replace(parameters=[own, *signature.parameters.values()])
        self.forward = MethodType(signed, self)

    def __getstate__(self) -> dict:
        state = dict(vars(self))
        state.pop('forward', None)  # which is bound to this object
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
        scaled = self.calibration(logits_of(output, self.logits))
        if self.logits is not None:
            return scaled
        if torch.is_tensor(output):
            return scaled.reshape(output.shape)
        output, key = copy(output), key_of(output)
        if key:
            output[key] = scaled
        else:
            output.logits = scaled
        return output
