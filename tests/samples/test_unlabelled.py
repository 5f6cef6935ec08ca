import pytest
import torch
from samples import classified, probabilities, segmented

from mmcalib.samples.reading import read_unlabelled


@pytest.mark.parametrize('samples', [classified(5), segmented(3)], ids=['mmpretrain', 'mmseg'])
def test_without_labels_the_confidences_are_the_same(samples):
    for sample in samples:
        if 'gt_sem_seg' in sample:
            sample['gt_sem_seg']['data'][:] = 0  # all are valid
        expected = [max(p) for p in probabilities([sample])[0]]
        label = sample.pop('gt_sem_seg', {'data': None})['data']
        sample.pop('gt_label', None)
        found = read_unlabelled(sample, name='image.jpg')
        if 'pred_score' in sample:
            assert [found.conf.item()] == pytest.approx(expected)
            assert found.predicted == sample['pred_score'].argmax()
        else:
            valid = label[0] != 255
            assert found.conf[valid].tolist() == pytest.approx(expected, rel=1e-5)
            assert torch.equal(found.predicted, sample['pred_sem_seg']['data'][0])
        probs = sample.get('pred_score')
        assert found.probs is None if probs is None else torch.equal(found.probs, probs)


def test_what_has_no_confidence_without_labels():
    (sample,) = segmented(1)
    sample['seg_logits']['data'][0, 0, 0] = float('nan')
    with pytest.raises(ValueError, match=r'seg_logits of image\.jpg has 1 NaN'):
        read_unlabelled(sample, name='image.jpg')
    with pytest.raises(ValueError, match='do not sum to 1'):
        read_unlabelled({'pred_score': torch.tensor([0.9, 0.8])}, name='image.jpg')
    with pytest.raises(ValueError, match=r"has no pred_score, only \['boxes'\]"):
        read_unlabelled({'boxes': 1}, name='image.jpg')
