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
from io import StringIO
from pathlib import Path

import pytest
import torch
from mmengine.structures import PixelData
from mmpretrain.structures import DataSample
from mmseg.structures import SegDataSample
from stock_models import FOLDERS, build_model, class_name, config_path
from torch import nn

from mmcalib.calibration.find_layer import place
from mmcalib.calibration.prove import OriginalLogits
from mmcalib.cli.calibrate import CalibrateOptions
from mmcalib.commands.calibrate.command import prepare
from mmcalib.commands.calibrate.sinks import CheckpointSink
from mmcalib.members import Member
from mmcalib.openmmlab.heads import find_head, has_several_labels
from mmcalib.openmmlab.runner_source import RunnerSource
from mmcalib.openmmlab.same_data import same_data
from mmcalib.posthoc import TemperatureScaler
from mmcalib.posthoc.per_label import ScalerPerLabel
from mmcalib.predictions.kept_batches import KeptBatch
from mmcalib.runs.checkpoint import checkpoint_from_content
from mmcalib.runs.config import load_config

SEPARATE = 'separate validation data'
CROSS_FITTED = 'cross-fitted'
NO_DATA = 'there is no folder'  # A run that lacks only its data ends so.
DIVIDED = {
    'mmseg/pspnet/pspnet_r50-d8_4xb2-40k_cityscapes-512x1024_dark-zurich-1920x1080.py': SEPARATE,
    'mmseg/pspnet/pspnet_r50-d8_4xb4-20k_voc12aug-512x512.py': CROSS_FITTED,
    'mmpretrain/resnet/resnet50_8xb16_cifar10.py': CROSS_FITTED,
    'mmpretrain/resnet/resnet50_8xb32_in1k.py': CROSS_FITTED,
    'mmpretrain/mae/mae_vit-base-p16_8xb512-amp-coslr-300e_in1k.py': 'has no val_dataloader',
    'mmpretrain/replknet/replknet-31B_32xb64_in1k.py': 'cannot be read',
}
NO_LAYER = 'no linear layer'
# Small models of many kinds: the layers that absorb the temperature, or why none does.
PLACED = {
    'mmpretrain/lenet/lenet5_mnist.py': ['backbone.classifier.2'],
    'mmpretrain/mobilenet_v3/mobilenet-v3-small-050_8xb128_in1k.py': ['head.layers.1.fc'],
    'mmpretrain/resnet/resnet50_8xb16-mixup_cifar10.py': ['head.fc'],
    'mmseg/mobilenet_v3/mobilenet-v3-d8-s_lraspp_4xb4-320k_cityscapes-512x1024.py': [
        'decode_head.conv_seg'
    ],
    'mmseg/segmenter/segmenter_vit-t_mask_8xb1-160k_ade20k-512x512.py': NO_LAYER,
}  # fmt: skip
# Sizes of square images to try: small ones, those that some windows and position embeddings fit,
# and that of LeNet.
SIZES = (64, 128, 192, 224, 256, 384, 512, 640, 768, 32)
# Words in the names of models, of small ones first.
SMALL = ('nano', 'tiny', 't', 'xxs', 'xs', 'small', 's', 'base', 'b', 'medium', 'm', 'large', 'l')


def division(name):
    """Return whether a config has the same images in val and test, or why it is refused.

    The current folder must have a ``weights.pth``.
    """
    path = config_path(name)
    options = CalibrateOptions(members=(Member(str(path), 'weights.pth'),), out='new.pth')
    try:
        with redirect_stdout(StringIO()):
            cfg, *_ = prepare(options)
    except (ImportError, OSError, ValueError) as error:
        if NO_DATA not in str(error):
            return str(error).replace(f'{path}: ', '').replace(f'{path} ', '').splitlines()[0]
    is_whole_test = same_data(cfg.val_dataloader, cfg.test_dataloader)
    return CROSS_FITTED if is_whole_test else SEPARATE


