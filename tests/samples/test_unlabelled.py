import pytest
import torch
from samples import as_segmented, classified, segmented

from mmcalib.samples.reading import read_unlabelled


def binary():
    prob = torch.tensor([[[0.9, 0.2], [0.6, 0.1]]])
    return as_segmented(prob, (prob[0] > 0.7).long(), torch.zeros(2, 2))


@pytest.mark.parametrize('sample', [*classified(3), *segmented(3), binary()])
def test_without_labels_the_confidences_are_the_same(sample):
    sample = {key: value for key, value in sample.items() if not key.startswith('gt')}
    found = read_unlabelled(sample, name='image.jpg')
    if 'pred_score' in sample:
        probs, predicted = sample['pred_score'], sample['pred_score'].argmax()
        assert torch.equal(found.probs, probs)
    else:
        logits, predicted = sample['seg_logits']['data'], sample['pred_sem_seg']['data'][0]
        probs = torch.cat([1 - logits, logits]) if len(logits) == 1 else logits.softmax(0)
        assert found.probs is None
    assert torch.equal(found.predicted, predicted)
    torch.testing.assert_close(found.conf, probs.gather(0, predicted[None])[0])
