"""Refuses a checkpoint that does not fill the model."""

from __future__ import annotations

from collections.abc import Mapping

from mmengine.hooks import Hook
from mmengine.model import BaseTTAModel, is_model_wrapper
from mmengine.runner import Runner
from torch import nn


class CheckpointError(ValueError):
    """A checkpoint is not one of the model that is to be tested."""


class CompleteWeights(Hook):
    """Refuses to load a checkpoint that leaves a part of the model as it was initialised.

    mmengine warns in the middle of its log, and the numbers of random weights look like others.
    Auxiliary heads may lack weights, since they predict nothing.

    Raises:
        CheckpointError: If parameters are missing, or have another shape.
    """

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        model = runner.model
        while is_model_wrapper(model) or isinstance(model, BaseTTAModel):
            model = model.module
        problem = _misfit(model, checkpoint.get('state_dict', checkpoint))
        if problem:
            raise CheckpointError(
                f'the checkpoint is not of the model of this config: {problem}. Take the config '
                'that it was trained with'
            )


def _misfit(model: nn.Module, state: Mapping) -> str | None:
    """Load weights as mmengine will, and return how they do not fit."""
    state = {key.removeprefix('module.'): value for key, value in state.items()}
    try:
        missing = set(model.load_state_dict(state, strict=False).missing_keys)
    except RuntimeError as error:
        sizes = [line.strip() for line in str(error).splitlines() if 'size mismatch' in line]
        return sizes[0] if sizes else str(error)
    parameters = [name for name, _ in model.named_parameters() if 'auxiliary' not in name]
    lacking = [name for name in parameters if name in missing]
    if not lacking:
        return None
    return f'it lacks {len(lacking)} of {len(parameters)} parameters, such as {lacking[0]}'
