"""One table of calibrations for both doors: a torch model with a loader, and a checkpoint.

A case is a network of random weights, images, and labels drawn from its logits at a temperature of
2.5. By function, its torch modules are calibrated with a loader; by command, a checkpoint of the
same network in a toolbox's config. All measured values must be equal, so a change of one door alone
fails.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import tiny_models  # noqa: F401 (It registers its networks.)
import torch
from mmengine.config import Config
from mmengine.dataset import BaseDataset
from mmengine.registry import DATASETS, MODELS, init_default_scope
from torch import nn

import mmcalib

SIZE = (8, 10)
TRUE_TEMPERATURE = 2.5


@dataclass(frozen=True)
class Case:
    """A model with its images, a method, and the expected result.

    Attributes:
        maps: Whether the network segments.
        num_classes: Number of logits; 1 before a sigmoid.
        several_labels: Whether an image may have several labels, one per logit.
        num_images: Number of images.
        method: Name of the method.
        images_per_group: Number of consecutive images that form a group; None to give no groups.
        are_frames: Whether neighbouring images are alike.
        labels: 'drawn' from the logits, all 'zero', or as 'predicted'.
        ignored: Share of the labels to ignore.
        constant_label: Label that no image has; None for none.
        folded: Whether a layer absorbs the scaling.
        refusal: Text of the error; None if there is none.
    """

    maps: bool = False
    num_classes: int = 4
    several_labels: bool = False
    num_images: int = 90
    method: str = 'temperature'
    images_per_group: int | None = 1
    are_frames: bool = False
    labels: str = 'drawn'
    ignored: float = 0.0
    constant_label: int | None = None
    folded: bool = True
    refusal: str | None = None


CASES = {
    'classifier_temperature': Case(),
    'classifier_vector': Case(method='vector', num_images=120),
    'classifier_matrix': Case(method='matrix', num_images=120),
    'classifier_ets': Case(method='ets', folded=False),
    'classifier_isotonic': Case(method='isotonic', num_images=150, folded=False),
    'classifier_groups': Case(images_per_group=5),
    'classifier_two_groups': Case(images_per_group=45),
    'classifier_auto': Case(method='auto', num_images=150),
    'classifier_frames': Case(images_per_group=None, are_frames=True, num_images=120),
    'classifier_auto_frames': Case(
        images_per_group=None, are_frames=True, num_images=120, method='auto'
    ),
    'segmentor_temperature': Case(maps=True, num_images=30),
    'segmentor_ignored_labels': Case(maps=True, num_images=30, ignored=0.3),
    'segmentor_vector': Case(maps=True, num_images=30, method='vector'),
    'segmentor_class_temperatures': Case(
        maps=True, num_images=30, method='class-temperatures', folded=False
    ),
    'segmentor_groups': Case(maps=True, num_images=30, images_per_group=3),
    'segmentor_frames': Case(maps=True, num_images=30, images_per_group=None, are_frames=True),
    'binary_segmentor_platt': Case(maps=True, num_classes=1, num_images=30, method='platt'),
    'binary_segmentor_beta': Case(
        maps=True, num_classes=1, num_images=30, method='beta', folded=False
    ),
    'several_labels_temperature': Case(several_labels=True, num_images=240),
    'several_labels_platt': Case(several_labels=True, num_images=240, method='platt'),
    'several_labels_beta': Case(
        several_labels=True, num_classes=2, num_images=240, method='beta', folded=False
    ),
    'several_labels_auto': Case(several_labels=True, num_images=240, method='auto'),
    'several_labels_constant': Case(several_labels=True, num_images=240, constant_label=2),
    'one_class_only': Case(labels='zero', refusal='all labels are 0'),
    'nothing_wrong': Case(labels='predicted', refusal='no prediction is wrong'),
}


@dataclass
class Outcome:
    """The result of a calibration by function or by command.

    Attributes:
        record: Record of the calibration.
        text: Printed table and sentences.
        predictions: Probabilities of the calibrated model for the images.
    """

    record: dict
    text: str
    predictions: torch.Tensor


@DATASETS.register_module(force=True)
class StoredImages(BaseDataset):
    """Images and labels of a file, for either toolbox."""

    def __init__(self, file, **options):
        self.file = file
        super().__init__(**options)

    def load_data_list(self):
        stored = np.load(self.file)
        samples = []
        for index, (image, label) in enumerate(
            zip(stored['images'], stored['labels'], strict=True)
        ):
            group = index // int(stored['images_per_group'])
            sample = dict(
                img=image.transpose(1, 2, 0),
                img_path=f'scan{group}_{index}.png',
                img_shape=SIZE,
                ori_shape=SIZE,
            )
            if label.ndim == 2:
                samples.append(sample | dict(gt_seg_map=label, seg_fields=['gt_seg_map']))
            elif label.ndim == 1:
                samples.append(sample | dict(gt_label=np.flatnonzero(label)))
            else:
                samples.append(sample | dict(gt_label=int(label)))
        return samples


class TorchNetwork(nn.Module):
    """A toolbox's model as any torch model: from images to logits."""

    def __init__(self, model, maps):
        super().__init__()
        self.model = model
        self.maps = maps

    def forward(self, inputs):
        logits = self.model(inputs, mode='tensor')
        if not self.maps:
            return logits
        return nn.functional.interpolate(logits, SIZE, mode='bilinear', align_corners=False)


