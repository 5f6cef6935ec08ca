import numpy as np
import pytest

from mmcalib.datasets import Digits, DigitScenes
from mmcalib.datasets.digits import SPLITS


def test_digits_of_all_splits_are_others():
    splits = {split: Digits(split, noise=0) for split in SPLITS}
    assert [len(data) for data in splits.values()] == [800, 200, 797]
    images = [data[i]['img'] for data in splits.values() for i in range(len(data))]
    assert len({image.tobytes() for image in images}) == 1797
    assert images[0].shape == (8, 8) and images[0].dtype == np.float32
    assert np.min(images) >= 0 and np.max(images) <= 1


def test_noise_has_its_deviation_and_is_drawn_once():
    noisy, again, clean = (
        np.stack([each['img'] for each in Digits('train', **options)])
        for options in ({}, {}, dict(noise=0))
    )
    np.testing.assert_array_equal(noisy, again)
    assert (noisy - clean).std() == pytest.approx(0.4, rel=0.02)
    assert abs((noisy - clean).mean()) < 0.01


@pytest.mark.parametrize('split', list(SPLITS))
def test_scenes(split):
    data = DigitScenes(split, noise=0)
    masks, images = (np.stack([each[key] for each in data]) for key in ('gt_seg_map', 'img'))
    assert images.shape == masks.shape == (DigitScenes.SIZES[split], 40, 40)
    assert set(np.unique(masks)) == {*range(11), 255}
    # Strokes are bright and labelled, and no stroke touches unlabelled background.
    stroke, background = (masks > 0) & (masks < 255), masks == 0
    assert (images[stroke] > 0.5).all()
    assert not (stroke[:, 1:] & background[:, :-1]).any()
    assert not (stroke[:, :, 1:] & background[:, :, :-1]).any()


@pytest.mark.parametrize('dataset', [Digits, DigitScenes])
def test_bad_options_are_refused(dataset):
    for options, message in ((('tset', 0), "got 'tset'"), (('val', -1), 'noise .*, got -1')):
        with pytest.raises(ValueError, match=message):
            dataset(options[0], noise=options[1])