def architecture(name):
    """Return the classes of a model and its parts."""
    model = load_config(str(config_path(name))).model
    decode_head = model.get('decode_head')
    kernel_head = None
    if isinstance(decode_head, dict):
        kernel_head = decode_head.get('kernel_generate_head')
    parts = [
        model, model.get('backbone'), model.get('neck'), decode_head, model.get('head'), kernel_head
    ]  # fmt: skip
    return tuple(map(class_name, parts))


def size_key(name):
    """Return a key that sorts the names of smaller models first."""
    stem = Path(name).stem
    size_word = len(SMALL)
    for word in re.split(r'[-_/]', stem):
        if word in SMALL:
            size_word = SMALL.index(word)
            break
    first_number = [int(number) for number in re.findall(r'\d+', stem)[:1]]
    return 'deploy' in name, size_word, first_number, name


def place_temperature(name):
    """Place a temperature in the model of a config and prove it, as the tool does.

    Returns:
        The layers that absorb it, and the reason why none does or None.

    Raises:
        ValueError: If the model predicts no classes, or not the scaled probabilities.
    """
    cfg, model = build_model(name)
    # EVA-02 adapts its buffers to the size of the images when it runs.
    content = {'state_dict': copy.deepcopy(model.state_dict()), 'meta': {}}
    batch = smallest_batch(model, toolbox=name.split('/')[0])
    scaler = TemperatureScaler.from_parameters({'temperature': 1.7})
    source = RunnerSource(model, [batch])
    source.kept = [KeptBatch(batch)]
    source.use_placement(source.expected_placement(model, scaler))
    several_labels = has_several_labels(model)
    if several_labels:
        scaler = ScalerPerLabel([scaler] * find_head(model).num_classes)
    original = OriginalLogits(model, source.kept, source.run)
    placement = place(original, scaler)
    sink = CheckpointSink(checkpoint_from_content(content, name), cfg)
    sink.prove(model, source, scaler, placement)
    return placement.layers, placement.reason


def smallest_batch(model, toolbox):
    """Return a random image of the smallest size that a model takes, twice for a classifier."""
    convolutions = [module for module in model.modules() if isinstance(module, nn.Conv2d)]
    channels = (
        convolutions[0].in_channels if convolutions else 3
    )  # LeNet has 1, a spectral camera 25.
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
    logging.disable(logging.INFO)  # init_weights logs a line per parameter.
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize('name', DIVIDED)
def test_calibrate_stock_config_divides_images(name):
    assert DIVIDED[name] in division(name)


@pytest.mark.parametrize('name', PLACED)
def test_calibrate_stock_model_places_temperature(name):
    layers, reason = place_temperature(name)
    if PLACED[name] == NO_LAYER:
        assert layers == []
        assert NO_LAYER in reason
    else:
        assert layers == PLACED[name]


def groups_of_one_architecture(names):
    """Return lists of the names of configs whose models have the same parts."""
    groups = {}
    for name in names:
        groups.setdefault(architecture(name), []).append(name)
    return list(groups.values())


@pytest.mark.parametrize('toolbox', FOLDERS)
def test_calibrate_all_stock_configs_divided_and_placed(toolbox, request):
    if not request.config.getoption('all_configs'):
        pytest.skip('needs --all-configs')
    names = []
    for path in sorted(FOLDERS[toolbox].rglob('*.py')):
        relative_path = path.relative_to(FOLDERS[toolbox])
        if '_base_' not in relative_path.parts:
            names.append(f'{toolbox}/{relative_path}')
    assert names
    divisions = {name: division(name) for name in names}
    for kind, count in Counter(divisions.values()).most_common():
        print(f'{toolbox}: {count} {kind}')
    accepted = [name for name in names if divisions[name] in (SEPARATE, CROSS_FITTED)]
    wrong = []
    for group in groups_of_one_architecture(accepted):
        name = min(group, key=size_key)
        try:
            layers, reason = place_temperature(name)
            result = ', '.join(layers) or f'attached: {reason}'
        except Exception as error:  # Models of the toolboxes may lack packages and operators.
            result = f'not tried: {error}'.splitlines()[0]
            if 'differ from the scaled' in result:
                wrong.append(name)
        print(f'{name} ({len(group)}): {result}', flush=True)
    assert wrong == []
