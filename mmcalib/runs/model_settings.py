"""What of a config decides, beside the weights, what its model predicts of an image."""

from __future__ import annotations

from collections.abc import Mapping

from mmengine.config import Config, ConfigDict

from mmcalib.runs.loss_config import without_losses
from mmcalib.runs.training_fingerprint import comparable, digest

# Of a model: where its weights come from, and what only a training needs.
OF_TRAINING = ('auxiliary_head', 'batch_augments', 'init_cfg', 'pretrained', 'train_cfg')


def model_of(cfg: Config) -> ConfigDict:
    """Return the model's config, with what a Runner would take from beside it."""
    model = ConfigDict(cfg.model)
    if cfg.get('data_preprocessor') is not None:
        model.setdefault('data_preprocessor', cfg.data_preprocessor)
    return model


def model_settings(cfg: Config) -> dict:
    """Return what two configs of one checkpoint have in common if they predict the same.

    Returns:
        For JSON: ``data_preprocessor`` and ``test_cfg`` as the config has them; ``network``, a
        digest of the rest, such as a head's threshold and its dropout.
    """
    model = comparable(_predicting(without_losses(model_of(cfg))))
    shown = {key: model.pop(key, None) or {} for key in ('data_preprocessor', 'test_cfg')}
    return {**shown, 'network': digest(model)}


def difference_of_settings(there: Mapping | None, here: Mapping | None) -> str:
    """Return in what :func:`model_settings` differ; nothing if an older version wrote none."""
    return '; '.join(
        f'the {key} {there.get(key)} (here: {here[key]})'
        for key in (here if there and here else ())
        if there.get(key) != here[key]
    )


def _predicting(node: object) -> object:
    if isinstance(node, Mapping):
        return {key: _predicting(item) for key, item in node.items() if key not in OF_TRAINING}
    if isinstance(node, (list, tuple)):
        return [_predicting(item) for item in node]
    return node
