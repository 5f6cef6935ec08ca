"""Groups of the images of a dataset: by its ``group``, by image, or by a pattern."""

import pytest
import torch
from mmengine.registry import DATASETS

from mmcalib.commands.calibrate.file_groups import groups_of_images
from mmcalib.openmmlab.datasets import Digits  # noqa: F401 (It is registered.)

DIGITS = dict(type='Digits', split='test', pipeline=[], indices=12)


class InfoDataset(list):
    """A dataset of infos of images."""

    def get_data_info(self, index):
        return self[index]


@pytest.fixture
def cities():
    """Three images of each of two cities."""
    infos = []
    for city in ('Ulm', 'Bonn'):
        for index in range(3):
            infos.append({'img_path': f'data/{city}/{city}_{index}.png'})
    return InfoDataset(infos)


def test_groups_of_images_infos_with_group_are_theirs():
    names = [index % 7 for index in range(40)]
    dataset = InfoDataset({'group': name} for name in names)
    assert groups_of_images(dataset).tolist() == names


def test_groups_of_images_repeated_dataset_has_each_image_once():
    dataset = DATASETS.build(dict(type='RepeatDataset', dataset=DIGITS, times=2))
    first, second = groups_of_images(dataset).split(12)
    assert torch.equal(first, second)
    assert len(first.unique()) == 12


def test_groups_of_images_overlapping_datasets_have_each_image_once():
    dataset = DATASETS.build(dict(type='ConcatDataset', datasets=[DIGITS, DIGITS]))
    assert len(groups_of_images(dataset).unique()) == 12


@pytest.mark.parametrize('pattern', ['Ulm|Bonn', r'/(\w+)/', r'(\w+)_\d'])
def test_groups_of_images_pattern_groups_by_match(pattern, cities):
    assert groups_of_images(cities, pattern).tolist() == [0, 0, 0, 1, 1, 1]


def test_groups_of_images_matches_of_two_parentheses_are_never_one_group(cities):
    actual = groups_of_images(cities, r'Ulm_(\d)|Bonn_(\d)')
    assert actual.tolist() == list(range(6))


def test_groups_of_images_pattern_without_match_raises(cities):
    with pytest.raises(ValueError, match='--groups Ulm finds nothing in data'):
        groups_of_images(cities, 'Ulm')
