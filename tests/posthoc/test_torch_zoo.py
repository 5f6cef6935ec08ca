"""What mmcalib.calibrate makes of the models of timm and torchvision.

Their weights are random and classes few: the layer that takes the scaling up is found by running
them. A few by default, all with ``--all-configs``, which prints the table (``-s``).
"""

from importlib import import_module

import pytest
import torch
from torch import nn

import mmcalib

CLASSES = 4
TIMM = {
    'resnet18': ['fc'], 'efficientnet_lite0': ['classifier'], 'mobilenetv3_small_050':
    ['classifier'], 'convnext_atto': ['head.fc'], 'vit_tiny_patch16_224': ['head'],
    'deit_tiny_distilled_patch16_224': ['head_dist', 'head'], 'swin_tiny_patch4_window7_224':
    ['head.fc'], 'mixer_s32_224': ['head'], 'regnetx_002': ['head.fc'], 'densenet121':
    ['classifier'], 'vgg11': ['head.fc'], 'repvgg_a0': ['head.fc'], 'xcit_nano_12_p16_224':
    ['head'], 'poolformer_s12': ['head.fc'], 'edgenext_xx_small': ['head.fc'], 'levit_128s':
    ['head_dist.linear', 'head.linear'], 'coat_tiny': ['head'], 'crossvit_tiny_240':
    ['head.1', 'head.0'], 'ghostnet_050': ['classifier'], 'tf_efficientnet_b0': ['classifier'],
}  # fmt: skip
TORCHVISION = {
    'resnet18': ['fc'], 'mobilenet_v2': ['classifier.1'], 'squeezenet1_0': ['classifier.1'],
    'googlenet': ['fc'], 'vit_b_16': ['heads.head'], 'swin_t': ['head'], 'convnext_tiny':
    ['classifier.2'], 'maxvit_t': ['classifier.5'], 'segmentation.deeplabv3_mobilenet_v3_large':
    ['classifier.4'], 'segmentation.lraspp_mobilenet_v3_large':
    ['classifier.high_classifier', 'classifier.low_classifier'],
}  # fmt: skip
FEW = ('timm resnet18', 'timm deit_tiny_distilled_patch16_224', 'torchvision squeezenet1_0')
FEW += ('torchvision segmentation.lraspp_mobilenet_v3_large', 'timm levit_128s')


def timm(name):
    model = import_module('timm').create_model(name, num_classes=CLASSES)
    return model, model.default_cfg['input_size'][1:], False


def torchvision(name):
    part, _, name = f'.{name}'.rpartition('.')
    options = dict(weights_backbone=None) if part else {}
    options |= dict(init_weights=False, aux_logits=False) if name == 'googlenet' else {}
    models = import_module(f'torchvision.models{part}')
    model = getattr(models, name)(weights=None, num_classes=CLASSES, **options)
    large = name.startswith(('vit', 'swin', 'maxvit', 'squeeze'))
    return model, (224, 224) if large else (64, 64), bool(part)


LIBRARIES = {
    **{f'timm {name}': (timm, name, layers) for name, layers in TIMM.items()},
    **{f'torchvision {name}': (torchvision, name, layers) for name, layers in TORCHVISION.items()},
}


@pytest.mark.filterwarnings('ignore::UserWarning')
@pytest.mark.parametrize('entry', LIBRARIES)
def test_where_a_temperature_goes(entry, request):
    if entry not in FEW and not request.config.getoption('all_configs'):
        pytest.skip('needs --all-configs')
    make, name, expected = LIBRARIES[entry]
    pytest.importorskip(make.__name__)
    torch.manual_seed(0)
    model, size, dense = make(name)
    for module in model.modules():  # so that random weights give logits that matter
        if isinstance(module, nn.Linear) and module.out_features == CLASSES:
            nn.init.normal_(module.weight, std=0.3)
    labels = torch.randint(CLASSES, (12, *size) if dense else (12,))
    inputs = torch.randn(12, 3, *size)
    batches = list(zip(inputs.split(4), labels.split(4), strict=True))
    found = mmcalib.calibrate(model, batches)
    print(f'{entry}: {", ".join(found.folded_into)} ({found.difference:.1e})')
    assert found.folded_into == expected
    assert found.model.state_dict().keys() == model.state_dict().keys()
