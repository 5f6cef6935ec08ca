"""The reader of data samples: batches, labels of unknown classes, several labels, logits."""

import pytest
import torch
from samples import classified, segmented

from mmcalib.openmmlab.samples import read_samples, with_logits


def named(samples):
    return samples, [f'sample {index}' for index in range(len(samples))]


def several_labels(**fields):
    return {'pred_score': torch.tensor([0.9, 0.4, 0.2]), **fields}


def test_read_samples_classified_batch_is_one_object():
    samples = classified(5)
    (predictions,) = read_samples(*named(samples))
    expected = torch.stack([sample['pred_score'] for sample in samples])
    assert torch.equal(predictions.probs, expected)
    assert torch.equal(predictions.predicted, expected.argmax(dim=1))
    assert predictions.labels.tolist() == [int(sample['gt_label']) for sample in samples]
    assert predictions.images.tolist() == [0, 1, 2, 3, 4]


def test_read_samples_segmented_batch_is_an_object_per_map():
    samples = segmented(3)
    for predictions, sample in zip(read_samples(*named(samples)), samples, strict=True):
        labels = sample['gt_sem_seg']['data']
        assert torch.equal(predictions.logits[0], sample['seg_logits']['data'])
        assert torch.equal(predictions.labels, torch.where(labels == 255, -1, labels))
    assert read_samples([], []) == []


def test_read_samples_ood_labels_follow_the_classes():
    samples = classified(4)
    for sample, label in zip(samples, (-1, -2, 3, 5), strict=True):
        sample['gt_label'] = torch.tensor([label])
    (predictions,) = read_samples(*named(samples), ood_index=5)
    assert predictions.labels.tolist() == [7, 8, 3, 7]
    (sample,) = segmented(1)
    sample['gt_sem_seg']['data'][0, 0, :2] = torch.tensor([255, 9])
    (predictions,) = read_samples(*named([sample]), ood_index=9)
    assert predictions.labels[0, 0, :2].tolist() == [-1, 5]


@pytest.mark.parametrize(
    'fields',
    [
        dict(gt_score=torch.tensor([1.0, 0.0, -1.0]), pred_label=torch.tensor([0, 1])),
        dict(gt_label=torch.tensor([0])),
    ],
)
def test_read_samples_several_labels_have_an_axis(fields):
    samples = [several_labels(**fields)] * 2
    (predictions,) = read_samples(*named(samples), several_labels=True)
    assert predictions.several_labels
    assert predictions.probs.shape == (2, 1, 3)
    assert predictions.labels[1].tolist() == [1, 0, -1 if 'gt_score' in fields else 0]
    assert predictions.predicted[1].tolist() == [1, 1 if 'pred_label' in fields else 0, 0]


def test_read_samples_invalid_several_labels_raise():
    for fields, message in (
        ({}, 'has no gt_label'),
        (dict(gt_label=torch.tensor([3])), r'outside \[0, 3\): 3'),
        (dict(pred_score=torch.tensor([2.0])), r'pred_score of sample 0 has 1 of 1 values outside'),
    ):
        with pytest.raises(ValueError, match=message):
            read_samples(*named([several_labels(**fields)]), several_labels=True)


def test_with_logits_of_the_same_softmax_are_taken():
    logits = torch.tensor([[1.0, 2.0, 0.0]])
    sample = dict(pred_score=logits[0].softmax(0), gt_label=torch.tensor([1]))
    (predictions,) = read_samples(*named([sample]))
    assert torch.equal(with_logits(predictions, logits + 3).logits, logits + 3)
