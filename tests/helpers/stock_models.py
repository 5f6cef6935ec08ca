"""Models of the configs that mmseg and mmpretrain ship, with random weights."""

from importlib.util import find_spec
from pathlib import Path

import torch
from mmengine.model import revert_sync_batchnorm
from mmengine.registry import MODELS, init_default_scope
from torch import nn

from mmcalib.openmmlab.heads import find_head
from mmcalib.runs.config import load_config

FOLDERS = {
    toolbox: Path(find_spec(toolbox).origin).parent / '.mim/configs'
    for toolbox in ('mmseg', 'mmpretrain')
}
KINDS = ('ImageClassifier', 'EncoderDecoder', 'CascadeEncoderDecoder', 'MultimodalEncoderDecoder')
# Height and width of the smallest images of a segmentor.
SMALLEST = 64


def config_path(name):
    """Return the path of a toolbox's config, such as ``'mmseg/pspnet/….py'``."""
    toolbox, path = name.split('/', 1)
    return FOLDERS[toolbox] / path


def class_name(node):
    """Return the name of the class that a node builds, or those of the nodes of a list."""
    if isinstance(node, (list, tuple)):
        return tuple(map(class_name, node))
    kind = node.get('type') if node else None
    return kind.__name__ if isinstance(kind, type) else kind


def build_model(name):
    """Return a config and its model of random weights, whose logits are large enough to matter.

    Raises:
        ValueError: If the model predicts no classes, or its checkpoints lack weights.
    """
    cfg = load_config(str(config_path(name)))
    toolbox = name.split('/')[0]
    kind = class_name(cfg.model)
    if kind not in KINDS:
        raise ValueError(f'{kind} predicts no classes')
    if 'LoRA' in str(class_name(cfg.model.backbone)):
        raise ValueError('a checkpoint of LoRA holds the adapters alone')
    init_default_scope(toolbox)
    if 'data_preprocessor' in cfg:
        cfg.model.setdefault(
            'data_preprocessor', cfg.data_preprocessor
        )  # The Runner does the same.
    remove_pretrained_weights(cfg.model)
    if toolbox == 'mmseg' and 'img_size' in (cfg.model.get('backbone') or {}):
        # The position embeddings of a transformer must fit the small images.
        cfg.model.backbone.img_size = (SMALLEST, SMALLEST)
    torch.manual_seed(0)
    model = revert_sync_batchnorm(MODELS.build(cfg.copy().model)).eval()
    head = find_head(model)
    if head is not None:
        for key, parameter in head.named_parameters():
            if 'norm' not in key:
                nn.init.normal_(parameter, std=0.1)
    return cfg, model


def remove_pretrained_weights(node):
    """Remove the options that load weights from a config."""
    children = []
    if isinstance(node, dict):
        node.pop('pretrained', None)
        if 'Pretrained' in str(node.get('init_cfg')):
            node.pop('init_cfg')
        children = list(node.values())
    elif isinstance(node, (list, tuple)):
        children = node
    for child in children:
        remove_pretrained_weights(child)
