"""tools/calibrate.py takes the configs and models that mmseg and mmpretrain ship, without any data.

All is done that the tool does: images are divided by the config, and a temperature is put into a
model of random weights and proven on a random image. A few by default; with ``--all-configs`` all
are tried, which is the measurement of docs/results/stock_configs.md: tables are printed (``-s``).
"""

import copy
import logging
import re
from collections import Counter
from contextlib import redirect_stdout
from importlib.util import find_spec
from io import StringIO
from pathlib import Path

import pytest
import torch
from mmengine.model import revert_sync_batchnorm
from mmengine.registry import MODELS, init_default_scope
from mmengine.structures import PixelData
from mmpretrain.structures import DataSample
from mmseg.structures import SegDataSample
from torch import nn

from mmcalib.calibration.place import place
from mmcalib.cli import calibrate as cli
from mmcalib.commands.calibrate.command import prepare
from mmcalib.commands.calibrate.sinks import CheckpointSink
from mmcalib.openmmlab.heads import find_head, has_several_labels
from mmcalib.openmmlab.runner_source import RunnerSource
from mmcalib.posthoc import TemperatureScaler
from mmcalib.posthoc.per_label import ScalerPerLabel
from mmcalib.predictions.kept_batches import KeptBatch
from mmcalib.runs.checkpoint import checkpoint_from_content
from mmcalib.runs.config import load_config

FOLDERS = {
    toolbox: Path(find_spec(toolbox).origin).parent / '.mim/configs'
    for toolbox in ('mmseg', 'mmpretrain')
}
APART, CROSS_FITTED = 'validation data apart', 'cross-fitted'
NO_DATA = 'there is no folder'  # how a run ends that has all but its data
DIVIDED = {
    'mmseg/pspnet/pspnet_r50-d8_4xb2-40k_cityscapes-512x1024_dark-zurich-1920x1080.py': APART,
    'mmseg/pspnet/pspnet_r50-d8_4xb4-20k_voc12aug-512x512.py': CROSS_FITTED,
    'mmpretrain/resnet/resnet50_8xb16_cifar10.py': CROSS_FITTED,
    'mmpretrain/resnet/resnet50_8xb32_in1k.py': CROSS_FITTED,
    'mmpretrain/mae/mae_vit-base-p16_8xb512-amp-coslr-300e_in1k.py': 'has no val_dataloader',
    'mmpretrain/replknet/replknet-31B_32xb64_in1k.py': 'cannot be read',
}
NOT_HALVED = 'no linear layer'
# Small models of many kinds: the layers that take the temperature up, or why none does.
PLACED = {
    'mmpretrain/lenet/lenet5_mnist.py': ['backbone.classifier.2'],
    'mmpretrain/mobilenet_v3/mobilenet-v3-small-050_8xb128_in1k.py': ['head.layers.1.fc'],
    'mmpretrain/resnet/resnet50_8xb16-mixup_cifar10.py': ['head.fc'],
    'mmseg/mobilenet_v3/mobilenet-v3-d8-s_lraspp_4xb4-320k_cityscapes-512x1024.py': [
        'decode_head.conv_seg'
    ],
    'mmseg/segmenter/segmenter_vit-t_mask_8xb1-160k_ade20k-512x512.py': NOT_HALVED,
}  # fmt: skip
KINDS = ('ImageClassifier', 'EncoderDecoder', 'CascadeEncoderDecoder', 'MultimodalEncoderDecoder')
# Of square images: from a small one to those that some windows and position embeddings are made
# for, and that of LeNet.
SIZES = (64, 128, 192, 224, 256, 384, 512, 640, 768, 32)
# Words in the names of models, of small ones first.
SMALL = ('nano', 'tiny', 't', 'xxs', 'xs', 'small', 's', 'base', 'b', 'medium', 'm', 'large', 'l')


def stock_config(name):
    toolbox, path = name.split('/', 1)
    return load_config(str(FOLDERS[toolbox] / path))


def division(name):
    """Return how a calibration would divide the images of a config, or why it refuses it.

    It runs in a folder with ``weights.pth``.
    """
    path = FOLDERS[name.split('/')[0]] / name.split('/', 1)[1]
    options = cli.parse(cli.build_parser(), [str(path), 'weights.pth', '--out', 'new.pth'])
    try:
        with redirect_stdout(StringIO()):
            run = prepare(options)
    except (ImportError, OSError, ValueError) as error:
        if NO_DATA not in str(error):
            return str(error).replace(f'{path}: ', '').replace(f'{path} ', '').splitlines()[0]
    return CROSS_FITTED if run.division.cross_fit else APART


def short(node):
    """Return the class that a node builds, or the classes of a list of them."""
    if isinstance(node, (list, tuple)):
        return tuple(map(short, node))
    kind = node.get('type') if node else None
    return kind.__name__ if isinstance(kind, type) else kind


