"""Tiny models of both toolboxes with batches for them; their logits are large enough to matter."""

import pytest
import torch
from mmengine.config import ConfigDict
from mmengine.model import BaseModule
from mmengine.registry import MODELS
from mmpretrain.models import ImageClassifier
from torch import nn

from mmcalib.calibration import draw
from mmcalib.openmmlab.runner_source import RunnerSource


@MODELS.register_module(force=True)
class TinyFeatures(BaseModule):
    """Two feature maps, at a half of the size of the image, in the forms that heads take."""

    def __init__(self, channels=8, form='map'):
        super().__init__()
        self.conv = nn.Conv2d(3, channels, 3, stride=2, padding=1)
        self.form = form

    def forward(self, x):
        x = self.conv(x).tanh() * 3
        if self.form == 'vector':
            return (x.amax(dim=(2, 3)),)
        if self.form == 'tokens':
            return ([x.amax(dim=(2, 3)), x.amin(dim=(2, 3))],)
        return x, x


@MODELS.register_module(force=True)
class RoutedHead(nn.Module):
    """A linear head with one layer for dark and one for bright images, as a router has."""

    def __new__(cls, limit, **options):
        head = MODELS.build(dict(type='mmpretrain.LinearClsHead', **options))
        head.bright = nn.Linear(head.in_channels, head.num_classes)
        forward = head.forward

        def forward_routed(feats):
            features = feats[-1]
            bright = (features.mean(dim=1) > limit)[:, None]
            if not bright.any():
                return forward(feats)
            return torch.where(bright, head.bright(features) * 3, forward(feats))

        head.forward = forward_routed
        return head


@MODELS.register_module(force=True)
class RenamingClassifier(ImageClassifier):
    """A classifier that renames all keys of its state dict, as mmpretrain's of timm does."""

    def __init__(self, **options):
        super().__init__(**options)
        self._register_state_dict_hook(self._strip)
        self._register_load_state_dict_pre_hook(self._join)

    @staticmethod
    def _strip(model, state, prefix, metadata):
        return {key.removeprefix('head.'): value for key, value in state.items()}

    @staticmethod
    def _join(state, prefix, *others):
        for key in list(state):
            if not key.startswith('backbone.'):
                state[f'head.{key}'] = state.pop(key)


class BatchList(list):
    """A loader made of a list of batches; its dataset has the length of all."""

    @property
    def dataset(self):
        return [sample for batch in self for sample in batch['data_samples']]


def draw_predictions(model, loader, *, from_scores=False, **options):
    """Return predictions drawn from a loader with the logits behind them."""
    source = RunnerSource(model, loader)
    source.from_scores = from_scores
    return draw.draw_predictions(source.read(model, 'Reading'), source, **options)


def classifier(head, form='vector', seed=0):
    models = pytest.importorskip('mmpretrain.models')
    torch.manual_seed(seed)
    model = models.ImageClassifier(backbone=TinyFeatures(form=form), head=head)
    model.head.init_cfg = None
    for parameter in model.head.parameters():
        nn.init.normal_(parameter, std=0.7)
    return model.eval()


def images(n=12, batch_size=5, num_classes=5, seed=0):
    structures = pytest.importorskip('mmpretrain.structures')
    generator = torch.Generator().manual_seed(seed)
    samples = []
    for _ in range(n):
        image = torch.randn(3, 10, 10, generator=generator)
        label = int(torch.randint(num_classes, (), generator=generator))
        samples.append((image, structures.DataSample().set_gt_label(label)))
    return _batches(samples, batch_size, stack=True)


def segmentor(decode_head, *, seed=0, **options):
    pytest.importorskip('mmseg.models')
    torch.manual_seed(seed)
    config = dict(
        type='mmseg.EncoderDecoder',
        data_preprocessor=dict(type='mmseg.SegDataPreProcessor', size=(16, 20), seg_pad_val=255),
        backbone=dict(type='TinyFeatures'),
        decode_head=decode_head,
        test_cfg=dict(mode='whole'),
    )
    model = MODELS.build(ConfigDict(config | options))
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.5)
    return model.eval()


def fcn_head(num_classes=4, **options):
    return mmseg_head('mmseg.FCNHead', num_convs=1, num_classes=num_classes, **options)


def mmseg_head(kind, **options):
    head = dict(type=kind, in_channels=8, channels=8, num_classes=4, norm_cfg=dict(type='BN'))
    return head | options


def scenes(n=6, batch_size=2, num_classes=4, seed=0, size=(13, 17)):
    structures = pytest.importorskip('mmseg.structures')
    from mmengine.structures import PixelData

    generator = torch.Generator().manual_seed(seed)
    samples = []
    for number in range(n):
        label = torch.randint(num_classes, (1, *size), generator=generator)
        label[:, : number % 3] = 255
        sample = structures.SegDataSample(gt_sem_seg=PixelData(data=label))
        sample.set_metainfo(dict(ori_shape=size, img_shape=size, img_path=f'{number}.jpg'))
        samples.append((torch.randn(3, *size, generator=generator), sample))
    return _batches(samples, batch_size, stack=False)


def _batches(samples, batch_size, stack):
    batches = BatchList()
    for start in range(0, len(samples), batch_size):
        inputs, data_samples = zip(*samples[start : start + batch_size], strict=True)
        inputs = torch.stack(inputs) if stack else list(inputs)
        batches.append({'inputs': inputs, 'data_samples': list(data_samples)})
    return batches
