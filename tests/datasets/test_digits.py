import numpy as np
import pytest

from mmcalib.datasets import Digits, DigitScenes
from mmcalib.datasets.digits import SPLITS


@pytest.mark.parametrize(('split', 'size'), [('train', 800), ('val', 200), ('test', 797)])
def test_digits(split, size):
    data = Digits(split)
    assert len(data) == size
    sample = data[0]
    assert sample['img'].shape == (8, 8) and sample['img'].dtype == np.float32
    np.testing.assert_array_equal(sample['img'], Digits(split)[0]['img'])


def test_noise_has_its_deviation_and_is_drawn_once():
    noisy, clean = Digits('train'), Digits('train', noise=0)
    difference = np.stack([noisy[i]['img'] - clean[i]['img'] for i in range(len(clean))])
    assert difference.std() == pytest.approx(0.4, rel=0.02)
    assert abs(difference.mean()) < 0.01
    assert clean[0]['img'].min() >= 0 and clean[0]['img'].max() <= 1


def test_splits_share_no_digit():
    splits = [Digits(split, noise=0) for split in SPLITS]
    images = [data[i]['img'].tobytes() for data in splits for i in range(len(data))]
    assert len(images) == len(set(images)) == 1797


@pytest.mark.parametrize('split', list(SPLITS))
def test_scenes(split):
    data = DigitScenes(split, noise=0)
    assert len(data) == DigitScenes.SIZES[split]
    masks = np.stack([data[i]['gt_seg_map'] for i in range(len(data))])
    images = np.stack([data[i]['img'] for i in range(len(data))])
    assert images.shape == masks.shape == (len(data), 40, 40)
    assert set(np.unique(masks)) == {*range(11), 255}
    # Strokes are bright and labelled, and no stroke touches unlabelled background.
    assert (images[(masks > 0) & (masks < 255)] > 0.5).all()
    stroke, background = (masks > 0) & (masks < 255), masks == 0
    assert not (stroke[:, 1:] & background[:, :-1]).any()
    assert not (stroke[:, :, 1:] & background[:, :, :-1]).any()


@pytest.mark.parametrize('dataset', [Digits, DigitScenes])
def test_bad_options_are_refused(dataset):
    with pytest.raises(ValueError, match=r"split must be one of .* got 'tset'"):
        dataset('tset')
    with pytest.raises(ValueError, match=r'noise must be a finite number of at least 0, got -1'):
        dataset('val', noise=-1)
