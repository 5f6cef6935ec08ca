"""Losses inside real heads of mmpretrain and mmseg, called the way they call their own."""

import pytest
import torch
import torch.nn.functional as F
from mmengine.registry import MODELS
from mmengine.structures import PixelData
from mmpretrain.models import LinearClsHead, Mixup
from mmpretrain.registry import MODELS as MMPRETRAIN_MODELS
from mmpretrain.structures import DataSample
from mmseg.models.decode_heads import FCNHead
from mmseg.registry import MODELS as MMSEG_MODELS
from mmseg.structures import SegDataSample

from mmcalib.losses import CombinedLoss, MDCALoss

close = torch.testing.assert_close
MBLS = dict(type='MarginLabelSmoothingLoss', margin=2.0, alpha=0.1)
TERMS = [dict(type='SoftmaxFocalLoss', gamma=3.0), dict(type='MDCALoss', loss_weight=5.0)]
MAPS = [dict(type='SVLSLoss'), dict(type='NACLLoss')]
ROWS = [
    MBLS,
    dict(type='CALSLoss', num_classes=4),
    dict(type='ACLSLoss', margin=1.0),
    dict(type='MDCALoss'),
    dict(type='L1ACELoss', binning='soft'),
    dict(type='CombinedLoss', losses=TERMS),
]


def test_registries_of_toolboxes_build_losses_of_the_root():
    for registry in (MMPRETRAIN_MODELS, MMSEG_MODELS, MODELS):
        assert registry.build(MBLS).margin == 2.0
        assert (MBLS['type'] in registry.module_dict) == (registry is MODELS)


def classifier(loss):
    torch.manual_seed(0)
    samples = [DataSample().set_gt_label(i % 4) for i in range(6)]
    return LinearClsHead(num_classes=4, in_channels=8, loss=loss), torch.randn(6, 8), samples


@pytest.mark.parametrize('loss', ROWS, ids=lambda loss: loss['type'])
def test_loss_in_a_classifier_equals_loss_of_its_logits(loss):
    head, features, samples = classifier(loss)
    value = head.loss((features,), samples)['loss']
    close(value, MODELS.build(loss)(head.fc(features), torch.arange(6) % 4))
    value.backward()
    assert head.fc.weight.grad.abs().sum() > 0


def test_loss_soft_targets_of_mixup_equals_loss_of_shares():
    head, features, samples = classifier(MBLS)
    inputs, score = Mixup(alpha=0.8).mix(features, torch.eye(4)[torch.arange(6) % 4])
    for sample, share in zip(samples, score, strict=True):
        sample.set_gt_score(share)
    value = head.loss((inputs,), samples)['loss']
    close(value, MODELS.build(MBLS)(head.fc(inputs), score))


def segmentor(loss, sampler=None):
    """Return a decode head, its logits for a random batch, the data samples, and their labels."""
    torch.manual_seed(0)
    label = torch.randint(4, (2, 1, 16, 16))
    label[:, :, :3] = 255
    head = FCNHead(
        in_channels=8,
        channels=8,
        num_classes=4,
        num_convs=1,
        dropout_ratio=0,
        align_corners=False,
        loss_decode=loss,
        sampler=sampler,
    )
    samples = [SegDataSample(gt_sem_seg=PixelData(data=x)) for x in label]
    return head, head([torch.randn(2, 8, 8, 8)]), samples, label[:, 0]


@pytest.mark.parametrize('loss', ROWS + MAPS, ids=lambda loss: loss['type'])
def test_loss_in_a_segmentor_equals_loss_of_upsampled_logits(loss):
    loss = loss | dict(loss_name='loss_x')
    head, logits, samples, label = segmentor(loss)
    losses = head.loss_by_feat(logits, samples)
    assert set(losses) == {'loss_x', 'acc_seg'}
    large = F.interpolate(logits, size=(16, 16), mode='bilinear', align_corners=False)
    # CombinedLoss passes on the ignored label of the call.
    options = {} if 'losses' in loss else dict(ignore_index=255)
    expected = MODELS.build(loss | options)(large, label, ignore_index=255)
    close(losses['loss_x'], expected)
    losses['loss_x'].backward()
    assert head.conv_seg.weight.grad.abs().sum() > 0


def test_combined_loss_in_a_segmentor_equals_list_of_losses():
    scaled = MBLS | dict(loss_name='loss_scaled', loss_weight=0.4)
    head, logits, samples, _ = segmentor([MBLS, scaled, *TERMS])
    losses = head.loss_by_feat(logits, samples)
    close(losses['loss_scaled'], 0.4 * losses['loss_mbls'])
    head, logits, samples, _ = segmentor(dict(type='CombinedLoss', losses=TERMS))
    combined = head.loss_by_feat(logits, samples)
    actual = sum(value for name, value in combined.items() if 'loss' in name)
    close(actual, losses['loss_fl'] + losses['loss_mdca'])


@pytest.mark.parametrize('thresh', [0.3, None])
def test_loss_hard_example_sampler_is_positive(thresh):
    sampler = dict(type='mmseg.OHEMPixelSampler', thresh=thresh, min_kept=20)
    head, logits, samples, _ = segmentor(MBLS, sampler=sampler)
    assert head.loss_by_feat(logits, samples)['loss_mbls'] > 0


def test_combined_loss_with_loss_of_a_toolbox_adds_both():
    loss = CombinedLoss([MMPRETRAIN_MODELS.build(dict(type='CrossEntropyLoss')), MDCALoss()])
    logits = torch.randn(6, 5)
    target = torch.arange(6) % 5
    expected = F.cross_entropy(logits, target) + MDCALoss()(logits, target)
    close(loss(logits, target, avg_factor=6), expected)
