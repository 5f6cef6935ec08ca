"""The layer that mmcalib.calibrate folds a scaling into, for models of five libraries.

Their weights are random and their classes few. A few run by default. With ``--all-configs`` all
whose library is installed do, and print the names for docs/results/stock_configs.md::

    pytest -n 0 -s -q --all-configs tests/calibration/test_torch_zoo.py | grep '^|'
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module

import pytest
import torch
from torch import nn
from torch.nn.functional import interpolate

import mmcalib
from mmcalib.predictions.find_logits import find_logits

NUM_CLASSES = 4


@dataclass
class Architecture:
    """A model of a library, and where its temperature belongs.

    Attributes:
        build: A function of the library that returns the model.
        layers: The names of the layers that absorb a temperature; none if it is attached.
        size: The height and width of the images.
        are_maps: Whether the model predicts a class for each pixel.
        channels: The number of channels of the images.
        logits: The function of :func:`mmcalib.calibrate` that takes the logits out.
        inputs: A function that returns the inputs of a number of images; None for random pixels.
        folds_classes: Whether vector scaling folds into the same layers.
    """

    build: Callable
    layers: list[str]
    size: tuple[int, ...] = (64, 64)
    are_maps: bool = False
    channels: int = 3
    logits: Callable | None = None
    inputs: Callable | None = None
    folds_classes: bool = True


def first_entry(output):
    return output[0]


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
    ['classifier.2'], 'maxvit_t': ['classifier.5'], 'segmentation.fcn_resnet50': ['classifier.4'],
    'segmentation.deeplabv3_mobilenet_v3_large': ['classifier.4'],
    'segmentation.lraspp_mobilenet_v3_large':
    ['classifier.high_classifier', 'classifier.low_classifier'],
}  # fmt: skip
SMP = [
    'DPT', 'DeepLabV3', 'DeepLabV3Plus', 'FPN', 'Linknet', 'MAnet', 'PAN', 'PSPNet', 'Segformer',
    'UPerNet', 'Unet', 'UnetPlusPlus',
]  # fmt: skip
# Classes cannot be shifted before a ReLU, as in SqueezeNet, nor by two heads that are added, nor
# without a bias, as in MaxViT.
ONLY_TEMPERATURE = ('squeezenet1_0', 'maxvit_t', 'segmentation.lraspp_mobilenet_v3_large')


def timm_architecture(name):
    timm = import_module('timm')
    model = timm.create_model(name, num_classes=NUM_CLASSES)
    size = (96, 96)
    if model.default_cfg.get('fixed_input_size'):
        size = model.default_cfg['input_size'][1:]
    return Architecture(lambda: model, TIMM[name], size=size)


def torchvision_architecture(name):
    module, _, function = f'.{name}'.rpartition('.')
    options = {}
    if module:
        options = dict(weights_backbone=None)
    elif function == 'googlenet':
        options = dict(init_weights=False, aux_logits=False)
    build = getattr(import_module(f'torchvision.models{module}'), function)
    is_large = function.startswith(('vit', 'swin', 'maxvit'))
    return Architecture(
        lambda: build(weights=None, num_classes=NUM_CLASSES, **options),
        TORCHVISION[name],
        size=(224, 224) if is_large else (64, 64),
        are_maps=bool(module),
        folds_classes=name not in ONLY_TEMPERATURE,
    )


def smp_architecture(name):
    build = getattr(import_module('segmentation_models_pytorch'), name)
    encoder = 'resnet18'
    options = {}
    if name == 'DPT':
        encoder = 'tu-vit_tiny_patch16_224'
        options = dict(dynamic_img_size=True)
    return Architecture(
        lambda: build(encoder, encoder_weights=None, classes=NUM_CLASSES, **options),
        ['segmentation_head.head.4' if name == 'DPT' else 'segmentation_head.0'],
        size=(128, 128) if name == 'PAN' else (64, 64),
        are_maps=True,
    )


def segformer():
    library = import_module('transformers')
    return library.SegformerForSemanticSegmentation(
        library.SegformerConfig(
            num_labels=NUM_CLASSES,
            depths=[1] * 4,
            hidden_sizes=[8, 16, 24, 32],
            decoder_hidden_size=16,
        )
    )


# A small transformer.
SMALL = dict(
    hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
)  # fmt: skip


def vit():
    library = import_module('transformers')
    config = library.ViTConfig(num_labels=NUM_CLASSES, image_size=32, patch_size=8, **SMALL)
    return library.ViTForImageClassification(config)


def bert_tagger():
    library = import_module('transformers')
    config = library.BertConfig(num_labels=NUM_CLASSES, vocab_size=50, **SMALL)
    return library.BertForTokenClassification(config)


class ZeroShotCLIP(nn.Module):
    """CLIP with the prompts of its classes: an image's logits are scaled cosines."""

    def __init__(self):
        super().__init__()
        library = import_module('transformers')
        text = dict(vocab_size=50, eos_token_id=49, **SMALL)
        vision = dict(image_size=32, patch_size=8, **SMALL)
        config = library.CLIPConfig(text_config=text, vision_config=vision, projection_dim=8)
        self.clip = library.CLIPModel(config)
        self.register_buffer('prompts', torch.arange(NUM_CLASSES * 5).view(NUM_CLASSES, 5))

    def forward(self, pixels):
        return self.clip(input_ids=self.prompts, pixel_values=pixels).logits_per_image


