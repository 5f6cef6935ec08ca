"""Which samples a dataset lists, wherever their files lie, and which of them are one image."""

import shutil

import numpy as np
import pytest
from images import save, write_voc
from mmengine.dataset import BaseDataset
from mmengine.registry import DATASETS
from torch.utils.data import Subset

from mmcalib.openmmlab.datasets import Digits  # noqa: F401 (It is registered.)
from mmcalib.openmmlab.same_data import (
    copy_groups,
    data_content,
    sample_ids,
    split_images,
    validates_on_test_images,
)

DIGITS = dict(type='Digits', split='test', pipeline=[], indices=12)


class Listed(BaseDataset):
    """A dataset of given infos."""

    def __init__(self, infos):
        self.infos = infos
        super().__init__()

    def load_data_list(self):
        return list(self.infos)


def listed(folder, labels):
    """Return the dataset of files in a folder with the labels of their names."""
    infos = [dict(img_path=f'{folder}/{name}', gt_label=label) for name, label in labels.items()]
    return Listed(infos)


LABELS = {'a/1.jpg': 0, 'a/2.jpg': 0, 'b/1.jpg': np.int64(1)}


@pytest.fixture
def photographs(tmp_path):
    """A folder of photographs."""
    rng = np.random.default_rng(0)
    for name in LABELS:
        save(tmp_path / 'photographs' / name, (9, 7), rng)
    return tmp_path / 'photographs'


def test_data_content_other_root_or_order_same(photographs, tmp_path):
    shutil.copytree(photographs, tmp_path / 'moved/once/again')
    content = data_content(listed(photographs, LABELS))
    assert content.startswith('3 samples, ')
    assert data_content(listed(tmp_path / 'moved/once/again', LABELS)) == content
    turned_round = dict(reversed(LABELS.items()))
    assert data_content(listed(photographs, turned_round)) == content


def test_data_content_other_label_name_or_number_differs(photographs):
    infos = listed(photographs, LABELS).infos
    datasets = [
        listed(photographs, LABELS),
        listed(photographs, LABELS | {'a/2.jpg': 1}),
        listed(photographs, {'a/1.jpg': 0, 'a/3.jpg': 0, 'b/1.jpg': 1}),
        listed(photographs, {'a/1.jpg': 0, 'b/1.jpg': 1}),
        Listed([*infos, infos[0]]),
    ]
    assert len(set(map(data_content, datasets))) == len(datasets)


def test_data_content_other_images_or_masks_of_same_names_differ(tmp_path):
    for name in ('first', 'images', 'masks'):
        write_voc(tmp_path / name)
    rng = np.random.default_rng(1)
    save(tmp_path / 'images/JPEGImages/a.jpg', (80, 60), rng)
    mask = tmp_path / 'masks/SegmentationClass/b.png'
    mask.write_bytes(mask.read_bytes() + b' ')
    prefix = dict(img_path='JPEGImages', seg_map_path='SegmentationClass')
    options = dict(type='mmseg.BaseSegDataset', data_prefix=prefix, pipeline=[])
    contents = []
    for name in ('first', 'images', 'masks', 'first'):
        dataset = dict(options, data_root=str(tmp_path / name), img_suffix='.jpg')
        contents.append(data_content(DATASETS.build(dataset)))
    assert len(set(contents)) == 3
    assert contents[0] == contents[3]


def digits_content(**options):
    return data_content(DATASETS.build(DIGITS | options))


def test_data_content_of_arrays_differs_by_values():
    assert digits_content() == digits_content()
    assert digits_content() != digits_content(noise=0.1)


def test_data_content_wrappers_have_that_of_their_samples():
    first_five = Subset(DATASETS.build(DIGITS), range(5))
    assert data_content(first_five) == digits_content(indices=5)
    repeated = data_content(DATASETS.build(dict(type='RepeatDataset', dataset=DIGITS, times=2)))
    joined = data_content(DATASETS.build(dict(type='ConcatDataset', datasets=[DIGITS, DIGITS])))
    assert repeated == joined
    assert repeated.startswith('24 samples')


def test_data_content_unknown_samples_is_none():
    assert data_content([1, 2, 3]) is None
    assert data_content(Listed([dict(gt_label=1)])) is None


def image_keys(dataset):
    return [sample.key for sample in sample_ids(dataset)]


def test_sample_ids_repeated_lines_are_one_image():
    """A list may name an image several times, to balance classes, and by other labels."""
    train = Listed([dict(img_path=f'/d/{name}.jpg', gt_label=0) for name in 'abcab'])
    val = Listed([dict(img_path=f'/d/{name}.jpg', gt_label=1) for name in 'aab'])
    assert len(set(image_keys(train))) == 3
    assert set(image_keys(val)) < set(image_keys(train))
    assert copy_groups(train).tolist() == [0, 1, 2, 0, 1]
    arrays = Listed([dict(img=np.full(3, value)) for value in (1, 2, 1)])
    assert copy_groups(arrays).tolist() == [0, 1, 0]


def test_sample_ids_pages_of_one_file_are_images_of_their_own():
    """Another data set with the same pages names the same images."""
    pages = [(2, 1), (1, 0), (0, 0), (1, 0)]
    infos = [dict(img_path='/d/scan.tif', page=page, gt_label=label) for page, label in pages]
    keys = image_keys(Listed(infos))
    assert len(set(keys)) == 3
    assert keys[1] == keys[3]
    assert set(image_keys(Listed(infos[1:3]))) == set(keys[1:3])
    assert copy_groups(Listed(infos[:3])) is None


def test_validates_on_test_images_copied_folder_is_true(tmp_path):
    """Its files have other paths, and no link leads from one to the other."""
    options = dict(type='mmseg.BaseSegDataset', img_suffix='.jpg', pipeline=[])
    options['data_prefix'] = dict(img_path='JPEGImages', seg_map_path='SegmentationClass')
    write_voc(tmp_path / 'test')
    shutil.copytree(tmp_path / 'test', tmp_path / 'copy')
    shutil.copytree(tmp_path / 'test', tmp_path / 'other')
    save(tmp_path / 'other/JPEGImages/a.jpg', (80, 60), np.random.default_rng(1))
    actual = {}
    for name in ('other', 'gone', 'copy'):
        cfg = {}
        for split, folder in (('val', name), ('test', 'test')):
            dataset = dict(options, data_root=str(tmp_path / folder))
            cfg[f'{split}_dataloader'] = dict(dataset=dataset)
        actual[name] = validates_on_test_images(cfg)
    assert actual == {'other': False, 'gone': False, 'copy': True}
    # A calibration has built both splits.
    datasets = {}
    for split in ('val', 'test'):
        datasets[split] = DATASETS.build(cfg[f'{split}_dataloader']['dataset'])
    images = split_images(cfg, 'val', datasets)
    assert len(images) == len(datasets['val'])
    assert images == split_images(cfg, 'test', datasets)
