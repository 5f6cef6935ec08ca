"""Classifiers with several labels are judged by what their head decides."""

import pytest
import torch
from tiny_models import classifier, images

from mmcalib.posthoc.attached_model import evaluated_sample


@pytest.mark.parametrize('options', [dict(thr=0.3), dict(thr=None, topk=2)])
def test_the_decision_is_the_heads(options):
    model = classifier(
        dict(type='MultiLabelLinearClsHead', num_classes=5, in_channels=8, **options)
    )
    above = 0
    for batch in images(4):
        for sample in model.test_step(batch):
            sample.gt_label = torch.tensor([1, 3])
            found = evaluated_sample(model, sample)
            expected = [int(k in sample.pred_label) for k in range(5)]
            assert found['pred_sem_seg']['data'].flatten().tolist() == expected
            assert found['gt_sem_seg']['data'].flatten().tolist() == [0, 1, 0, 1, 0]
            assert torch.equal(found['seg_logits']['data'].flatten(), sample.pred_score)
            above += sum(expected) - int((sample.pred_score > 0.5).sum())
    assert above != 0
