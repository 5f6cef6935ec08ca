"""Refuses a checkpoint that does not fill the model."""

from __future__ import annotations

from collections.abc import Mapping

from mmengine.hooks import Hook
from mmengine.model import BaseTTAModel, is_model_wrapper
from mmengine.runner import Runner
from torch import nn

from mmcalib.checks import UserError
from mmcalib.losses import CalibrationLoss


class CompleteWeights(Hook):
    """Refuses a checkpoint that would leave part of the model at its initial weights.

    mmengine warns in the middle of its log, and the numbers of random weights look like others.
    Parameters and buffers must be there, such as the statistics of batch normalisation; only its
    ``num_batches_tracked`` may lack, as in old checkpoints, where PyTorch starts to count anew.
    Auxiliary heads may lack theirs, since they predict nothing, and losses what they have learnt
    from validations; a training that is resumed needs both too.

    Raises:
        UserError: If something is missing, or has another shape.
    """

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        model = runner.model
        while is_model_wrapper(model) or isinstance(model, BaseTTAModel):
            model = model.module
        load_complete(model, checkpoint, resumed=runner._resume)


def load_complete(model: nn.Module, checkpoint: Mapping, *, resumed: bool = False) -> None:
    """Load a checkpoint into a model that it must fill, as :class:`CompleteWeights` says.

    Raises:
        UserError: If something is missing, or has another shape.
    """
    problem = _misfit(model, checkpoint.get('state_dict', checkpoint), resumed=resumed)
    if problem:
        other = ', or start anew from its weights by load_from' if resumed else ''
        raise UserError(
            f'the checkpoint does not fit the model of this config: {problem}. Use the config '
            f'that it was trained with{other}'
        )


def _misfit(model: nn.Module, state: Mapping, *, resumed: bool = False) -> str | None:
    """Load weights as mmengine will, and return their misfits."""
    state = {key.removeprefix('module.'): value for key, value in state.items()}
    try:
        missing, unexpected = model.load_state_dict(state, strict=False)
    except (RuntimeError, ValueError) as error:  # torch's own, and those of modules of ours
        sizes = [line.strip() for line in str(error).splitlines() if 'size mismatch' in line]
        return sizes[0].rstrip('.') if sizes else str(error)
    if any(key.startswith('calibration.') for key in unexpected):
        raise UserError(
            'the calibration of the checkpoint is attached, and the config has none: use the '
            'config that tools/calibrate.py wrote beside the checkpoint'
        )
    missing = set(missing)
    losses = [name for name, m in model.named_modules() if isinstance(m, CalibrationLoss)]
    optional = () if resumed else tuple(f'{name}.' for name in losses)
    for kind, named in (('parameters', model.named_parameters), ('buffers', model.named_buffers)):
        needed = [name for name, _ in named() if resumed or 'auxiliary' not in name]
        # Those of an attached calibration are there once they are loaded.
        needed += [name for name in missing if name.startswith('calibration.')]
        needed = [name for name in needed if not name.startswith(optional)]
        lacking = [name for name in needed if name in missing]
        if lacking:
            return f'it lacks {len(lacking)} of {len(needed)} {kind}, such as {lacking[0]}'
    return None
