"""The checkpoint and the config of a calibrated model, and the proof that they predict so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

import torch
from mmengine.config import Config
from mmengine.model import revert_sync_batchnorm
from mmengine.registry import MODELS
from torch import nn

from mmcalib.models.predicting_head import has_several_labels
from mmcalib.posthoc import LogitScaler, fold_into_layer
from mmcalib.posthoc.attached import attached
from mmcalib.posthoc.fold_into_layer import fold_layers
from mmcalib.posthoc.model_logits import reading
from mmcalib.runs.checkpoint import checkpoint_of, fill
from mmcalib.runs.model import model_of


def layers_for(model: nn.Module, scaler: LogitScaler, batch: Any) -> tuple[list[str], str | None]:
    """Return the layers that can absorb a scaling, or none and why, as found by running the model.

    Args:
        model: See :func:`~mmcalib.posthoc.model_logits.predictor`.
        scaler: The method, not fitted.
        batch: Images to run the model on.

    Raises:
        ValueError: If the method is not for such a head, or logits are NaN or infinite.
    """
    if has_several_labels(model):
        return [], 'each class has a separate sigmoid'
    read = reading(batch, of_samples=not scaler.affine)
    return fold_into_layer.layers_for(model, scaler, read)


def applied(
    content: Mapping, cfg: Config, model: nn.Module, scaler: LogitScaler, layers: Sequence[str]
) -> tuple[dict, Config]:
    """Return the checkpoint and the config of the calibrated model.

    Args:
        content: Of the checkpoint.
        cfg: Of the model.
        model: With its weights.
        scaler: Fitted.
        layers: Of :func:`layers_for`.
    """
    state, cfg = dict(content['state_dict']), deepcopy(cfg)
    if layers:
        for name, tensor in fold_layers(model, layers, scaler).items():
            key = name if name in state else f'module.{name}'
            # Half precision is too coarse for the proof, and becomes single.
            state[key] = tensor.to(torch.promote_types(state[key].dtype, torch.float32))
        return {**content, 'state_dict': state}, cfg
    learned = attached(scaler).state_dict(prefix='calibration.')
    state |= {key: tensor.cpu() for key, tensor in learned.items()}
    kind = cfg.model.type
    name = kind if isinstance(kind, str) else f'{kind.__module__}.{kind.__name__}'
    calibration = dict(method=scaler.method, **scaler.get_params())
    cfg.model.update(type='CalibratedModel', calibrates=name, calibration=calibration)
    imports = cfg.get('custom_imports') or {}
    names = imports.get('imports') or []
    names = [names] if isinstance(names, str) else names
    cfg.custom_imports = {**imports, 'imports': [*names, *({'mmcalib'} - set(names))]}
    return {**content, 'state_dict': state}, cfg


def prove(
    content: Mapping, cfg: Config, model: nn.Module, scaler: LogitScaler, batch: Any
) -> float:
    """Build the calibrated model as a user will, and return how far its predictions are off.

    Args:
        content: Of its checkpoint.
        cfg: Its config.
        model: The original.
        scaler: Fitted.
        batch: Images to predict.

    Raises:
        ValueError: See :func:`~mmcalib.posthoc.fold_into_layer.prove`.
    """
    calibrated = MODELS.build(deepcopy(model_of(cfg)))  # which some models write into
    fill(calibrated, checkpoint_of(content, 'the calibrated model'))
    calibrated = revert_sync_batchnorm(calibrated).to(model.data_preprocessor.device)
    read = reading(batch, of_samples=hasattr(calibrated, 'calibration'))
    return fold_into_layer.prove(read(model), read(calibrated), scaler, '. Nothing was written')
