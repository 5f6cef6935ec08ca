"""Where a scaling goes: into the layer that predicts, or, where none can absorb it, beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

import torch
from mmengine.config import Config
from mmengine.model import revert_sync_batchnorm
from mmengine.registry import MODELS
from torch import nn

from mmcalib.checks import UserError
from mmcalib.models.predicting_head import has_several_labels, head_of
from mmcalib.posthoc import LogitScaler
from mmcalib.posthoc.attached import attached
from mmcalib.posthoc.draw import predictor
from mmcalib.posthoc.fold_into_layer import (
    TOLERANCE,
    NotFoldableError,
    find_predicting_layers,
    fold_layers,
    keys_in_checkpoint,
    largest_difference,
)
from mmcalib.posthoc.scaler import with_other_class
from mmcalib.runs.checkpoint import checkpoint_of, fill
from mmcalib.runs.model import model_of


def layers_for(model: nn.Module, scaler: LogitScaler, batch: Any) -> tuple[list[str], str | None]:
    """Return the layers that can absorb a scaling, or none and why, as found by running the model.

    Args:
        model: See :func:`~mmcalib.posthoc.draw.predictor`.
        scaler: The method, not fitted.
        batch: Images to run the model on.

    Raises:
        ValueError: If the method is not for such a head, or logits are NaN or infinite.
    """
    if has_several_labels(model):
        if 'sigmoid' not in scaler.heads:
            raise UserError(
                f'--method {scaler.method} is not for {type(head_of(model)).__name__}, whose '
                'classes have separate sigmoids: use temperature, platt or beta'
            )
        return [], 'each class has a separate sigmoid'
    if not scaler.affine:
        with predictor(model, of_samples=True) as predict:
            scaler.check_head(predict(batch)[0].logits[None])
        return [], f'{scaler.method} scaling is no affine map of logits'
    try:
        return find_predicting_layers(model, batch, per_class=scaler.per_class), None
    except NotFoldableError as error:
        return [], str(error)


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

    Raises:
        ValueError: If the checkpoint has other weights than the model.
    """
    state, cfg = dict(content['state_dict']), deepcopy(cfg)
    if layers:
        keys = keys_in_checkpoint(state, model, layers)
        for name, tensor in fold_layers(model, layers, scaler).items():
            # Half precision is too coarse for the proof, and becomes single.
            kind = torch.promote_types(state[keys[name]].dtype, torch.float32)
            state[keys[name]] = tensor.to(kind)
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

    Returns:
        The largest difference of a probability from that of the scaled logits.

    Raises:
        ValueError: If it is not small.
    """
    calibrated = MODELS.build(deepcopy(model_of(cfg)))  # which some models write into
    fill(calibrated, checkpoint_of(content, 'the calibrated model'))
    calibrated = revert_sync_batchnorm(calibrated).to(model.data_preprocessor.device)
    of_samples = hasattr(calibrated, 'calibration')
    with predictor(model, of_samples=of_samples) as predict:
        expected = [scaler.predict_proba(image.logits[None])[0] for image in predict(batch)]
    with predictor(calibrated, of_samples=of_samples) as predict:
        found = [with_other_class(image.logits[None]).softmax(1)[0] for image in predict(batch)]
    difference = largest_difference(expected, found)
    if not difference <= TOLERANCE:
        raise UserError(
            f'the predictions of the calibrated model differ from the scaled ones by '
            f'{difference:.1e}: the head changes them after its last layer, or they are too large '
            'for single precision. Nothing was written'
        )
    return difference
