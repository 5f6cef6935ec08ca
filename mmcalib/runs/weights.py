"""Weights of checkpoints in the models that configs build."""

from __future__ import annotations

from collections.abc import Sequence

from mmengine.config import Config
from mmengine.model import is_model_wrapper, revert_sync_batchnorm
from mmengine.registry import MODELS
from mmengine.runner import Runner
from torch import nn

from mmcalib.openmmlab.ensembles import MeanProbabilityModel
from mmcalib.runs.checkpoint import Checkpoint, check_classes, fill
from mmcalib.runs.checks import building
from mmcalib.runs.model import model_config


def load_weights(
    model: nn.Module, checkpoints: Sequence[Checkpoint], classes: Sequence[str] = ()
) -> None:
    """Fill a model, or each member of a mean, with weights of the same classes as the data.

    Args:
        model: Model as the config of :func:`~mmcalib.runs.model.prepare_model` builds it.
        checkpoints: Checkpoint of each member.
        classes: Classes of the data; without any, those that the first checkpoint was trained on.

    Raises:
        UserError: If a checkpoint does not fill its model, or is of other classes.
    """
    model = model.module if is_model_wrapper(model) else model
    networks = [model]
    if isinstance(model, MeanProbabilityModel):
        networks = model.members
        model.names = [checkpoint.path for checkpoint in checkpoints]
    classes = classes or checkpoints[0].classes
    for network, checkpoint in zip(networks, checkpoints, strict=True):
        fill(network, checkpoint)
        check_classes(checkpoint.classes, classes, f'{checkpoint.path} and these data')


def tell_hooks(runner: Runner, checkpoints: Sequence[Checkpoint]) -> None:
    """Call the hooks that look at loaded checkpoints, as a Runner does that loads one itself."""
    for checkpoint in checkpoints:
        content = {'state_dict': checkpoint.weights, 'meta': dict(checkpoint.meta)}
        runner.call_hook('after_load_checkpoint', checkpoint=content)


def build_model(cfg: Config, checkpoints: Sequence[Checkpoint]) -> nn.Module:
    """Return a config's model with its weights, in evaluation mode, without a Runner.

    Raises:
        UserError: If it cannot be built, or the checkpoints do not fill it.
    """
    with building('the model cannot be built: '):
        model = MODELS.build(model_config(cfg))
    load_weights(model, checkpoints)
    return revert_sync_batchnorm(model).eval()
