"""Calibrations of models of timm, torchvision, transformers and MONAI.

Their weights are random and their classes few: the layer that absorbs the scaling is found when
they run. A few models are tried by default, all with ``--all-configs``; ``-s`` prints the table.
"""

from importlib import import_module

import pytest
import torch
from torch import nn
from torch.nn.functional import interpolate

import mmcalib
from mmcalib.predictions.model_logits import find_logits

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
    return model, model.default_cfg['input_size'][1:], {}


def torchvision(name):
    part, _, name = f'.{name}'.rpartition('.')
    options = dict(weights_backbone=None) if part else {}
    options |= dict(init_weights=False, aux_logits=False) if name == 'googlenet' else {}
    models = import_module(f'torchvision.models{part}')
    model = getattr(models, name)(weights=None, num_classes=CLASSES, **options)
    large = name.startswith(('vit', 'swin', 'maxvit', 'squeeze'))
    return model, (224, 224) if large else (64, 64), {'dense': bool(part)}


def transformers(name):
    library = import_module('transformers')
    if name == 'SegFormer':
        model = library.SegformerForSemanticSegmentation(
            library.SegformerConfig(
                num_labels=CLASSES, depths=[1] * 4, hidden_sizes=[8, 16, 24, 32],
                decoder_hidden_size=16,
            )
        )  # fmt: skip
        logits = lambda output: interpolate(output.logits, (64, 64), mode='bilinear')  # noqa: E731
        return model, (64, 64), {'dense': True, 'logits': logits}
    config = library.ViTConfig(
        num_labels=CLASSES, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=16, image_size=32, patch_size=8,
    )  # fmt: skip
    return library.ViTForImageClassification(config), (32, 32), {}


def monai(name):
    library = import_module('monai.networks.nets')
    if 'UNet' in name:
        model = library.UNet(
            3,
            in_channels=3,
            out_channels=CLASSES,
            channels=(4, 8),
            strides=(2,),
            num_res_units=2 if 'units' in name else 0,
        )
    else:
        model = library.SegResNet(3, init_filters=8, in_channels=3, out_channels=CLASSES)
    return model, (16, 16, 16), {'dense': True}


LIBRARIES = {
    **{f'timm {name}': (timm, name, layers) for name, layers in TIMM.items()},
    **{f'torchvision {name}': (torchvision, name, layers) for name, layers in TORCHVISION.items()},
    'transformers SegFormer': (transformers, 'SegFormer', ['decode_head.classifier']),
    'transformers ViT': (transformers, 'ViT', ['classifier']),
    'monai UNet': (monai, 'UNet', ['model.2.conv']),
    # Its last unit adds its inputs to its outputs.
    'monai UNet of residual units': (monai, 'UNet of residual units', []),
    'monai SegResNet': (monai, 'SegResNet', ['conv_final.2.conv']),
}


@torch.no_grad()
def redraw_labels(labels, model, inputs, logits=None):
    """Redraw labels until the logits predict them better than chance, so that a fit is finite."""
    outputs = [model.eval()(image[None]) for image in inputs]
    all_logits = torch.cat([find_logits(output, logits) for output in outputs])
    while all_logits.gather(1, labels[:, None]).mean() <= all_logits.mean():
        labels = torch.randint(CLASSES, labels.shape)
    return labels


@pytest.mark.filterwarnings('ignore::UserWarning')
@pytest.mark.parametrize('entry', LIBRARIES)
def test_calibrate_library_model_folds_into_last_layer(entry, request):
    if entry not in FEW and not request.config.getoption('all_configs'):
        pytest.skip('needs --all-configs')
    make, name, expected = LIBRARIES[entry]
    pytest.importorskip(make.__name__)
    torch.manual_seed(0)
    model, size, options = make(name)
    for module in model.modules():  # Larger weights give logits that matter.
        if isinstance(module, nn.Linear) and module.out_features == CLASSES:
            nn.init.normal_(module.weight, std=0.3)
    is_dense = options.pop('dense', False)
    labels = torch.randint(CLASSES, (12, *size) if is_dense else (12,))
    inputs = torch.randn(12, 3, *size)
    labels = redraw_labels(labels, model, inputs, **options)
    batches = list(zip(inputs.split(4), labels.split(4), strict=True))
    scaler = mmcalib.posthoc.TemperatureScaler()
    calibrated = mmcalib.calibrate(model, batches, method=scaler, **options)
    placement = ', '.join(calibrated.folded_into) or f'attached: {calibrated.attached}'
    print(f'{entry}: {placement} ({calibrated.difference:.1e})')
    assert calibrated.folded_into == expected
    if expected:
        assert calibrated.model.state_dict().keys() == model.state_dict().keys()