def architecture(name):
    """Return the classes of a model and its parts."""
    model = stock_config(name).model
    parts = [model, *map(model.get, ('backbone', 'neck', 'decode_head', 'head'))]
    kernel = parts[3].get('kernel_generate_head') if isinstance(parts[3], dict) else None
    return tuple(map(short, [*parts, kernel]))


def size_of(name):
    """Return a key by which the names of smaller models come first."""
    stem = Path(name).stem
    named = [SMALL.index(word) for word in re.split(r'[-_/]', stem) if word in SMALL]
    numbers = [int(number) for number in re.findall(r'\d+', stem)]
    return 'deploy' in name, named[0] if named else len(SMALL), numbers[:1], name


def outcome(name):
    """Return the layers that take a temperature up, or none and why, as the tool finds and proves.

    Raises:
        ValueError: If the model predicts no classes, or not what it should.
    """
    cfg, toolbox = stock_config(name), name.split('/')[0]
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
    for key, parameter in (find_head(model) or nn.Identity()).named_parameters():
        if 'norm' not in key:
            nn.init.normal_(parameter, std=0.1)  # logits that are large enough to matter
    # Before it runs: EVA-02 adapts its buffers to the size of the images.
    content = {'state_dict': copy.deepcopy(model.state_dict()), 'meta': {}}
    batch = smallest_batch(model, toolbox)
    scaler = TemperatureScaler.from_parameters({'temperature': 1.7})
    source = RunnerSource(model, [batch])
    source.kept = [KeptBatch(batch)]
    source.use_placement(source.expected_placement(model, scaler))
    several_labels = has_several_labels(model)
    if several_labels:
        per_label = ScalerPerLabel(scaler)
        per_label.scalers = [scaler] * find_head(model).num_classes
        scaler = per_label
    placement = place(model, scaler, source.kept, source.run, sigmoids=several_labels)
    sink = CheckpointSink(checkpoint_from_content(content, name), cfg)
    sink.prove(model, source, scaler, placement)
    return placement.layers, placement.reason


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
    """Return a random image of the smallest size that a model takes, twice for a classifier."""
    first = next((m for m in model.modules() if isinstance(m, nn.Conv2d)), None)
    channels = first.in_channels if first else 3  # one of LeNet, 25 of a spectral camera
    for size in SIZES:
        generator = torch.Generator().manual_seed(0)
        image = torch.randint(256, (channels, size, size), generator=generator).to(torch.uint8)
        if toolbox == 'mmpretrain':
            sample = DataSample(metainfo=dict(img_shape=(size, size))).set_gt_label(0)
            batch = dict(inputs=torch.stack([image, image]), data_samples=[sample, sample.clone()])
        else:
            label = PixelData(data=torch.zeros(1, size, size, dtype=torch.long))
            shapes = dict.fromkeys(('ori_shape', 'img_shape', 'pad_shape'), (size, size))
            sample = SegDataSample(gt_sem_seg=label, metainfo=dict(padding_size=[0] * 4, **shapes))
            batch = dict(inputs=[image], data_samples=[sample])
        try:
            with torch.no_grad():
                model.val_step(copy.deepcopy(batch))
        except (AssertionError, IndexError, RuntimeError, ValueError):
            if size == SIZES[-1]:
                raise
        else:
            return batch


@pytest.fixture(autouse=True)
def _with_weights_and_few_lines(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save({'state_dict': {}}, 'weights.pth')
    logging.disable(logging.INFO)  # their init_weights logs a line per parameter
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize('name', DIVIDED)
def test_images_are_divided(name):
    assert DIVIDED[name] in division(name)


@pytest.mark.parametrize('name', PLACED)
def test_a_temperature_is_placed_and_proven(name):
    layers, reason = outcome(name)
    assert layers == PLACED[name] or PLACED[name] in reason


@pytest.mark.parametrize('toolbox', FOLDERS)
def test_all(toolbox, request):
    if not request.config.getoption('all_configs'):
        pytest.skip('needs --all-configs')
    paths = (path.relative_to(FOLDERS[toolbox]) for path in FOLDERS[toolbox].rglob('*.py'))
    names = sorted(f'{toolbox}/{path}' for path in paths if '_base_' not in path.parts)
    divided = {name: division(name) for name in names}
    for how, count in Counter(divided.values()).most_common():
        print(f'{toolbox}: {count} {how}')
    groups, wrong = {}, []
    for name in names:
        if divided[name] in (APART, CROSS_FITTED):
            groups.setdefault(architecture(name), []).append(name)
    for group in groups.values():
        name = min(group, key=size_of)
        try:
            layers, reason = outcome(name)
            found = ', '.join(layers) or f'attached: {reason}'
        except Exception as error:  # of the toolboxes' own code: packages and operators that lack
            found = f'not tried: {error}'.splitlines()[0]
            wrong += [name] if 'differ from the scaled' in found else []
        print(f'{name} ({len(group)}): {found}', flush=True)
    assert divided and wrong == []
