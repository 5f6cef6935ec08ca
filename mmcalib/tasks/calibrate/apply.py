"""The checkpoint and the config of a calibrated model, and the proof that they predict so."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from mmengine.config import Config
from mmengine.dist import all_gather_object
from mmengine.model import revert_sync_batchnorm
from mmengine.registry import MODELS
from torch import nn

from mmcalib.calibration import place as fold_into_layer
from mmcalib.calibration.place import OriginalLogits, Placement, fold_layers
from mmcalib.errors import UserError
from mmcalib.openmmlab.heads import has_several_labels
from mmcalib.openmmlab.runner_source import image_logits
from mmcalib.posthoc import LogitScaler
from mmcalib.posthoc.attached import scaling_module
from mmcalib.predictions.kept_batches import KeptBatch
from mmcalib.runs.checkpoint import checkpoint_from_content, fill
from mmcalib.runs.model import model_config

SIGMOIDS = 'each class has a separate sigmoid'


def layers_for(model: nn.Module, scaler: LogitScaler, batch: Any) -> tuple[list[str], str | None]:
    """Return the layers that can absorb a scaling, or none and why, as found by running the model.

    Args:
        model: See :func:`~mmcalib.openmmlab.runner_source.predictor`.
        scaler: The method, not fitted.
        batch: Images to run the model on.

    Raises:
        ValueError: If the method is not for such a head, or logits are NaN or infinite.
    """
    if has_several_labels(model):
        return [], SIGMOIDS
    run = partial(image_logits, of_samples=not scaler.affine)
    return fold_into_layer.layers_for(OriginalLogits(model, [KeptBatch(batch)], run), scaler)


def placement_of(
    model: nn.Module, scaler: LogitScaler, batches: Iterable[KeptBatch], *, of_samples: bool
) -> Placement:
    """Return where a fitted scaling goes, on which all processes agree.

    Args:
        model: See :func:`~mmcalib.openmmlab.runner_source.predictor`.
        scaler: A fitted scaler.
        batches: Batches that this process has read.
        of_samples: How it has read them.

    Raises:
        ValueError: See :func:`~mmcalib.calibration.place.place`.
    """
    if has_several_labels(model):
        return Placement(reason=SIGMOIDS)
    run = partial(image_logits, of_samples=of_samples)
    placements = by_process(lambda: fold_into_layer.place(model, scaler, batches, run))
    for placement in placements:
        if placement.reason is not None:
            return placement
    layers = sorted({name for placement in placements for name in placement.layers})
    if len(layers) > len(placements[0].layers):
        return Placement(reason=f'{" and ".join(layers)} each predict some of the images')
    return placements[0]


def by_process(compute: Callable[[], Any]) -> list:
    """Return what each process computes.

    An error of one is raised by all: hours are lost where the others wait for it.
    """
    result = problem = None
    try:
        result = compute()
    except UserError as error:
        problem = str(error)
    results, problems = zip(*all_gather_object((result, problem)), strict=True)
    for problem in problems:
        if problem is not None:
            raise UserError(problem)
    return list(results)


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
    learned = scaling_module(scaler).state_dict(prefix='calibration.')
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
    content: Mapping,
    cfg: Config,
    model: nn.Module,
    scaler: LogitScaler,
    batches: Iterable[KeptBatch],
) -> float:
    """Build the calibrated model as a user will, and return how far its predictions are off.

    Args:
        content: Of its checkpoint.
        cfg: Its config.
        model: The original.
        scaler: Fitted.
        batches: Batches to predict.

    Raises:
        ValueError: See :func:`~mmcalib.calibration.place.prove`.
    """
    calibrated = MODELS.build(deepcopy(model_config(cfg)))  # which some models write into
    fill(calibrated, checkpoint_from_content(content, 'the calibrated model'))
    calibrated = revert_sync_batchnorm(calibrated).to(model.data_preprocessor.device)
    run = partial(image_logits, of_samples=hasattr(calibrated, 'calibration'))
    # A binary head's logits, read from its samples now, may differ from those of the pass.
    original = OriginalLogits(model, [replace(kept, values=None) for kept in batches], run)
    run_calibrated, then = partial(run, calibrated), '. Nothing was written'
    prove = partial(fold_into_layer.prove, original, run_calibrated, scaler, then)
    return max(by_process(prove))