def transformers_architecture(name):
    if name == 'SegFormer':
        return Architecture(
            segformer,
            ['decode_head.classifier'],
            are_maps=True,
            logits=lambda output: interpolate(output.logits, (64, 64), mode='bilinear'),
        )
    if name == 'BERT, tokens':
        return Architecture(
            bert_tagger,
            ['classifier'],
            size=(12,),
            are_maps=True,
            logits=lambda output: output.logits.movedim(-1, 1),
            inputs=lambda num_images: torch.randint(50, (num_images, 12)),
        )
    if name == 'CLIP, zero-shot':
        return Architecture(ZeroShotCLIP, [], size=(32, 32), folds_classes=False)
    return Architecture(vit, ['classifier'], size=(32, 32))


# MONAI's networks of two spatial dimensions: their arguments, and the layer.
MONAI = {
    'UNet': (dict(channels=(4, 8), strides=(2,)), ['model.2.conv']),
    # The last unit adds its input, which a norm and a PReLU have made, to its output.
    'UNet, num_res_units=2': (dict(channels=(4, 8), strides=(2,), num_res_units=2), []),
    'BasicUNet': (dict(features=(8, 8, 16, 16, 32, 8)), ['final_conv']),
    'BasicUNetPlusPlus': (dict(features=(8, 8, 16, 16, 32, 8)), ['final_conv_0_4']),
    'AttentionUnet': (dict(channels=(4, 8), strides=(2,)), ['model.2.conv']),
    'DynUNet': (
        dict(kernel_size=[3] * 3, strides=[1, 2, 2], upsample_kernel_size=[2] * 2,
             filters=[4, 8, 16]),
        ['output_block.conv.conv'],
    ),
    'SegResNet': (dict(init_filters=8), ['conv_final.2.conv']),
    'SegResNetDS': (dict(init_filters=8), ['up_layers.2.head']),
    'VNet': (dict(), ['out_tr.conv2']),
    'UNETR': (
        dict(img_size=(64, 64), feature_size=4, hidden_size=16, mlp_dim=16, num_heads=2),
        ['out.conv.conv'],
    ),
    'SwinUNETR': (dict(feature_size=12), ['out.conv.conv']),
    'HighResNet': (dict(), ['blocks.11.conv']),
    'FlexibleUNet': (dict(backbone='efficientnet-b0'), ['segmentation_head.0']),
    'DenseNet121': (dict(), ['class_layers.out']),
    'EfficientNetBN': (dict(model_name='efficientnet-b0', pretrained=False), ['_fc']),
    'SEResNet50': (dict(), ['last_linear']),
    'ViT': (
        dict(img_size=(64, 64), patch_size=(16, 16), hidden_size=16, mlp_dim=16, num_layers=1,
             num_heads=2, classification=True, post_activation=''),
        ['classification_head'],
    ),
}  # fmt: skip
MONAI_CLASSIFIERS = ('DenseNet121', 'EfficientNetBN', 'SEResNet50', 'ViT')
NAMED_CLASSES = ('EfficientNetBN', 'SEResNet50', 'ViT')


