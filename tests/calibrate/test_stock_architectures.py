"""Where a temperature goes in the models that mmseg and mmpretrain ship, with random weights.

A few by default, and with ``--all-configs`` one of each combination of classes.
"""

import logging

import pytest
from stock_architectures import architectures, build_model, fold, smallest_batch
from stock_configs import TOOLBOXES, recorded

# Small models of many kinds, and the layers that take the temperature up.
FOLDED = {
    'mmpretrain/lenet/lenet5_mnist.py': ['backbone.classifier.2'],
    'mmpretrain/mobilenet_v3/mobilenet-v3-small-050_8xb128_in1k.py': ['head.layers.1.fc'],
    'mmpretrain/deit/deit-tiny-distilled_4xb256_in1k.py': [
        'head.layers.head_dist',
        'head.layers.head',
    ],
    'mmseg/cgnet/cgnet_fcn_4xb4-60k_cityscapes-680x680.py': ['decode_head.conv_seg'],
    'mmseg/segformer/segformer_mit-b0_8xb2-160k_ade20k-512x512.py': ['decode_head.conv_seg'],
    'mmseg/mobilenet_v3/mobilenet-v3-d8-s_lraspp_4xb4-320k_cityscapes-512x1024.py': [
        'decode_head.conv_seg'
    ],
}
# Those that no layer of theirs makes scale, and why.
NOT_FOLDED = {
    'mmpretrain/conformer/conformer-tiny-p16_8xb128_in1k.py': 'ConformerHead returns tuple',
    'mmseg/segmenter/segmenter_vit-s_mask_8xb1-160k_ade20k-512x512.py': 'no linear layer',
}
SLOWER_NOT_FOLDED = {}


@pytest.fixture(autouse=True)
def few_lines():
    """Their init_weights logs a line per parameter."""
    logging.disable(logging.INFO)
    yield
    logging.disable(logging.NOTSET)


def pytest_generate_tests(metafunc):
    every = metafunc.config.getoption('all_configs')
    if metafunc.function is test_what_folds:
        rows = [(f'{toolbox}/{row["label"]}', row['folded']) for toolbox in TOOLBOXES for row in recorded('architectures', toolbox)]
        known = {name: layers for name, layers in rows if layers} if every else FOLDED
        metafunc.parametrize(('name', 'layers'), known.items(), ids=list(known))
    elif metafunc.function is test_what_does_not_fold:
        known = NOT_FOLDED | (SLOWER_NOT_FOLDED if every else {})
        metafunc.parametrize(('name', 'reason'), known.items(), ids=list(known))
