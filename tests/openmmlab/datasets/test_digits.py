import numpy as np
import pytest

from mmcalib.openmmlab.datasets import Digits, DigitScenes
from mmcalib.openmmlab.datasets.digits import SPLITS


def stack_field(dataset, key):
    return np.stack([sample[key] for sample in dataset])


def test_digits_splits_are_disjoint_and_noise_is_fixed():
    splits = {split: Digits(split, noise=0) for split in SPLITS}
    assert [len(data) for data in splits.values()] == [800, 200, 797]
    images = np.concatenate([stack_field(data, 'img') for data in splits.values()])
    assert len({image.tobytes() for image in images}) == 1797
    assert images.shape[1:] == (8, 8) and images.dtype == np.float32
    assert images.min() >= 0 and images.max() <= 1
    noisy = stack_field(Digits('train'), 'img')
    np.testing.assert_array_equal(noisy, stack_field(Digits('train'), 'img'))
    assert (noisy - images[:800]).std() == pytest.approx(0.4, rel=0.02)
    assert abs((noisy - images[:800]).mean()) < 0.01


@pytest.mark.parametrize('split', list(SPLITS))
def test_digit_scenes_strokes_are_labelled_digits_of_the_split(split):
    scenes = DigitScenes(split, noise=0)
    images = stack_field(scenes, 'img')
    masks = stack_field(scenes, 'gt_seg_map')
    np.testing.assert_array_equal(images, stack_field(DigitScenes(split, noise=0), 'img'))
    assert images.shape == masks.shape == (DigitScenes.SIZES[split], 40, 40)
    assert set(np.unique(masks)) == {*range(11), 255}
    # Strokes are bright and labelled, and no stroke touches unlabelled background.
    stroke = (masks > 0) & (masks < 255)
    background = masks == 0
    assert (images[stroke] > 0.5).all()
    assert not (stroke[:, 1:] & background[:, :-1]).any()
    assert not (stroke[:, :, 1:] & background[:, :, :-1]).any()
    # The first cell of the first scene has a digit of the split, of the class of its stroke.
    cell_mask = masks[0, :10, :10]
    cell_ink = images[0, :10, :10][(cell_mask > 0) & (cell_mask < 255)].sum()
    (cell_label,) = set(np.unique(cell_mask)) - {0, 255}
    inks = []
    for digit in Digits(split, noise=0):
        if digit['gt_label'] + 1 == cell_label:
            inks.append(digit['img'][digit['img'] > 0.5].sum())
    assert np.abs(np.array(inks) - cell_ink).min() < 1e-4


def test_digits_invalid_option_raises():
    for dataset in (Digits, DigitScenes):
        for split, noise, message in (('tset', 0, "got 'tset'"), ('val', -1, 'noise .*, got -1')):
            with pytest.raises(ValueError, match=message):
                dataset(split, noise=noise)
