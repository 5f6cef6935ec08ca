"""The model that predicts, as its record has it: members, views, dropouts and a temperature.

A single network is an ensemble of one.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from mmengine.config import Config, ConfigDict

from mmcalib.ensembles.ensemble_model import read_temperature
from mmcalib.record import difference, digest, is_ensemble, paths_of
from mmcalib.runs.checkpoint_io import file_digest, is_file, read_meta
from mmcalib.runs.loss_config import without_losses
from mmcalib.runs.training_fingerprint import comparable
from mmcalib.runs.training_record import describe_calibration, training_digest
from mmcalib.runs.unlabelled_pipeline import without_labels

# In a config: the ensemble that a run tests, and the pipeline of an image without its views.
ENSEMBLE = 'ensemble'
# Of a model's config: where its weights come from, and what only a training needs.
OF_TRAINING = ('auxiliary_head', 'batch_augments', 'init_cfg', 'pretrained', 'train_cfg')
# Two files of one content are one checkpoint; the others say in what two files differ.
OF_WEIGHTS = {
    'seed': 'the seed',
    'epoch': 'the epoch',
    'training': 'the training',
    'calibration': 'the calibration',
    'digest': 'the content',
}
OF_SETTINGS = {
    'data_preprocessor': 'the data_preprocessor',
    'test_cfg': 'the test_cfg',
    'network': 'the network',
}
OF_IMAGES = {
    'pipeline': 'the test pipeline',
    'views': 'the views',
    'mc_dropout': 'passes with dropout:',
}


def describe_model(
    configs: Sequence[Config],
    checkpoints: Sequence[str],
    *,
    pipelines: Sequence[list],
    metas: Sequence[Mapping] | None = None,
    views: Sequence[list] = (),
    mc_dropout: int = 0,
    dropout_seed: int | None = None,
) -> dict:
    """Return all that a model's predictions depend on, for JSON.

    Args:
        configs: The config of each member.
        checkpoints: The path of each.
        pipelines: Those of the images, without views.
        metas: What the checkpoints say of themselves; None to read it.
        views: The alternatives of each step in which views differ.
        mc_dropout: The number of passes with random dropout.
        dropout_seed: The seed of these.

    Returns:
        ``members``, each with its ``checkpoint``, the ``digest`` of the file (None of weights in no
        file), the ``seed``, ``epoch``, ``training`` and ``calibration`` that it tells, None where
        it does not, and the ``settings`` of its config; the ``pipeline`` without labels, ``views``,
        ``mc_dropout``, ``dropout_seed``; ``calibration`` and ``temperature`` of an ensemble's mean.
    """
    metas = list(map(read_meta, checkpoints)) if metas is None else metas
    members = [
        {
            'checkpoint': str(path),
            'digest': file_digest(path) if is_file(path) else None,
            'seed': meta.get('seed'),
            'epoch': meta.get('epoch'),
            'training': training_digest(meta),
            'calibration': describe_calibration(meta),
            'settings': model_settings(cfg),
        }
        for cfg, path, meta in zip(configs, checkpoints, metas, strict=True)
    ]
    return {
        'members': members,
        'pipeline': comparable(without_labels(pipelines[0])) if pipelines else [],
        'views': list(views),
        'mc_dropout': mc_dropout,
        'dropout_seed': dropout_seed if mc_dropout else None,
        'calibration': None,
        'temperature': None,
    }


def model_of(cfg: Config) -> ConfigDict:
    """Return the model's config with the data_preprocessor that may stand beside it."""
    model = ConfigDict(cfg.model)
    if cfg.get('data_preprocessor') is not None:
        model.setdefault('data_preprocessor', cfg.data_preprocessor)
    return model


