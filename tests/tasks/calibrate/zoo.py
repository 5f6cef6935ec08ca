"""What tools/calibrate.py makes of the configs that mmseg and mmpretrain ship, without any data.

All is done that the tool does: images are divided by the config, and a temperature is put into a
model of random weights and proven on a random image.
"""

import copy
import re
import runpy
import sys
from collections.abc import Mapping
from contextlib import redirect_stdout
from importlib.util import find_spec
from io import StringIO
from pathlib import Path

import torch
from commands import ROOT
from mmengine.model import revert_sync_batchnorm
from mmengine.registry import MODELS, init_default_scope
from mmengine.structures import PixelData
from torch import nn

from mmcalib.models.predicting_head import head_of
from mmcalib.posthoc import TemperatureScaler
from mmcalib.runs.config import load_config
from mmcalib.tasks.calibrate.apply import applied, layers_for, prove
from mmcalib.tasks.calibrate.calibrate import prepare

TOOLBOXES = ('mmseg', 'mmpretrain')
APART, CROSS_FITTED = 'validation data apart', 'cross-fitted'
NO_DATA = 'there is no folder'  # how a run ends that has all but its data
KINDS = ('ImageClassifier', 'EncoderDecoder', 'CascadeEncoderDecoder', 'MultimodalEncoderDecoder')
PARTS = ('backbone', 'neck', 'decode_head', 'head')
# Of square images: from a small one to those that some windows and position embeddings are made
# for, and that of LeNet.
SIZES = (64, 128, 192, 224, 256, 384, 512, 640, 768, 32)
SMALL = ('nano', 'tiny', 't', 'xxs', 'xs', 'small', 's', 'base', 'b', 'medium', 'm', 'large', 'l')


def folder_of(toolbox):
    return Path(find_spec(toolbox).origin).parent / '.mim/configs'


def stock_configs(toolbox):
    """Return all configs that are more than a base, by their path below the toolbox's configs."""
    paths = (path.relative_to(folder_of(toolbox)) for path in folder_of(toolbox).rglob('*.py'))
    return sorted(str(path) for path in paths if '_base_' not in path.parts)


def division(toolbox, config):
    """Return how a calibration would divide the images of a config, or why it refuses it.

    It runs in a folder with ``weights.pth``.
    """
    path = folder_of(toolbox) / config
    arguments, sys.argv = sys.argv, ['calibrate.py', str(path), 'weights.pth', '--out', 'new.pth']
    try:
        args = runpy.run_path(str(ROOT / 'tools/calibrate.py'))['parse_args']()[1]
        with redirect_stdout(StringIO()):
            prepare(args)
    except (ImportError, OSError, ValueError) as error:
        if NO_DATA not in str(error):
            return str(error).replace(f'{path}: ', '').replace(f'{path} ', '').splitlines()[0]
    finally:
        sys.argv = arguments
    return CROSS_FITTED if args.cross_fit else APART


def architectures(toolbox, configs):
    """Return configs by the classes of their models, of each the name of the smallest, and all."""
    groups = {}
    for config in configs:
        model = load_config(str(folder_of(toolbox) / config)).model
        kernel = (model.get('decode_head') or {}) if 'decode_head' in model else {}
        kernel = kernel.get('kernel_generate_head') if isinstance(kernel, Mapping) else None
        nodes = (model, *(model.get(part) for part in PARTS), kernel)
        groups.setdefault(tuple(map(short, nodes)), []).append(config)
    return {min(group, key=size_of): group for group in groups.values()}


def short(node):
    """Return the class that a node builds, or the classes of a list of them."""
    if isinstance(node, (list, tuple)):
        return tuple(map(short, node))
    kind = node.get('type') if node else None
    return kind.__name__ if isinstance(kind, type) else kind


def size_of(config):
    """Return a key by which the names of smaller models come first."""
    stem = Path(config).stem
    named = [SMALL.index(word) for word in re.split(r'[-_/]', stem) if word in SMALL]
    numbers = [int(number) for number in re.findall(r'\d+', stem)]
    return 'deploy' in config, named[0] if named else len(SMALL), numbers[:1], config


def outcome(toolbox, config):
    """Return the layers that take a temperature up, or none and why, as the tool finds and proves.

    Raises:
        ValueError: If the model predicts no classes, or not what it should.
    """
    cfg = load_config(str(folder_of(toolbox) / config))
    if short(cfg.model) not in KINDS:
        raise ValueError(f'{short(cfg.model)} predicts no classes')
    if 'LoRA' in str(short(cfg.model.backbone)):
        raise ValueError('a checkpoint of LoRA holds the adapters alone')
    init_default_scope(toolbox)
    if 'data_preprocessor' in cfg:
        cfg.model.setdefault('data_preprocessor', cfg.data_preprocessor)  # as the Runner does
    without_weights(cfg.model)
    if toolbox == 'mmseg' and 'img_size' in (cfg.model.get('backbone') or {}):
        cfg.model.backbone.img_size = (SIZES[0], SIZES[0])  # a transformer's tables of positions
    torch.manual_seed(0)
    model = revert_sync_batchnorm(MODELS.build(cfg.copy().model)).eval()
    for name, parameter in (head_of(model) or nn.Identity()).named_parameters():
        if 'norm' not in name:
            nn.init.normal_(parameter, std=0.1)  # logits that are large enough to matter
    # Before it runs: EVA-02 adapts its buffers to the size of the images.
    content = {'state_dict': copy.deepcopy(model.state_dict()), 'meta': {}}
    batch = smallest_batch(model, toolbox)
    scaler = TemperatureScaler.from_parameters({'temperature': 1.7})
    layers, reason = layers_for(model, scaler, batch)
    content, calibrated = applied(content, cfg, model, scaler, layers)
    prove(content, calibrated, model, scaler, batch)
    return layers, reason


def without_weights(node):
    """Take out what loads weights: here all are drawn."""
    if isinstance(node, dict):
        node.pop('pretrained', None)
        if 'Pretrained' in str(node.get('init_cfg')):
            node.pop('init_cfg')
        node = list(node.values())
    for item in node if isinstance(node, (list, tuple)) else ():
        without_weights(item)


def smallest_batch(model, toolbox):
    """Return random images of the smallest size that a model takes."""
    first = next((m for m in model.modules() if isinstance(m, nn.Conv2d)), None)
    channels = first.in_channels if first else 3  # one of LeNet, 25 of a spectral camera
    for size in SIZES:
        try:
            with torch.no_grad():
                model.val_step(random_batch(toolbox, (channels, size, size)))
        except (AssertionError, IndexError, RuntimeError, ValueError):
            if size == SIZES[-1]:
                raise
        else:
            return random_batch(toolbox, (channels, size, size))


def random_batch(toolbox, size):
    """Return a batch of a random image with labels, twice for a classifier, since of LeNet."""
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