def monai_architecture(name):
    build = getattr(import_module('monai.networks.nets'), name.split(',')[0])
    options, layers = MONAI[name]
    channels = 1 if name == 'VNet' else 3
    classes = 'num_classes' if name in NAMED_CLASSES else 'out_channels'
    options = {**options, 'spatial_dims': 2, 'in_channels': channels, classes: NUM_CLASSES}
    return Architecture(
        lambda: build(**options),
        layers,
        are_maps=name not in MONAI_CLASSIFIERS,
        channels=channels,
        logits=first_entry if name in ('BasicUNetPlusPlus', 'ViT') else None,
        folds_classes=name != 'HighResNet',
    )


LIBRARIES = {
    'timm': (timm_architecture, TIMM),
    'torchvision': (torchvision_architecture, TORCHVISION),
    'segmentation_models_pytorch': (smp_architecture, SMP),
    'transformers': (
        transformers_architecture,
        ['ViT', 'SegFormer', 'BERT, tokens', 'CLIP, zero-shot'],
    ),
    'monai': (monai_architecture, MONAI),
}
CASES = [(library, name) for library, (_, names) in LIBRARIES.items() for name in names]
FEW = [
    ('timm', 'resnet18'),
    ('timm', 'deit_tiny_distilled_patch16_224'),
    ('timm', 'levit_128s'),
    ('torchvision', 'squeezenet1_0'),
    ('torchvision', 'segmentation.lraspp_mobilenet_v3_large'),
]


@torch.no_grad()
def draw_labels(model, inputs, logits):
    """Return classes that are as likely as the logits say, once these have a spread of 1.5."""
    outputs = torch.cat([find_logits(model(batch), logits) for batch in inputs.split(4)])
    centred = outputs - outputs.mean(dim=1, keepdim=True)
    probs = (1.5 * centred / centred.std()).softmax(dim=1)
    rows = probs.movedim(1, -1).flatten(0, -2)
    return torch.multinomial(rows, 1).view(probs.movedim(1, -1).shape[:-1])


def placement_text(calibrated):
    """Return where a scaling went, as a cell of the table."""
    if calibrated.folded_into:
        return ', '.join(f'`{name}`' for name in calibrated.folded_into)
    return f'attached: {calibrated.attached}'


@pytest.mark.filterwarnings('ignore')
@pytest.mark.parametrize(('library', 'name'), CASES)
def test_calibrate_architecture_folds_where_expected(library, name, request):
    tries_all = request.config.getoption('all_configs')
    if (library, name) not in FEW and not tries_all:
        pytest.skip('needs --all-configs')
    pytest.importorskip(library)
    torch.manual_seed(0)
    architecture = LIBRARIES[library][0](name)
    model = architecture.build().eval()
    for module in model.modules():  # Random weights would give logits too small to matter.
        if isinstance(module, nn.Linear) and module.out_features == NUM_CLASSES:
            nn.init.normal_(module.weight, std=0.3)
    num_images = 32  # Few have labels of one class alone.
    if architecture.are_maps:
        num_images = 8
    elif architecture.size == (224, 224) and not tries_all:
        num_images = 16
    if architecture.inputs is None:
        inputs = torch.randn(num_images, architecture.channels, *architecture.size)
    else:
        inputs = architecture.inputs(num_images)
    labels = draw_labels(model, inputs, architecture.logits)
    batches = list(zip(inputs.split(4), labels.split(4), strict=True))
    calibrated = mmcalib.calibrate(model, batches, method='temperature', logits=architecture.logits)
    if tries_all:
        by_class = mmcalib.calibrate(model, batches, method='vector', logits=architecture.logits)
        difference = max(calibrated.difference, by_class.difference)
        cells = [placement_text(calibrated), placement_text(by_class), f'{difference:.0e}']
        print(f'\n| {library} {name} | {" | ".join(cells)} |')
        assert by_class.folded_into == (architecture.layers if architecture.folds_classes else [])
    assert calibrated.folded_into == architecture.layers
    if architecture.layers:
        assert calibrated.model.state_dict().keys() == model.state_dict().keys()
