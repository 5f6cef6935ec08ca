import pickle

import numpy as np
import pytest
from images import write_voc
from mmengine.dataset import BaseDataset
from mmengine.registry import DATASETS
from torch.utils.data import DataLoader

from mmcalib.datasets import Digits, seeded_split
from mmcalib.datasets.seeded_split import draw, draw_per_class

DIGITS = dict(type='Digits', split='train')


def split(part, dataset=DIGITS, **options):
    return DATASETS.build(dict(type='SeededSplit', dataset=dataset, part=part, **options))


@pytest.mark.parametrize(
    'options', [dict(held_out=100), dict(held_out=0.125), dict(held_out_per_class=7, seed=3)]
)
def test_the_parts_make_up_the_whole_in_its_order(options):
    whole, parts = Digits('train'), [split(part, **options) for part in ('train', 'held_out')]
    held_out = parts[0].metainfo['held_out']
    assert held_out == parts[1].metainfo['held_out'] and held_out['seed'] == options.get('seed', 0)
    assert len(held_out['indices']) == (70 if 'seed' in options else 100)
    rest = [index for index in range(len(whole)) if index not in held_out['indices']]
    for part, indices in zip(parts, (rest, held_out['indices']), strict=True):
        assert isinstance(part, Digits) and len(part) == len(indices)
        assert part.metainfo['classes'] == whole.metainfo['classes']
        for position, index in enumerate(indices):
            mine, original = part.get_data_info(position), whole.get_data_info(index)
            assert mine['gt_label'] == original['gt_label']
            np.testing.assert_array_equal(mine['img'], original['img'])
    assert len(whole) == 800 and 'held_out' not in whole.metainfo


def test_the_draws_stay_what_they_are_documented_to_be():
    order = np.random.RandomState(5).permutation(60)
    assert draw(60, 8, seed=5).tolist() == sorted(order[:8])
    labels, taken = np.arange(60) % 4, []
    for index in order:
        if sum(labels[other] == labels[index] for other in taken) < 3:
            taken.append(index)
    assert draw_per_class(labels, 3, seed=5).tolist() == sorted(taken)
    # Whoever has trained with a config's split must get the same one from every later version.
    cifar10 = draw(50_000, 5000, seed=0)
    assert cifar10[:5].tolist() == [14, 22, 24, 28, 64] and cifar10.sum() == 126_459_119
    tiny = draw_per_class(np.arange(100_000) // 500, 50, seed=0)
    assert tiny[:5].tolist() == [6, 17, 25, 26, 36] and tiny.sum() == 500_002_312
    assert (np.bincount(tiny // 500) == 50).all()


def test_it_loads_a_lazy_dataset_and_goes_to_workers():
    part = split('held_out', dict(DIGITS, lazy_init=True), held_out=10)
    loader = DataLoader(part, batch_size=5, num_workers=1, collate_fn=list)
    labels = [sample['gt_label'] for batch in loader for sample in batch]
    assert labels == [part[index]['gt_label'] for index in range(10)]
    copy = pickle.loads(pickle.dumps(part))
    assert copy.metainfo == part.metainfo and len(copy) == 10


def test_what_cannot_be_is_refused(tmp_path):
    voc = dict(
        type='mmseg.PascalVOCDataset',
        data_root=str(write_voc(tmp_path)),
        data_prefix=dict(img_path='JPEGImages', seg_map_path='SegmentationClass'),
        ann_file='ImageSets/Segmentation/train.txt',
    )
    assert len(split('held_out', voc, held_out=1)) == 1
    for error, message, args, options in (
        (KeyError, 'gt_label', ['held_out', voc], dict(held_out_per_class=1)),
        (ValueError, r"part must be one of .*, got 'val'", ['val'], dict(held_out=1)),
        (ValueError, 'either held_out or held_out_per_class, got', ['train'], {}),
        (ValueError, 'from 1 to 799 of 800 samples, got 0', ['train'], dict(held_out=0)),
        (ValueError, 'from 1 to 799 of 800 samples, got 5000', ['train'], dict(held_out=5000.0)),
        (ValueError, r'class has \d+ samples; got 90', ['train'], dict(held_out_per_class=90)),
    ):
        with pytest.raises(error, match=message):
            split(*args, **options)


def test_nothing_is_left_of_copies_before():
    """mmengine 0.10.7 remembers them by address; later ones do not."""
    dataset = DATASETS.build(DIGITS)
    (memo,) = BaseDataset._copy_without_annotation.__defaults__
    if memo is not None:
        memo[id(dataset.pipeline)] = 'at the place of one that is gone'
    assert not isinstance(seeded_split(dataset, 'train', held_out=2).pipeline, str)
