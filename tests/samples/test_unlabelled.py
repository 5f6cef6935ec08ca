import pytest
import torch
from samples import classified, segmented

from mmcalib.samples.evaluated import read_prediction
from mmcalib.samples.unlabelled import read_unlabelled


@pytest.mark.parametrize('samples', [classified(5), segmented(3)], ids=['mmpretrain', 'mmseg'])
def test_without_labels_the_confidences_are_the_same(samples, monkeypatch):
    monkeypatch.setattr('mmcalib.samples.unlabelled.UNLABELLED_PIECE', 200)  # two lines at a time
    for sample in samples:
        if 'gt_sem_seg' in sample:
            sample['gt_sem_seg']['data'][:] = 0  # all are valid
        expected = read_prediction(sample, ignore_index=255, name='image.jpg', wanted={'predicted'})
        sample.pop('gt_label', sample.pop('gt_sem_seg', None))
        found = read_unlabelled(sample, name='image.jpg')
        torch.testing.assert_close(found.conf.flatten(), expected.conf)
        assert torch.equal(found.predicted.flatten(), expected.predicted)
        probs = sample.get('pred_score')
        assert found.probs is None if probs is None else torch.equal(found.probs, probs)


def test_what_has_no_confidence_without_labels():
    (sample,) = segmented(1)
    sample['seg_logits']['data'][0, 0, 0] = float('nan')
    with pytest.raises(ValueError, match=r'seg_logits of image\.jpg has 1 NaN'):
        read_unlabelled(sample, name='image.jpg')
    with pytest.raises(ValueError, match='do not sum to 1'):
        read_unlabelled({'pred_score': torch.tensor([0.9, 0.8])}, name='image.jpg')
    with pytest.raises(ValueError, match=r"has neither pred_score .* it has \['boxes'\]"):
        read_unlabelled({'boxes': 1}, name='image.jpg')
