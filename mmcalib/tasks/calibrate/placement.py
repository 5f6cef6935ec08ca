"""Where a scaling goes: into the layer that predicts, or, where none can absorb it, beside it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from typing import Any

import torch
from mmengine.config import Config
from mmengine.model import revert_sync_batchnorm
from mmengine.registry import MODELS
from mmengine.structures import BaseDataElement
from torch import Tensor, nn

from mmcalib.hooks.require_complete_weights_hook import load_complete
from mmcalib.models.predicting_head import has_several_labels, head_of
from mmcalib.posthoc import LogitScaler
from mmcalib.posthoc.attached import attached, calibrate_sample, logits_behind
from mmcalib.posthoc.draw import predictor
from mmcalib.posthoc.fold_into_layer import (
    NotFoldableError,
    find_predicting_layers,
    fold_layers,
    keys_in_checkpoint,
    largest_difference,
)
from mmcalib.posthoc.scaler import with_other_class
from mmcalib.runs.tested_model import model_of
from mmcalib.tasks.calibrate.before_and_after import (
    BeforeAndAfter,
    measure_before_and_after,
    measure_changed_samples,
)

Folds = Sequence[LogitScaler]


def place_scaling(
    model: nn.Module, scaler: LogitScaler, state: Mapping[str, Tensor], batch: Any
) -> FoldedPlacement | AttachedPlacement:
    """Return where a method's scaling can go, as found by running the model.

    Args:
        model: See :func:`~mmcalib.posthoc.draw.predictor`.
        scaler: The method, not fitted.
        state: Weights in the checkpoint.
        batch: Images to run the model on.

    Raises:
        ValueError: If logits are NaN or infinite, if the checkpoint has other weights than the
            model, or if the method is not for a head with a sigmoid for each class.
    """
    if has_several_labels(model):
        if 'sigmoid' not in scaler.heads:
            raise ValueError(
                f'--method {scaler.method} is not for {type(head_of(model)).__name__}, whose '
                'classes have separate sigmoids: use temperature, platt or beta'
            )
        return AttachedPlacement(model, 'each class has a separate sigmoid')
    if not scaler.affine:
        with predictor(model, of_samples=True) as predict:
            scaler.check_head(predict(batch)[0].logits[None])
        return AttachedPlacement(model, f'{scaler.method} scaling is no affine map of logits')
    try:
        names = find_predicting_layers(model, batch, per_class=scaler.per_class)
    except NotFoldableError as error:
        return AttachedPlacement(model, str(error))
    return FoldedPlacement(model, names, keys_in_checkpoint(state, model, names), state)


class FoldedPlacement:
    """A scaling in the layers that predict, at no cost for the model.

    Args:
        model: The model.
        names: The layers.
        keys: The checkpoint's key of each of their parameters.
        state: Weights in the checkpoint.
    """

    of_samples = False
    config = None

    def __init__(
        self,
        model: nn.Module,
        names: Sequence[str],
        keys: Mapping[str, str],
        state: Mapping[str, Tensor],
    ) -> None:
        self.model, self.names, self.keys, self.state = model, list(names), keys, state

    @property
    def facts(self) -> dict:
        """Where the scaling went, for the checkpoint's ``meta``."""
        return {'layers': self.names, 'attached': None}

    def measure(
        self,
        loader: Iterable,
        scaler: LogitScaler,
        folds: Folds,
        fold_of: Tensor | None,
        **options: Any,
    ) -> BeforeAndAfter:
        """Return figures before and after, and the proof that folded logits are the scaled ones."""
        return measure_before_and_after(
            self.model,
            loader,
            scaler,
            self._folded(scaler),
            folds=[(own, self._folded(own)) for own in folds],
            fold_of=fold_of,
            **options,
        )

    def write(self, content: dict, scaler: LogitScaler) -> None:
        """Put the scaling into the content of a checkpoint."""
        folded = self._folded(scaler)
        content['state_dict'].update({self.keys[name]: t for name, t in folded.items()})

    def _folded(self, scaler: LogitScaler) -> dict[str, Tensor]:
        # In the file's precision, so that what is proven is what is written; but half precision is
        # too coarse for the proof, and becomes single.
        return {
            name: tensor.to(torch.promote_types(self.state[self.keys[name]].dtype, torch.float32))
            for name, tensor in fold_layers(self.model, self.names, scaler).items()
        }


class AttachedPlacement:
    """A scaling beside a model, which a ``CalibratedModel`` applies to what it predicts.

    Args:
        model: The model.
        reason: Why it is not folded.
    """

    of_samples = True

    def __init__(self, model: nn.Module, reason: str) -> None:
        self.model, self.reason = model, reason

    @property
    def facts(self) -> dict:
        """Where the scaling went, for the checkpoint's ``meta``."""
        return {'layers': [], 'attached': self.reason}

    def measure(
        self,
        loader: Iterable,
        scaler: LogitScaler,
        folds: Folds,
        fold_of: Tensor | None,
        **options: Any,
    ) -> BeforeAndAfter:
        """Return figures before and after, with the module that is written."""
        fitted = [*folds, scaler]
        modules = [attached(own) for own in fitted]

        def change(image: int, sample: BaseDataElement) -> float:
            logits = logits_behind(self.model, sample)
            number = len(folds) if fold_of is None else int(fold_of[image])
            difference = 0.0
            for own in {number, len(folds)}:
                expected = fitted[own].transform(logits[None])[0]
                found = modules[own].to(logits.device)(logits[None])[0]
                difference = max(difference, largest_difference([expected], [found]))
            calibrate_sample(self.model, sample, modules[number])
            return difference

        return measure_changed_samples(self.model, loader, change, **options)

    def write(self, content: dict, scaler: LogitScaler) -> None:
        """Put the scaling into the content of a checkpoint."""
        state = attached(scaler).state_dict(prefix='calibration.')
        content['state_dict'].update({key: tensor.cpu() for key, tensor in state.items()})

    def config(self, cfg: Config, scaler: LogitScaler) -> Config:
        """Return the config of the calibrated model."""
        cfg = deepcopy(cfg)
        kind = cfg.model.type
        name = kind if isinstance(kind, str) else f'{kind.__module__}.{kind.__name__}'
        calibration = dict(method=scaler.method, **scaler.get_params())
        cfg.model.update(type='CalibratedModel', calibrates=name, calibration=calibration)
        imports = cfg.get('custom_imports') or {}
        names = imports.get('imports') or []
        names = [names] if isinstance(names, str) else names
        cfg.custom_imports = {**imports, 'imports': [*names, *({'mmcalib'} - set(names))]}
        return cfg

    def prove(self, cfg: Config, content: Mapping, scaler: LogitScaler, batch: Any) -> float:
        """Build the calibrated model of a config, and return how far its predictions are off.

        Args:
            cfg: Of :meth:`config`.
            content: Of the checkpoint.
            scaler: Fitted.
            batch: Images to predict.

        Returns:
            The largest difference of a probability.
        """
        model = MODELS.build(deepcopy(model_of(cfg)))  # which some models write into
        load_complete(model, content)
        model = revert_sync_batchnorm(model).to(self.model.data_preprocessor.device)
        with predictor(self.model, of_samples=True) as predict:
            expected = [scaler.predict_proba(image.logits[None])[0] for image in predict(batch)]
        with predictor(model, of_samples=True) as predict:
            found = [with_other_class(image.logits[None]).softmax(1)[0] for image in predict(batch)]
        return largest_difference(expected, found)