def case_config(case: Case) -> Config:
    """Return the config of a case, whose images are in ``data.npz``."""
    scope = 'mmseg' if case.maps else 'mmpretrain'
    if case.maps:
        model = dict(
            type='EncoderDecoder',
            data_preprocessor=dict(type='SegDataPreProcessor', size=SIZE, seg_pad_val=255),
            backbone=dict(type='TinyFeatures'),
            decode_head=dict(
                type='FCNHead', in_channels=8, channels=8, num_convs=1, concat_input=False,
                num_classes=max(case.num_classes, 2), out_channels=case.num_classes,
                norm_cfg=dict(type='BN'), align_corners=False, dropout_ratio=0,
                loss_decode=dict(type='CrossEntropyLoss', use_sigmoid=case.num_classes == 1),
            ),
            test_cfg=dict(mode='whole'),
        )  # fmt: skip
        if case.num_classes == 1:
            model['decode_head']['threshold'] = 0.5
    else:
        kind = 'MultiLabelLinearClsHead' if case.several_labels else 'LinearClsHead'
        head = dict(type=kind, num_classes=case.num_classes, in_channels=8)
        model = dict(
            type='ImageClassifier',
            backbone=dict(type='TinyFeatures', form='vector'),
            head=head,
        )
    pack = 'PackSegInputs' if case.maps else 'PackInputs'
    classes = [f'class {index}' for index in range(max(case.num_classes, 2))]
    dataset = dict(
        type='StoredImages', file='data.npz', pipeline=[dict(type=pack)],
        metainfo=dict(classes=classes),
    )  # fmt: skip
    loader = dict(
        batch_size=16, num_workers=0, dataset=dataset,
        sampler=dict(type='DefaultSampler', shuffle=False),
    )  # fmt: skip
    return Config(
        dict(
            default_scope=scope,
            custom_imports=dict(imports=['mmcalib', 'tiny_models', 'calibration_cases']),
            model=model,
            val_dataloader=loader,
            val_cfg=dict(type='ValLoop'),
            val_evaluator=[],
        )
    )


def write_case(case: Case) -> nn.Module:
    """Write ``config.py``, ``data.npz`` and ``model.pth``, and return the model."""
    config = case_config(case)
    init_default_scope(config.default_scope)
    torch.manual_seed(0)
    model = MODELS.build(config.copy().model).eval()
    for name, parameter in model.named_parameters():
        std = 0.7 if 'head' in name else 0.5
        nn.init.normal_(parameter, std=std if parameter.ndim > 1 else 0.1)
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(case.num_images, 3, *SIZE, generator=generator)
    if case.are_frames:
        walk = torch.randn(case.num_images, 3, *SIZE, generator=generator).cumsum(dim=0)
        images = walk / walk.std()
    layer = model.decode_head.conv_seg if case.maps else model.head.fc
    network = TorchNetwork(model, case.maps)
    with torch.no_grad():
        layer.bias -= network(images).movedim(1, -1).flatten(0, -2).mean(dim=0)
        # Scores in float32 keep logits up to 87 below the highest, and up to 17 before a sigmoid.
        has_sigmoids = case.several_labels or case.num_classes == 1
        scale = (15 if has_sigmoids else 30) / network(images).abs().max()
        layer.weight *= scale
        layer.bias *= scale
        logits = network(images)
    labels = draw_labels(case, logits, generator)
    np.savez(
        'data.npz',
        images=images.numpy(),
        labels=labels.numpy(),
        images_per_group=case.images_per_group or 1,
    )
    config.dump('config.py')
    torch.save({'state_dict': model.state_dict(), 'meta': {}}, 'model.pth')
    return model


