import numpy as np
import pytest

from mmcalib.openmmlab.datasets import Digits, DigitScenes
from mmcalib.openmmlab.datasets.digits import SPLITS


def test_digits_of_all_splits_are_others_and_noise_is_drawn_once():
    splits = {split: Digits(split, noise=0) for split in SPLITS}
    assert [len(data) for data in splits.values()] == [800, 200, 797]
    images = np.stack([each['img'] for data in splits.values() for each in data])
    assert len({image.tobytes() for image in images}) == 1797
    assert images.shape[1:] == (8, 8) and images.dtype == np.float32
    assert images.min() >= 0 and images.max() <= 1
    noisy, again = (np.stack([each['img'] for each in Digits('train')]) for _ in range(2))
    np.testing.assert_array_equal(noisy, again)
    assert (noisy - images[:800]).std() == pytest.approx(0.4, rel=0.02)
    assert abs((noisy - images[:800]).mean()) < 0.01


@pytest.mark.parametrize('split', list(SPLITS))
def test_scenes(split):
    data, again = (DigitScenes(split, noise=0) for _ in range(2))
    masks, images = (np.stack([each[key] for each in data]) for key in ('gt_seg_map', 'img'))
    np.testing.assert_array_equal(images, [each['img'] for each in again])
    assert images.shape == masks.shape == (DigitScenes.SIZES[split], 40, 40)
    assert set(np.unique(masks)) == {*range(11), 255}
    # Strokes are bright and labelled, and no stroke touches unlabelled background.
    stroke, background = (masks > 0) & (masks < 255), masks == 0
    assert (images[stroke] > 0.5).all()
    assert not (stroke[:, 1:] & background[:, :-1]).any()
    assert not (stroke[:, :, 1:] & background[:, :, :-1]).any()
    # A scene has digits of its split alone, each of the class of its stroke.
    digits = Digits(split, noise=0)
    known = {(each['img'][each['img'] > 0.5].sum(), each['gt_label'] + 1) for each in digits}
    cell = masks[0, :10, :10], images[0, :10, :10]
    ink = cell[1][(cell[0] > 0) & (cell[0] < 255)]
    (label,) = set(np.unique(cell[0])) - {0, 255}
    assert any(abs(total - ink.sum()) < 1e-4 and label == each for total, each in known)


def test_bad_options_are_refused():
    for dataset in (Digits, DigitScenes):
        for split, noise, message in (('tset', 0, "got 'tset'"), ('val', -1, 'noise .*, got -1')):
            with pytest.raises(ValueError, match=message):
                dataset(split, noise=noise)
