"""The loss inside real heads of mmpretrain and mmseg, called the way they call their own."""

import pytest
import torch
from mmengine.registry import MODELS

from mmcalib.losses import MarginLabelSmoothingLoss

LOSS = dict(type='MarginLabelSmoothingLoss', margin=2.0, alpha=0.1)


def test_names_are_of_no_toolbox():
    for toolbox in ('mmpretrain', 'mmseg'):
        registry = pytest.importorskip(f'{toolbox}.registry').MODELS
        pytest.importorskip(f'{toolbox}.models')
        assert 'MarginLabelSmoothingLoss' not in registry.module_dict
        assert registry.build(LOSS).margin == 2.0
    assert MODELS.build(LOSS).alpha == 0.1


ROWS = [
    dict(type='BrierLoss'),
    dict(type='DualFocalLoss'),
    dict(type='InverseFocalLoss'),
    dict(type='BSCELoss'),
    dict(type='CALSLoss', num_classes=5),
    dict(type='ACLSLoss', margin=1.0),
    dict(type='AdaFocalLoss'),
]
BATCHES = [
    dict(type='MDCALoss', loss_name='loss_x'),
    dict(type='L1ACELoss', loss_name='loss_x', binning='soft'),
]
MAPS = [dict(type='SVLSLoss'), dict(type='NACLLoss')]


class TestMmpretrain:
    @pytest.fixture
    def head(self):
        heads = pytest.importorskip('mmpretrain.models.heads')
        torch.manual_seed(0)
        return heads.LinearClsHead(num_classes=5, in_channels=8, loss=LOSS)

    @staticmethod
    def samples(n, soft=False):
        structures = pytest.importorskip('mmpretrain.structures')
        samples = [structures.DataSample().set_gt_label(i % 5) for i in range(n)]
        if soft:
            for sample in samples:
                sample.set_gt_score(torch.softmax(torch.randn(5), 0))
        return samples

    @pytest.mark.parametrize('soft', [False, True])
    def test_loss_of_a_head(self, head, soft):
        features, samples = torch.randn(6, 8), self.samples(6, soft)
        value = head.loss((features,), samples)['loss']
        key = 'gt_score' if soft else 'gt_label'
        target = torch.stack([sample.get(key) for sample in samples])
        expected = MarginLabelSmoothingLoss(margin=2.0)(
            head.fc(features), target if soft else target[:, 0]
        )
        torch.testing.assert_close(value, expected)
        value.backward()
        assert head.fc.weight.grad.abs().sum() > 0

    @pytest.mark.parametrize('loss', ROWS + BATCHES, ids=lambda loss: loss['type'])
    def test_every_loss_in_a_head(self, loss):
        heads = pytest.importorskip('mmpretrain.models.heads')
        head = heads.LinearClsHead(num_classes=5, in_channels=8, loss=loss)
        features, samples = torch.randn(6, 8), self.samples(6)
        value = head.loss((features,), samples)['loss']
        expected = MODELS.build(loss)(head.fc(features), torch.arange(6) % 5)
        torch.testing.assert_close(value, expected)
        value.backward()
        assert head.fc.weight.grad.abs().sum() > 0

    def test_mixup_makes_soft_targets_that_fit(self, head):
        mixup = pytest.importorskip('mmpretrain.models').Mixup(alpha=0.8)
        inputs, score = mixup.mix(torch.randn(6, 8), torch.eye(5)[torch.arange(6) % 5])
        samples = self.samples(6)
        for sample, share in zip(samples, score, strict=True):
            sample.set_gt_score(share)
        assert head.loss((inputs,), samples)['loss'].isfinite()

    def test_evaluator_beside_accuracy(self, head):
        metrics = pytest.importorskip('mmpretrain.evaluation')
        evaluator_module = pytest.importorskip('mmengine.evaluator')
        from mmcalib.metrics import CalibrationMetric

        evaluator = evaluator_module.Evaluator([metrics.Accuracy(), CalibrationMetric()])
        for _ in range(3):
            evaluator.process(head.predict((torch.randn(4, 8),), self.samples(4)))
        values = evaluator.evaluate(12)
        assert set(values) == {'accuracy/top1', 'calibration/ECE', 'calibration/AECE'}
        assert 0 < values['calibration/ECE'] < 100


class TestMmseg:
    def samples(self, n, size=(16, 16)):
        structures = pytest.importorskip('mmseg.structures')
        data = pytest.importorskip('mmengine.structures')
        samples = []
        for _ in range(n):
            label = torch.randint(4, (1, *size))
            label[:, :3] = 255
            sample = structures.SegDataSample(
                gt_sem_seg=data.PixelData(data=label),
                metainfo=dict(img_shape=size, ori_shape=size, img_path='a.jpg'),
            )
            samples.append(sample)
        return samples

    def head(self, loss=LOSS, **options):
        heads = pytest.importorskip('mmseg.models.decode_heads')
        pytest.importorskip('mmseg.models')
        torch.manual_seed(0)
        options = dict(num_convs=1, dropout_ratio=0, align_corners=False) | options
        return heads.FCNHead(in_channels=8, channels=8, num_classes=4, loss_decode=loss, **options)

    def test_loss_of_a_head(self):
        head, samples, features = self.head(), self.samples(2), torch.randn(2, 8, 8, 8)
        losses = head.loss_by_feat(head([features]), samples)
        assert set(losses) == {'loss_mbls', 'acc_seg'}
        logits = torch.nn.functional.interpolate(
            head([features]), size=(16, 16), mode='bilinear', align_corners=False
        )
        target = torch.cat([sample.gt_sem_seg.data for sample in samples])
        expected = MarginLabelSmoothingLoss(margin=2.0, ignore_index=255)(logits, target)
        torch.testing.assert_close(losses['loss_mbls'], expected)
        losses['loss_mbls'].backward()
        assert head.conv_seg.weight.grad.abs().sum() > 0

    @pytest.mark.parametrize('loss', ROWS + BATCHES + MAPS, ids=lambda loss: loss['type'])
    def test_every_loss_in_a_head(self, loss):
        loss = loss | dict(loss_name='loss_x')
        if 'num_classes' in loss:
            loss['num_classes'] = 4
        head, samples, features = self.head(loss), self.samples(2), torch.randn(2, 8, 16, 16)
        losses = head.loss_by_feat(head([features]), samples)
        target = torch.cat([sample.gt_sem_seg.data for sample in samples])
        expected = MODELS.build(loss | dict(ignore_index=255))(head([features]), target)
        torch.testing.assert_close(losses['loss_x'], expected)
        losses['loss_x'].backward()
        assert head.conv_seg.weight.grad.abs().sum() > 0

    def test_two_losses_add_up(self):
        second = LOSS | dict(loss_name='loss_again', loss_weight=0.4)
        head, samples = self.head([LOSS, second]), self.samples(2)
        losses = head.loss_by_feat(head([torch.randn(2, 8, 8, 8)]), samples)
        torch.testing.assert_close(losses['loss_again'], 0.4 * losses['loss_mbls'])

    @pytest.mark.parametrize('thresh', [0.3, None])
    def test_hard_example_sampler(self, thresh):
        sampler = dict(type='mmseg.OHEMPixelSampler', thresh=thresh, min_kept=20)
        head = self.head(sampler=sampler)
        losses = head.loss_by_feat(head([torch.randn(2, 8, 8, 8)]), self.samples(2))
        assert losses['loss_mbls'] > 0
