"""Losses inside real heads of mmpretrain and mmseg, called the way they call their own."""

import pytest
import torch
import torch.nn.functional as F
from mmengine.registry import MODELS
from mmengine.structures import PixelData
from mmpretrain.models import LinearClsHead, Mixup
from mmpretrain.registry import MODELS as OF_MMPRETRAIN
from mmpretrain.structures import DataSample
from mmseg.models.decode_heads import FCNHead
from mmseg.registry import MODELS as OF_MMSEG
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


def test_names_are_of_no_toolbox():
    for registry in (OF_MMPRETRAIN, OF_MMSEG, MODELS):
        assert registry.build(MBLS).margin == 2.0
        assert (MBLS['type'] in registry.module_dict) == (registry is MODELS)


def classifier(loss):
    torch.manual_seed(0)
    samples = [DataSample().set_gt_label(i % 4) for i in range(6)]
    return LinearClsHead(num_classes=4, in_channels=8, loss=loss), torch.randn(6, 8), samples


@pytest.mark.parametrize('loss', ROWS, ids=lambda loss: loss['type'])
def test_in_a_classifier(loss):
    head, features, samples = classifier(loss)
    value = head.loss((features,), samples)['loss']
    close(value, MODELS.build(loss)(head.fc(features), torch.arange(6) % 4))
    value.backward()
    assert head.fc.weight.grad.abs().sum() > 0


def test_soft_targets_of_mixup():
    head, features, samples = classifier(MBLS)
    inputs, score = Mixup(alpha=0.8).mix(features, torch.eye(4)[torch.arange(6) % 4])
    for sample, share in zip(samples, score, strict=True):
        sample.set_gt_score(share)
    value = head.loss((inputs,), samples)['loss']
    close(value, MODELS.build(MBLS)(head.fc(inputs), score))


def segmentor(loss, **options):
    torch.manual_seed(0)
    label = torch.randint(4, (2, 1, 16, 16))
    label[:, :, :3] = 255
    options = dict(num_convs=1, dropout_ratio=0, align_corners=False) | options
    head = FCNHead(in_channels=8, channels=8, num_classes=4, loss_decode=loss, **options)
    samples = [SegDataSample(gt_sem_seg=PixelData(data=x)) for x in label]
    return head, head([torch.randn(2, 8, 8, 8)]), samples, label[:, 0]


@pytest.mark.parametrize('loss', ROWS + MAPS, ids=lambda loss: loss['type'])
def test_in_a_segmentor(loss):
    loss = loss | dict(loss_name='loss_x')
    head, logits, samples, label = segmentor(loss)
    found = head.loss_by_feat(logits, samples)
    assert set(found) == {'loss_x', 'acc_seg'}
    large = F.interpolate(logits, size=(16, 16), mode='bilinear', align_corners=False)
    # A sum hands on what a head says of ignored labels.
    own = {} if 'losses' in loss else dict(ignore_index=255)
    close(found['loss_x'], MODELS.build(loss | own)(large, label, ignore_index=255))
    found['loss_x'].backward()
    assert head.conv_seg.weight.grad.abs().sum() > 0


def test_several_losses_add_up():
    again = MBLS | dict(loss_name='loss_again', loss_weight=0.4)
    head, logits, samples, _ = segmentor([MBLS, again, *TERMS])
    found = head.loss_by_feat(logits, samples)
    close(found['loss_again'], 0.4 * found['loss_mbls'])
    head, logits, samples, _ = segmentor(dict(type='CombinedLoss', losses=TERMS))
    both = head.loss_by_feat(logits, samples)
    close(sum(v for k, v in both.items() if 'loss' in k), found['loss_fl'] + found['loss_mdca'])


@pytest.mark.parametrize('thresh', [0.3, None])
def test_hard_example_sampler(thresh):
    sampler = dict(type='mmseg.OHEMPixelSampler', thresh=thresh, min_kept=20)
    head, logits, samples, _ = segmentor(MBLS, sampler=sampler)
    assert head.loss_by_feat(logits, samples)['loss_mbls'] > 0


def test_the_toolboxes_own_losses_may_be_terms():
    loss = CombinedLoss([OF_MMPRETRAIN.build(dict(type='CrossEntropyLoss')), MDCALoss()])
    logits, target = torch.randn(6, 5), torch.arange(6) % 5
    value = F.cross_entropy(logits, target) + MDCALoss()(logits, target)
    close(loss(logits, target, avg_factor=6), value)
