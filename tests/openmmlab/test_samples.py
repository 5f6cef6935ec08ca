"""The reader of data samples: labels of unknown classes, several labels, logits."""

import pytest
import torch
from samples import classified, segmented

from mmcalib.openmmlab.samples import read_sample, with_logits


def several_labels(**fields):
    return {'pred_score': torch.tensor([0.9, 0.4, 0.2]), **fields}


def test_read_sample_classified_has_probabilities():
    for sample in classified(5):
        predictions = read_sample(sample, 'a.png')
        assert torch.equal(predictions.probs[0], sample['pred_score'])
        assert predictions.predicted.tolist() == [int(sample['pred_score'].argmax())]
        assert predictions.labels.tolist() == sample['gt_label'].tolist()


def test_read_sample_segmented_has_logits():
    for sample in segmented(3):
        predictions = read_sample(sample, 'a.png')
        labels = sample['gt_sem_seg']['data']
        assert torch.equal(predictions.logits[0], sample['seg_logits']['data'])
        assert torch.equal(predictions.labels, torch.where(labels == 255, -1, labels))


def test_read_sample_ood_labels_follow_the_classes():
    (sample,) = classified(1)
    for label, expected in ((-1, 7), (-2, 8), (3, 3), (5, 7)):
        sample['gt_label'] = torch.tensor([label])
        assert read_sample(sample, 'a.png', ood_index=5).labels.tolist() == [expected]
    (sample,) = segmented(1)
    sample['gt_sem_seg']['data'][0, 0, :2] = torch.tensor([255, 9])
    predictions = read_sample(sample, 'a.png', ood_index=9)
    assert predictions.labels[0, 0, :2].tolist() == [-1, 5]


@pytest.mark.parametrize(
    'fields',
    [
        dict(gt_score=torch.tensor([1.0, 0.0, -1.0]), pred_label=torch.tensor([0, 1])),
        dict(gt_label=torch.tensor([0])),
    ],
)
def test_read_sample_several_labels_have_an_axis(fields):
    predictions = read_sample(several_labels(**fields), 'a.png', several_labels=True)
    assert predictions.several_labels
    assert predictions.probs.shape == (1, 1, 3)
    assert predictions.labels.tolist() == [[1, 0, -1 if 'gt_score' in fields else 0]]
    assert predictions.predicted.tolist() == [[1, 1 if 'pred_label' in fields else 0, 0]]


def test_read_sample_invalid_several_labels_raise():
    for fields, message in (
        ({}, 'has no gt_label'),
        (dict(gt_label=torch.tensor([3])), r'outside \[0, 3\): 3'),
        (dict(pred_score=torch.tensor([2.0])), r'pred_score of a.png has 1 of 1 values outside'),
    ):
        with pytest.raises(ValueError, match=message):
            read_sample(several_labels(**fields), 'a.png', several_labels=True)


def test_with_logits_of_the_same_softmax_are_taken():
    logits = torch.tensor([[1.0, 2.0, 0.0]])
    sample = dict(pred_score=logits[0].softmax(0), gt_label=torch.tensor([1]))
    predictions = read_sample(sample, 'a.png')
    assert torch.equal(with_logits(predictions, logits + 3).logits, logits + 3)