def model_settings(cfg: Config) -> dict:
    """Return the settings on which the predictions of a checkpoint depend.

    Returns:
        For JSON: ``data_preprocessor`` and ``test_cfg`` as the config has them; ``network``, a
        digest of the rest, such as a head's threshold and its dropout.
    """
    model = comparable(_predicting(without_losses(model_of(cfg))))
    shown = {key: model.pop(key, None) or {} for key in ('data_preprocessor', 'test_cfg')}
    return {**shown, 'network': digest(model)}


def _predicting(node: object) -> object:
    if isinstance(node, Mapping):
        return {key: _predicting(item) for key, item in node.items() if key not in OF_TRAINING}
    if isinstance(node, (list, tuple)):
        return [_predicting(item) for item in node]
    return node


def difference_of_models(there: Mapping, here: Mapping) -> str:
    """Return the differences between two models in words, none if they predict the same."""
    ours = sorted(here['members'], key=_by_content)
    theirs = sorted(there['members'], key=_by_content)
    weights = [_difference_of_weights(*pair) for pair in zip(theirs, ours, strict=False)]
    found = []
    if len(theirs) != len(ours) or (len(ours) > 1 and any(weights)):
        found.append(_difference_of_checkpoints(there, here))
    else:
        for one, other, wrong in zip(theirs, ours, weights, strict=True):
            wrong = wrong or difference(one['settings'], other['settings'], OF_SETTINGS)
            if wrong:
                found.append(f'{os.path.basename(other["checkpoint"])} with {"; ".join(wrong)}')
    found += difference(there, here, OF_IMAGES)
    return '; '.join(found + difference(there, here, {'temperature': 'the temperature'}))


def _difference_of_checkpoints(there: Mapping, here: Mapping) -> str:
    """Return the checkpoints of two ensembles, with their folders where their names are equal."""
    for shown in (os.path.basename, str):
        theirs, ours = (', '.join(sorted(map(shown, paths_of(model)))) for model in (there, here))
        if theirs != ours:
            return f'the checkpoints {theirs} (here: {ours})'
    return f'other weights in {ours}'


def _by_content(member: Mapping) -> str:
    return member['digest'] or ''


def _difference_of_weights(there: Mapping, here: Mapping) -> list[str]:
    """Return the first difference between the weights of two checkpoints."""
    if there['digest'] == here['digest'] is not None:
        return []
    both = {
        key: name
        for key, name in OF_WEIGHTS.items()
        if key == 'calibration' or None not in (there[key], here[key])
    }
    if both.keys() == {'calibration'}:  # neither says how it was trained
        names = [os.path.basename(member['checkpoint']) for member in (there, here)]
        return [f'the name {names[0]} (here: {names[1]})'] if names[0] != names[1] else []
    return difference(there, here, both)[:1]


def find_temperature(path: str, model: Mapping) -> dict:
    """Return a model with the temperature that a file has for it.

    Args:
        path: The file that ``tools/calibrate.py`` left.
        model: See :func:`describe_model`.

    Raises:
        OSError: If the file cannot be read.
        ValueError: If it holds no temperature of an ensemble, or that of another one.
    """
    temperature = read_temperature(path)
    content = json.loads(Path(path).read_text(encoding='utf-8'))
    if 'model' not in content:
        raise ValueError(f'{path} does not name its model: fit it again with tools/calibrate.py')
    wrong = difference_of_models({**content['model'], 'temperature': None}, model)
    if wrong:
        raise ValueError(
            f'{path} was fitted to another ensemble ({wrong}): fit one with '
            'tools/calibrate.py and the same arguments'
        )
    told = {key: content[key] for key in ('options', 'split', 'forced')}
    calibration = {'methods': [content['method']], **told}
    return {**model, 'calibration': calibration, 'temperature': temperature}


def same_ensemble(there: Mapping, here: Mapping | None) -> bool:
    """Return whether two models of the same checkpoints average the same predictions.

    Args:
        there: Of a record.
        here: Another; None of a single network.
    """
    keys = ('views', 'mc_dropout', 'dropout_seed', 'temperature')
    if here is None:
        return not is_ensemble(there)
    return all(there[key] == here[key] for key in keys)
