"""The files of a calibration: a checkpoint, with a config if it needs one, or a temperature."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from mmengine.config import Config
from mmengine.model import revert_sync_batchnorm
from mmengine.registry import MODELS
from torch import nn

from mmcalib.calibration.calibrated import Calibrated
from mmcalib.calibration.prove import (
    OriginalLogits,
    Placement,
    compute_on_all_processes,
    prove,
)
from mmcalib.errors import UserError
from mmcalib.files import whole_file, write_json
from mmcalib.openmmlab.calibrated_model import is_calibrated
from mmcalib.openmmlab.runner_source import RunnerSource, read_logits
from mmcalib.posthoc.attached import scaling_module
from mmcalib.posthoc.per_label import Scaler, ScalerPerLabel
from mmcalib.runs.checkpoint import CALIBRATION, Checkpoint, checkpoint_from_content, fill
from mmcalib.runs.model import model_config


class CheckpointSink:
    """A calibrated checkpoint: with scaled weights, or with a scaling and a config that reads it.

    Args:
        checkpoint: The checkpoint that is calibrated.
        config: The config of its model, as the user named it.
    """

    has_model = True

    def __init__(self, checkpoint: Checkpoint, config: Config) -> None:
        self.checkpoint = checkpoint
        self.config = config
        self.state = dict(checkpoint.content['state_dict'])

    def prove(
        self, model: nn.Module, source: RunnerSource, scaler: Scaler, placement: Placement
    ) -> float:
        """Build the calibrated model as a user will, and return how far its predictions are off.

        Args:
            model: The original model.
            source: The source of the fit, with the batches to prove it on.
            scaler: The fitted scaler.
            placement: The place where it goes.

        Raises:
            UserError: If it predicts otherwise than the scaling; then nothing is written.
        """
        if placement.reason is None:
            # Some models, as those of timm, rename their parameters in the state dict.
            state = model.state_dict(keep_vars=True)
            for name, tensor in placement.tensors.items():
                parameter = model.get_parameter(name)
                for key in [key for key, value in state.items() if value is parameter]:
                    saved_key = key if key in self.state else f'module.{key}'
                    # Half precision is too coarse for the proof, and becomes single.
                    dtype = torch.promote_types(self.state[saved_key].dtype, torch.float32)
                    self.state[saved_key] = tensor.to(dtype)
        else:
            scaling = scaling_module(scaler)
            for key, tensor in scaling.state_dict(prefix='calibration.').items():
                self.state[key] = tensor.cpu()
            self.config = attached_config(self.config, scaler)
        # Some models write into their config.
        rebuilt = MODELS.build(deepcopy(model_config(self.config)))
        fill(rebuilt, checkpoint_from_content(self._content(), 'the calibrated model'))
        rebuilt = revert_sync_batchnorm(rebuilt).to(model.data_preprocessor.device)
        run = partial(read_logits, from_scores=is_calibrated(rebuilt))
        # The logits of a binary head may differ from those of the pass, if they are from scores.
        batches = [replace(kept, values=None) for kept in source.kept]
        original = OriginalLogits(model, batches, run)
        differences = compute_on_all_processes(
            partial(
                prove,
                original,
                partial(run, rebuilt),
                scaler,
                ending='. Nothing was written',
            ),
            source.gather,
        )
        return max(differences)

    def write(
        self, out: str, calibrated: Calibrated, record: Mapping, description: Mapping
    ) -> None:
        """Write the checkpoint and, for an attached scaling, its config: both or none.

        Args:
            out: The file of the checkpoint.
            calibrated: The calibration.
            record: Its record.
            description: The description of the original model.

        Raises:
            UserError: If a file cannot be written, because the disk is full for instance.
        """
        (member,) = description['members']
        meta = dict(self.checkpoint.meta)
        earlier = meta.get(CALIBRATION)
        earlier_methods = []
        if member['calibration'] is not None:
            earlier_methods = member['calibration']['methods']
        meta[CALIBRATION] = {
            **record,
            'checkpoint': member['file'],
            'finished': member['finished'],
            'stopped_at': member['stopped_at'],
            'methods': [*earlier_methods, calibrated.method],
        }
        if earlier is not None:
            meta[CALIBRATION]['earlier'] = earlier
        with writing(out), ExitStack() as files:
            if calibrated.attached:  # It takes its place after the checkpoint.
                config_file = files.enter_context(whole_file(Path(out).with_suffix('.py')))
                self.config.dump(config_file)
            checkpoint_file = files.enter_context(whole_file(out))
            torch.save({**self._content(), 'meta': meta}, checkpoint_file)

    def _content(self) -> dict[str, Any]:
        """Return the content of the checkpoint with the calibrated weights."""
        return {**self.checkpoint.content, 'state_dict': self.state}


class MeanSink:
    """A JSON file with the temperature of a mean of several predictions, which is in no layer."""

    has_model = False
    checkpoint = None

    def write(
        self, out: str, calibrated: Calibrated, record: Mapping, description: Mapping
    ) -> None:
        """Write the temperature, the record of the calibration, and the model that it is of.

        Raises:
            UserError: If the file cannot be written, because the disk is full for instance.
        """
        content = {
            **record,
            'temperature': calibrated.scaler.temperature_,
            'model': description,
        }
        with writing(out):
            write_json(out, content)


def attached_config(cfg: Config, scaler: Scaler) -> Config:
    """Return the config of a model with an attached scaling, from that of the model without."""
    cfg = deepcopy(cfg)
    model_type = cfg.model.type
    if not isinstance(model_type, str):
        model_type = f'{model_type.__module__}.{model_type.__name__}'
    calibration = dict(method=scaler.method, **scaler.get_params())
    if isinstance(scaler, ScalerPerLabel):
        calibration['labels'] = len(scaler.scalers)
    cfg.model.update(type='CalibratedModel', calibrates=model_type, calibration=calibration)
    custom_imports = cfg.get('custom_imports') or {}
    modules = custom_imports.get('imports') or []
    modules = [modules] if isinstance(modules, str) else list(modules)
    if 'mmcalib' not in modules:
        modules.append('mmcalib')
    cfg.custom_imports = {**custom_imports, 'imports': modules}
    return cfg


@contextmanager
def writing(out: str) -> Iterator[None]:
    """Say in one line that a file could not be written.

    PyTorch has a RuntimeError for a full disk.
    """
    try:
        yield
    except (OSError, RuntimeError) as error:
        raise UserError(
            f'--out {out} cannot be written; is the disk full? The files that were there are '
            f'unchanged: make room, or name a file on another disk ({error})'
        ) from error
