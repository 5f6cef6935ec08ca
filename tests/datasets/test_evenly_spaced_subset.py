import pickle

import pytest
from mmengine.dataset import RepeatDataset
from mmengine.registry import DATASETS
from torch.utils.data import DataLoader

from mmcalib.datasets import Digits, EvenSubset


@pytest.mark.parametrize(
    ('samples', 'chosen'), [(1, [50]), (3, [16, 50, 83]), (99, None), (100, None), (500, None)]
)
def test_samples_are_spread_evenly(samples, chosen):
    whole = Digits('train', indices=100)
    subset = EvenSubset(whole, samples)
    assert len(subset) == min(samples, 100) == len(set(subset.indices))
    assert max(subset.indices) < 100 and subset.indices == sorted(subset.indices)
    assert chosen is None or subset.indices == chosen
    for position, index in enumerate(subset.indices[:3]):
        assert subset[position]['sample_idx'] == whole[index]['sample_idx']
        assert subset.get_data_info(position)['gt_label'] == whole[index]['gt_label']


def test_it_is_built_around_any_dataset_and_goes_to_workers():
    dataset = dict(type='Digits', split='train', lazy_init=True)
    subset = DATASETS.build(dict(type='EvenSubset', samples=4, dataset=dataset))
    assert subset.metainfo['classes'] == Digits.METAINFO['classes']
    labels = [batch[0]['gt_label'] for batch in DataLoader(subset, num_workers=1, collate_fn=list)]
    assert labels == [subset[index]['gt_label'] for index in range(4)]
    assert pickle.loads(pickle.dumps(subset)).indices == subset.indices
    assert len(EvenSubset(RepeatDataset(Digits('val'), times=2), 7)) == 7
