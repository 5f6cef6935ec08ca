"""Sums of losses, in the heads of either toolbox and under a schedule."""

import pytest
import torch
from mmengine.registry import MODELS

from mmcalib.losses import CombinedLoss, MDCALoss, SoftmaxFocalLoss

TERMS = [dict(type='SoftmaxFocalLoss', gamma=3.0), dict(type='MDCALoss', loss_weight=5.0)]


def expected(logits, target, **options):
    focal = SoftmaxFocalLoss(gamma=3.0, **options)(logits, target)
    return focal + MDCALoss(loss_weight=5.0, **options)(logits, target)


def test_in_a_head_of_mmpretrain():
    heads = pytest.importorskip('mmpretrain.models.heads')
    structures = pytest.importorskip('mmpretrain.structures')
    torch.manual_seed(0)
    head = heads.LinearClsHead(
        num_classes=5, in_channels=8, loss=dict(type='CombinedLoss', losses=TERMS)
    )
    samples = [structures.DataSample().set_gt_label(i % 5) for i in range(6)]
    features, target = torch.randn(6, 8), torch.arange(6) % 5
    value = head.loss((features,), samples)['loss']
    torch.testing.assert_close(value, expected(head.fc(features), target))
    value.backward()
    assert head.fc.weight.grad.abs().sum() > 0


@pytest.mark.parametrize(
    'loss',
    [
        dict(type='MarginLabelSmoothingLoss', margin=1.0),
        dict(type='ConfidencePenaltyLoss'),
        dict(type='NACLLoss'),
        dict(type='ACLSLoss', margin=1.0),
        dict(type='CALSLoss', num_classes=4, margin=1.0),
    ],
    ids=lambda loss: loss['type'],
)
def test_class_weights_of_0_leave_the_penalty_beside_any_base(loss):
    logits, target = 4 * torch.randn(2, 4, 5, 6), torch.randint(4, (2, 5, 6))
    logits.requires_grad_()
    target[0, :2] = 255
    options = dict(ignore_index=255)
    base = dict(type='BrierLoss')
    both = MODELS.build(
        dict(type='CombinedLoss', losses=[base, loss | dict(class_weight=[0.0] * 4)])
    )
    penalty = MODELS.build(loss)(logits, target, **options) - torch.nn.functional.cross_entropy(
        logits, target, **options
    )
    assert penalty.abs() > 1e-3
    expected = MODELS.build(base)(logits, target, **options) + penalty
    value = both(logits, target, **options)
    torch.testing.assert_close(value, expected, rtol=1e-4, atol=1e-5)
    gradients = [torch.autograd.grad(x, logits)[0] for x in (value, expected)]
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-6)


def test_in_a_head_of_mmseg():
    heads = pytest.importorskip('mmseg.models.decode_heads')
    data = pytest.importorskip('mmengine.structures')
    structures = pytest.importorskip('mmseg.structures')
    torch.manual_seed(0)
    label = torch.randint(4, (1, 8, 8))
    label[:, :3] = 255
    samples = [structures.SegDataSample(gt_sem_seg=data.PixelData(data=label))] * 2
    values = []
    for losses in ([dict(type='CombinedLoss', losses=TERMS)], TERMS):
        head = heads.FCNHead(in_channels=8, channels=4, num_classes=4, loss_decode=losses)
        logits = torch.randn(2, 4, 8, 8, generator=torch.Generator().manual_seed(1))
        found = head.loss_by_feat(logits, samples)
        values.append(sum(value for name, value in found.items() if 'loss' in name))
    torch.testing.assert_close(values[0], values[1])
    target = torch.cat([label, label])
    torch.testing.assert_close(values[0], expected(logits, target, ignore_index=255))


def test_the_toolboxes_own_losses_may_be_terms():
    registry = pytest.importorskip('mmpretrain.registry').MODELS
    pytest.importorskip('mmpretrain.models')
    loss = CombinedLoss([registry.build(dict(type='CrossEntropyLoss')), MDCALoss()])
    logits, target = torch.randn(6, 5), torch.arange(6) % 5
    value = torch.nn.functional.cross_entropy(logits, target) + MDCALoss()(logits, target)
    torch.testing.assert_close(loss(logits, target, avg_factor=6), value)
