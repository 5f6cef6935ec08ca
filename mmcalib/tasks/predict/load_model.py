"""From a config and checkpoints to a model that predicts, without a Runner."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mmengine.config import Config
from mmengine.model import revert_sync_batchnorm
from mmengine.registry import MODELS
from torch import nn

from mmcalib.checks import UserError
from mmcalib.ensembles import MeanProbabilityModel
from mmcalib.hooks.require_complete_weights_hook import load_complete
from mmcalib.hooks.require_same_classes_hook import classes_of, difference
from mmcalib.runs.checkpoint_io import load_checkpoint
from mmcalib.runs.ensemble_config import load_members


def load_predicting_model(cfg: Config, checkpoints: Sequence[str]) -> tuple[nn.Module, list[dict]]:
    """Return a config's model with its weights, in evaluation, and the metas of its checkpoints.

    Args:
        cfg: Of either toolbox, or as
            :func:`~mmcalib.runs.ensemble_config.average_predictions` made it.
        checkpoints: One, or one for each member of a mean.

    Raises:
        UserError: If one does not fill its model, or was trained on other classes than the
            first.
    """
    config = dict(cfg.model)
    if cfg.get('data_preprocessor') is not None:
        config.setdefault('data_preprocessor', cfg.data_preprocessor)
    model = MODELS.build(config)
    metas: list[dict] = []

    def load(member: nn.Module, path: str) -> None:
        content = load_checkpoint(path)
        try:
            load_complete(member, content)
        except UserError as error:
            raise UserError(f'{path}: {error}') from error
        revert_sync_batchnorm(member)
        metas.append(content.get('meta') or {})

    if isinstance(model, MeanProbabilityModel):
        load_members(model, checkpoints, load)
    else:
        load(model, checkpoints[0])
    _check_classes(checkpoints, metas)
    return model.eval(), metas


def _check_classes(checkpoints: Sequence[str], metas: Sequence[Mapping]) -> None:
    trained = [classes_of(meta.get('dataset_meta')) for meta in metas]
    for path, classes in zip(checkpoints, trained, strict=True):
        if trained[0] and classes and classes != trained[0]:
            raise UserError(
                f'{path} was trained on other classes than {checkpoints[0]}: '
                f'{difference(trained[0], classes)}'
            )
