"""Samples without labels, and those of several, which are judged by what their head decides."""

import pytest
import torch
from samples import as_segmented, classified, segmented
from tiny_models import classifier, images

from mmcalib.openmmlab.samples import read_sample
from mmcalib.predictions.objects import map_confidence


def binary():
    prob = torch.tensor([[[0.9, 0.2], [0.6, 0.1]]])
    return as_segmented(prob, (prob[0] > 0.7).long(), torch.zeros(2, 2))


@pytest.mark.parametrize('sample', [*classified(3), *segmented(3), binary()])
def test_without_labels_the_confidences_are_the_same(sample):
    sample = {key: value for key, value in sample.items() if not key.startswith('gt')}
    predictions = read_sample(sample, 'image.jpg', labelled=False)
    if 'pred_score' in sample:
        predicted = sample['pred_score'].argmax()
        assert torch.equal(predictions.probs[0], sample['pred_score'])
    else:
        predicted = sample['pred_sem_seg']['data'][0]
        logits = sample['seg_logits']['data']
        probs = torch.cat([1 - logits, logits]) if len(logits) == 1 else logits.softmax(0)
        expected = probs.gather(0, predicted[None])[0]
        torch.testing.assert_close(map_confidence(predictions), expected)
    assert torch.equal(predictions.predicted[0], predicted)
    assert predictions.labels is None


@pytest.mark.parametrize('options', [dict(thr=0.3), dict(thr=None, topk=2)])
def test_the_decision_is_the_heads(options):
    head = dict(type='MultiLabelLinearClsHead', num_classes=5, in_channels=8, **options)
    model, above = classifier(head), 0
    for sample in model.test_step(images(4)[0]):
        sample.gt_label = torch.tensor([1, 3])
        predictions = read_sample(sample.to_dict(), 'image.jpg', several_labels=True)
        expected = [int(k in sample.pred_label) for k in range(5)]
        assert predictions.predicted[0].tolist() == expected
        assert predictions.labels[0].tolist() == [0, 1, 0, 1, 0]
        assert torch.equal(predictions.probs[0, 0], sample.pred_score)
        above += sum(expected) - int((sample.pred_score > 0.5).sum())
    assert above != 0
