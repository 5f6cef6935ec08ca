"""Loads the checkpoints of a mean of several models."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import torch
from mmengine.hooks import Hook
from mmengine.model import is_model_wrapper
from mmengine.registry import HOOKS
from mmengine.runner import Runner

from mmcalib.checks import UserError
from mmcalib.ensembles import MeanProbabilityModel


@HOOKS.register_module()
class LoadMembersHook(Hook):
    """Loads a checkpoint into each member of a ``MeanProbabilityModel`` before a run.

    Each is loaded as a Runner loads one, so the hooks that look at what was loaded see all of them.

    Args:
        checkpoints: One checkpoint for each member, in order.

    Raises:
        UserError: If one is not of its member's model, of other classes than the data, or has
            the weights of another.
        ValueError: If there are more or fewer than members, or the model has none.
    """

    # After the hooks that prepare a run, as a Runner does.
    priority = 'VERY_LOW'

    def __init__(self, checkpoints: Sequence[str]) -> None:
        self.checkpoints = list(checkpoints)
        self.metas: list[dict] = []

    def before_run(self, runner: Runner) -> None:
        model = runner.model.module if is_model_wrapper(runner.model) else runner.model
        if not isinstance(model, MeanProbabilityModel):
            raise ValueError(
                f'LoadMembersHook is for a MeanProbabilityModel, and the model is a '
                f'{type(model).__name__}'
            )
        if len(model.members) != len(self.checkpoints):
            raise ValueError(
                f'{len(self.checkpoints)} checkpoints for {len(model.members)} members: '
                'name one for each'
            )
        model.names = [str(path) for path in self.checkpoints]
        self.metas = []
        for number, path in enumerate(self.checkpoints):
            with model.holding(number):
                try:
                    content = runner.load_checkpoint(path)
                except UserError as error:
                    raise UserError(f'{path}: {error}') from error
            self.metas.append(content.get('meta') or {})
        check_members_differ(model)


def check_members_differ(model: MeanProbabilityModel) -> None:
    """Raise a UserError if two members have the same weights, whatever their files say."""
    for one, other in combinations(range(len(model.members)), 2):
        states = [model.members[number].state_dict() for number in (one, other)]
        # Of those that take turns on a GPU, all but one are on the CPU.
        if states[0].keys() == states[1].keys() and all(
            torch.equal(tensor.cpu(), states[1][name].cpu()) for name, tensor in states[0].items()
        ):
            raise UserError(
                f'{model.names[one]} and {model.names[other]} have the same weights: the mean '
                'would count them double. Name one of them'
            )