def draw_labels(case: Case, logits: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return the labels of a case, drawn from the logits at the true temperature."""
    if case.labels == 'zero':
        return torch.zeros_like(logits.argmax(dim=1))
    if case.labels == 'predicted':
        return logits.argmax(dim=1)
    if case.several_labels or case.num_classes == 1:
        probs = (logits / TRUE_TEMPERATURE).sigmoid()
        labels = (torch.rand(probs.shape, generator=generator) < probs).long()
        if case.constant_label is not None:
            labels[:, case.constant_label] = 0
        if not case.several_labels:
            labels = labels[:, 0]
    else:
        true_logits = logits / TRUE_TEMPERATURE
        if case.are_frames:  # The errors of neighbouring images are alike.
            walk = torch.randn(case.num_images, case.num_classes, generator=generator).cumsum(dim=0)
            error = 2 * walk / walk.std()
            true_logits = true_logits + error.view(*error.shape, *[1] * (logits.ndim - 2))
        probs = true_logits.movedim(1, -1).softmax(dim=-1)
        labels = probs.flatten(0, -2).multinomial(1, generator=generator).view(probs.shape[:-1])
    if case.ignored > 0:
        is_ignored = torch.rand(labels.shape, generator=generator) < case.ignored
        labels = labels.masked_fill(is_ignored, 255)
    return labels.byte() if case.maps else labels


def calibrate_by_function(case: Case) -> Outcome:
    """Calibrate the network as any torch model, in Python."""
    network = TorchNetwork(write_case(case), case.maps)
    stored = np.load('data.npz')
    images = torch.from_numpy(stored['images'])
    labels = torch.from_numpy(stored['labels']).long()
    batches = list(zip(images.split(16), labels.split(16), strict=True))
    groups = None
    if case.images_per_group is not None:
        groups = [index // case.images_per_group for index in range(case.num_images)]
    calibrated = mmcalib.calibrate(
        network,
        batches,
        method=case.method,
        groups=groups,
        ignore_index=255 if case.maps else None,
    )
    with torch.no_grad():
        logits = calibrated.model(images)
    return Outcome(calibrated.to_dict(), str(calibrated), probabilities(case, logits))


def calibrate_by_command(case: Case, run: Callable) -> Outcome:
    """Calibrate a checkpoint of the same network on the command line."""
    write_case(case)
    arguments = ['--out', 'out.pth', '--method', case.method, '--work-dir', 'work', '--overwrite']
    if case.images_per_group is not None:
        arguments += ['--groups', 'scan([0-9]+)_']
    code = 0 if case.refusal is None else 2
    text = run('calibrate.py', 'config.py', 'model.pth', *arguments, code=code)
    if code:
        return Outcome({}, text, torch.zeros(0))
    content = torch.load('out.pth', weights_only=False)
    attached = content['meta']['calibration']['attached']
    config = Config.fromfile('out.py' if attached else 'config.py')
    init_default_scope(config.default_scope)
    model = MODELS.build(config.model).eval()
    model.load_state_dict(content['state_dict'])
    dataset = DATASETS.build(config.val_dataloader.dataset)
    scores = []
    with torch.no_grad():
        for item in dataset:
            batch = dict(inputs=[item['inputs']], data_samples=[item['data_samples']])
            if not case.maps:
                batch['inputs'] = torch.stack(batch['inputs'])
            (sample,) = model.val_step(batch)
            scores.append(sample.seg_logits.data if case.maps else sample.pred_score)
    scores = torch.stack(scores)
    if case.maps and case.num_classes > 1:
        scores = scores.softmax(dim=1)
    return Outcome(content['meta']['calibration'], text, scores)


def probabilities(case: Case, logits: torch.Tensor) -> torch.Tensor:
    """Return the probabilities of logits as a toolbox returns them."""
    if case.several_labels or case.num_classes == 1:
        return logits.sigmoid()
    return logits.softmax(dim=1)
