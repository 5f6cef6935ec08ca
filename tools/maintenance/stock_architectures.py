"""Folding a temperature into the models of the stock configs, with random weights."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from mmengine.config import Config
from mmengine.model import revert_sync_batchnorm
from mmengine.registry import MODELS, init_default_scope
from mmengine.structures import PixelData
from stock_configs import config_folder
from torch import nn

from mmcalib.models.predicting_head import has_several_labels, head_of
from mmcalib.posthoc import TemperatureScaler
from mmcalib.posthoc.attached import attach, attached
from mmcalib.posthoc.draw import predictor
from mmcalib.posthoc.fold_into_layer import (
    TOLERANCE,
    NotFoldableError,
    find_predicting_layers,
    fold_layers,
    largest_difference,
    swapped_parameters,
)
from mmcalib.posthoc.scaler import with_other_class
from mmcalib.runs.config import load_config
from mmcalib.samples.reading import read_logits

TEMPERATURE = 1.7
CLASSIFYING = (
    'ImageClassifier',
    'EncoderDecoder',
    'CascadeEncoderDecoder',
    'MultimodalEncoderDecoder',
)
PARTS = ('backbone', 'neck', 'decode_head', 'head')
# Of square images: from a small one to those that some windows and position embeddings are made
# for, and that of LeNet.
SIZES = (64, 128, 192, 224, 256, 384, 512, 640, 768, 32)
SMALL = ('nano', 'tiny', 't', 'xxs', 'xs', 'small', 's', 'base', 'b', 'medium', 'm', 'large', 'l')


def architecture(cfg: Config) -> tuple:
    """Return the classes that a model is made of: itself, backbone, neck and heads."""
    return (
        _short(cfg.model),
        *(_short(cfg.model.get(part)) for part in PARTS),
        _short((cfg.model.get('decode_head') or {}).get('kernel_generate_head'))
        if isinstance(cfg.model.get('decode_head'), Mapping)
        else None,
    )


def architectures(toolbox: str, configs: Iterable[str]) -> dict[str, list[str]]:
    """Return groups of configs of one architecture, each under the one of the smallest model."""
    groups: dict[tuple, list[str]] = {}
    for config in configs:
        cfg = load_config(str(config_folder(toolbox) / config))
        groups.setdefault(architecture(cfg), []).append(config)
    return {min(group, key=_size): group for group in groups.values()}


def fold(model: nn.Module, batch: dict) -> list[str]:
    """Fold a temperature into a model, and hold its logits against the scaled ones.

    Args:
        model: Of :func:`build_model`.
        batch: Of :func:`smallest_batch`.

    Returns:
        The names of the layers.

    Raises:
        ValueError: If no layer takes up the temperature, or the folded logits are not the scaled.
    """
    if has_several_labels(model):
        raise NotFoldableError('each class has a separate sigmoid')
    names = find_predicting_layers(model, batch)
    with predictor(model) as predict:
        images = predict(batch)
    for image in images:  # are its scores the softmax of these logits?
        read_logits(image.sample, image.logits, ignore_index=255, name='the image')
    scaler = _fitted()
    expected = [scaler.predict_proba(image.logits[None])[0] for image in images]
    with (
        swapped_parameters(model, fold_layers(model, names, scaler)),
        predictor(model) as predict,
    ):
        found = [with_other_class(image.logits[None]).softmax(1)[0] for image in predict(batch)]
    difference = largest_difference(expected, found)
    if difference > TOLERANCE:
        raise ValueError(f'folded probabilities differ from scaled ones by {difference:.1e}')
    return names


def attach_to(model: nn.Module, batch: dict) -> None:
    """Attach a temperature to a model, and hold its probabilities against the scaled ones.

    Args:
        model: Of :func:`build_model`.
        batch: Of :func:`smallest_batch`.

    Raises:
        ValueError: If the probabilities are not the scaled ones.
    """
    scaler = _fitted()
    with predictor(model, of_samples=True) as predict:
        expected = [scaler.predict_proba(image.logits[None])[0] for image in predict(batch)]
    calibrated = attach(copy.deepcopy(model), attached(scaler))
    with predictor(calibrated, of_samples=True) as predict:
        found = [with_other_class(image.logits[None]).softmax(1)[0] for image in predict(batch)]
    difference = largest_difference(expected, found)
    if difference > TOLERANCE:
        raise ValueError(f'attached probabilities differ from scaled ones by {difference:.1e}')


def outcome(toolbox: str, config: str) -> dict:
    """Return where a temperature goes in the model of a config.

    Returns:
        ``folded``: the names of the layers, or None; ``attached``: whether it goes beside the
        model; ``runs``: whether the model could be built and run here; ``reason``: why it is not
        folded, and if not attached either, why not that.
    """
    result = {'folded': None, 'attached': False, 'runs': False, 'reason': None}
    try:
        model = build_model(toolbox, config)
        batch = smallest_batch(model, toolbox)
    except Exception as error:  # of the toolboxes' own code: packages and operators that lack
        return result | {'reason': _first_sentence(error)}
    result['runs'] = True
    try:
        return result | {'folded': fold(model, batch)}
    except ValueError as error:
        result['reason'] = _first_sentence(error)
    try:
        attach_to(model, batch)
    except ValueError as error:
        return result | {'reason': _first_sentence(error)}
    return result | {'attached': True}


def build_model(toolbox: str, config: str) -> nn.Module:
    """Return the model of a config, of random weights whose logits are large enough to matter.

    Raises:
        ValueError: If it predicts no classes.
    """
    cfg = load_config(str(config_folder(toolbox) / config))
    if _short(cfg.model) not in CLASSIFYING:
        raise ValueError(f'{_short(cfg.model)} predicts no classes')
    init_default_scope(toolbox)
    config = cfg.model
    if 'data_preprocessor' in cfg:
        config.setdefault('data_preprocessor', cfg.data_preprocessor)  # as the Runner does
    _without_weights(config)
    if toolbox == 'mmseg' and 'img_size' in (config.get('backbone') or {}):
        config.backbone.img_size = (SIZES[0], SIZES[0])  # a transformer's tables of positions
    torch.manual_seed(0)
    model = revert_sync_batchnorm(MODELS.build(config)).eval()
    for name, parameter in (head_of(model) or nn.Identity()).named_parameters():
        if 'norm' not in name:
            nn.init.normal_(parameter, std=0.1)
    return model


def smallest_batch(model: nn.Module, toolbox: str) -> dict:
    """Return a :func:`random_batch` of the smallest size that a model takes."""
    first = next((m for m in model.modules() if isinstance(m, nn.Conv2d)), None)
    channels = first.in_channels if first else 3  # one of LeNet, 25 of a spectral camera
    for size in SIZES:
        batch = random_batch(toolbox, (channels, size, size))
        try:
            with torch.no_grad():
                model.val_step(batch)
        except (AssertionError, IndexError, RuntimeError, ValueError):
            if size == SIZES[-1]:
                raise
        else:
            return random_batch(toolbox, (channels, size, size))


def random_batch(toolbox: str, size: tuple[int, int, int]) -> dict:
    """Return a batch of a random image of a size with labels, twice for a classifier.

    LeNet takes a single image for none.
    """
    image = torch.randint(256, size, generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    shape = size[1:]
    if toolbox == 'mmpretrain':
        from mmpretrain.structures import DataSample

        sample = DataSample(metainfo=dict(img_shape=shape)).set_gt_label(0)
        return {'inputs': torch.stack([image, image]), 'data_samples': [sample, sample.clone()]}
    from mmseg.structures import SegDataSample

    sample = SegDataSample(gt_sem_seg=PixelData(data=torch.zeros(1, *shape, dtype=torch.long)))
    sample.set_metainfo(
        dict(ori_shape=shape, img_shape=shape, pad_shape=shape, padding_size=[0] * 4)
    )
    return {'inputs': [image], 'data_samples': [sample]}


def _fitted() -> TemperatureScaler:
    return TemperatureScaler.from_parameters({'temperature': TEMPERATURE})


def _first_sentence(error: Exception) -> str:
    return str(error).split('. ')[0].splitlines()[0]


def _without_weights(node: object) -> None:
    """Take out what loads weights: here all are drawn."""
    if isinstance(node, dict):
        node.pop('pretrained', None)
        if (node.get('init_cfg') or {}) and 'Pretrained' in str(node['init_cfg']):
            node.pop('init_cfg')
        node = list(node.values())
    if isinstance(node, (list, tuple)):
        for item in node:
            _without_weights(item)


def _short(node: object) -> object:
    if isinstance(node, (list, tuple)):
        return tuple(_short(item) for item in node)
    kind = node.get('type') if node else None
    return kind.__name__ if isinstance(kind, type) else kind


def _size(config: str) -> tuple:
    """Return a key by which the names of smaller models come first."""
    words = re.split(r'[-_/]', Path(config).stem)
    named = [SMALL.index(word) for word in words if word in SMALL]
    numbers = [int(number) for number in re.findall(r'\d+', Path(config).stem)]
    return ('deploy' in config, named[0] if named else len(SMALL), numbers[:1], config)
