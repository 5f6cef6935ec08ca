"""A fitted scaling as a module of a model, for what no layer can absorb."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from mmcalib.checks import UserError, at_least_single, check_choice
from mmcalib.posthoc.methods import SCALERS


class AttachedScaling(nn.Module):
    """Maps logits ``(N, K, …)`` to calibrated ones, with what was learned as buffers.

    It computes in double precision, so that steps of a curve are where the fit has put them. The
    buffers are empty until a checkpoint or :meth:`take` fills them; their shapes depend on what was
    learned.

    Args:
        method: A key of :data:`mmcalib.posthoc.methods.SCALERS`.
        options: Those of the scaler.

    Raises:
        ValueError: If the method is unknown, or while calibrating: if no checkpoint has filled it.
    """

    def __init__(self, method: str, **options: Any) -> None:
        super().__init__()
        self.scaler = SCALERS[check_choice('method', method, tuple(SCALERS))](**options)
        for name in self.scaler.learned:
            self.register_buffer(name, None)

    def take(self, learned: Mapping[str, Tensor]) -> AttachedScaling:
        """Fill the buffers with a fitted scaler's :attr:`tensors`, and return self."""
        for name in self.scaler.learned:
            setattr(self, name, learned[name].detach().double())
        return self

    def forward(self, logits: Tensor) -> Tensor:
        learned = {name: getattr(self, name) for name in self.scaler.learned}
        if any(value is None for value in learned.values()):
            raise UserError(
                'the model has a calibration, but its checkpoint holds none: load the checkpoint '
                'that tools/calibrate.py wrote beside the config'
            )
        learned = {name: value.to(logits.device) for name, value in learned.items()}
        scaled = self.scaler._apply(logits.double(), learned)
        return scaled.to(at_least_single(logits).dtype)

    def _load_from_state_dict(
        self, state_dict: Mapping, prefix: str, _: Any, strict: bool, missing: list, *others: Any
    ) -> None:
        found = {name: state_dict.get(prefix + name) for name in self.scaler.learned}
        missing += [prefix + name for name, value in found.items() if value is None]
        if not missing:
            device = next((b.device for b in self.buffers()), None)
            self.take({name: value.to(device) for name, value in found.items()})
