"""tools/calibrate.py takes the configs and models that mmseg and mmpretrain ship.

A few by default. With ``--all-configs`` all are tried, which is the measurement of
docs/results/stock_configs.md: the tables are printed (``-s``).
"""

import logging
from collections import Counter

import pytest
import torch
import zoo
from zoo import APART, CROSS_FITTED, TOOLBOXES, division, outcome

DIVIDED = {
    'mmseg': {
        'pspnet/pspnet_r50-d8_4xb2-40k_cityscapes-512x1024_dark-zurich-1920x1080.py': APART,
        'segformer/segformer_mit-b0_8xb2-160k_ade20k-512x512.py': CROSS_FITTED,
        'pspnet/pspnet_r50-d8_4xb4-20k_voc12aug-512x512.py': CROSS_FITTED,
    },
    'mmpretrain': {
        'resnet/resnet50_8xb16_cifar10.py': CROSS_FITTED,
        'resnet/resnet50_8xb32_in1k.py': CROSS_FITTED,
        'lenet/lenet5_mnist.py': CROSS_FITTED,
        'mae/mae_vit-base-p16_8xb512-amp-coslr-300e_in1k.py': 'the config has no val_dataloader',
        'replknet/replknet-31B_32xb64_in1k.py': 'cannot be read',
        'swin_transformer_v2/swinv2-base-w12_8xb128_in21k-192px.py': "'test_pipeline'",
    },
}
SIGMOIDS, NOT_HALVED = 'each class has a separate sigmoid', 'halving any does not halve'
# Small models of many kinds: the layers that take the temperature up, or why none does.
PLACED = {
    'mmpretrain/lenet/lenet5_mnist.py': ['backbone.classifier.2'],
    'mmpretrain/mobilenet_v3/mobilenet-v3-small-050_8xb128_in1k.py': ['head.layers.1.fc'],
    'mmpretrain/deit/deit-tiny-distilled_4xb256_in1k.py': [
        'head.layers.head_dist', 'head.layers.head',
    ],
    'mmpretrain/conformer/conformer-tiny-p16_8xb128_in1k.py': [
        'head.trans_cls_head', 'head.conv_cls_head',
    ],
    'mmpretrain/swin_transformer_v2/swinv2-tiny-w8_16xb64_in1k-256px.py': ['head.fc'],
    'mmpretrain/resnet/resnet50_8xb16-mixup_cifar10.py': SIGMOIDS,
    'mmseg/cgnet/cgnet_fcn_4xb4-60k_cityscapes-680x680.py': ['decode_head.conv_seg'],
    'mmseg/segformer/segformer_mit-b0_8xb2-160k_ade20k-512x512.py': ['decode_head.conv_seg'],
    'mmseg/mobilenet_v3/mobilenet-v3-d8-s_lraspp_4xb4-320k_cityscapes-512x1024.py': [
        'decode_head.conv_seg'
    ],
    'mmseg/segmenter/segmenter_vit-t_mask_8xb1-160k_ade20k-512x512.py': NOT_HALVED,
}  # fmt: skip


@pytest.fixture(autouse=True)
def _with_weights_and_few_lines(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save({'state_dict': {}}, 'weights.pth')
    logging.disable(logging.INFO)  # their init_weights logs a line per parameter
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize('toolbox', TOOLBOXES)
def test_images_are_divided(toolbox):
    for config, expected in DIVIDED[toolbox].items():
        assert expected in division(toolbox, config), config


def test_a_config_of_other_validation_data_is_not_cross_fitted(tmp_path):
    """Of the same config, which says that the above can tell them apart."""
    path = zoo.folder_of('mmseg') / 'pspnet/pspnet_r50-d8_4xb2-40k_cityscapes-512x1024.py'
    own = tmp_path / 'own.py'
    images = "dict(img_path='leftImg8bit/minival', seg_map_path='gtFine/minival')"
    own.write_text(f"_base_ = '{path}'\nval_dataloader = dict(dataset=dict(data_prefix={images}))")
    assert division('mmseg', path) == CROSS_FITTED
    assert division('mmseg', own) == APART


@pytest.mark.parametrize('name', PLACED)
def test_a_temperature_is_placed_and_proven(name):
    layers, reason = outcome(*name.split('/', 1))
    assert layers == PLACED[name] or PLACED[name] in reason


@pytest.mark.parametrize('toolbox', TOOLBOXES)
def test_all(toolbox, request):
    if not request.config.getoption('all_configs'):
        pytest.skip('needs --all-configs')
    divided = {config: division(toolbox, config) for config in zoo.stock_configs(toolbox)}
    for how, count in Counter(divided.values()).most_common():
        print(f'{toolbox}: {count} {how}')
    taken = [config for config, how in divided.items() if how in (APART, CROSS_FITTED)]
    wrong = []
    for config, group in zoo.architectures(toolbox, taken).items():
        try:
            layers, reason = outcome(toolbox, config)
            found = ', '.join(layers) or f'attached: {reason}'
        except Exception as error:  # of the toolboxes' own code: packages and operators that lack
            found = f'not tried: {error}'.splitlines()[0]
            wrong += [config] if 'differ from the scaled' in found else []
        print(f'{toolbox}: {config} ({len(group)}): {found}', flush=True)
    assert divided and wrong == []
