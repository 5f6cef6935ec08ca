"""Test data with unseen sets behind them; tests/runs/test_unseen_labels.py tests on them."""

import pickle
from types import SimpleNamespace

import pytest
import torch
from mmengine.registry import DATASETS, DefaultScope

from mmcalib.openmmlab.datasets import Digits, WithOODSets
from mmcalib.openmmlab.hooks import KeepLogitsHook

VAL = dict(type='Digits', split='val')


def test_labels_of_the_sets():
    pytest.importorskip('mmpretrain.datasets')
    test = dict(type='Digits', split='test', pipeline=[dict(type='PackInputs')])
    sets = dict(near=dict(val=VAL), far=dict(noise=dict(VAL, noise=2.0)))
    with DefaultScope.overwrite_default_scope('mmpretrain'):
        dataset = DATASETS.build(dict(type='WithOODSets', dataset=test, **sets))
    assert len(pickle.loads(pickle.dumps(dataset))) == len(dataset) == 797 + 200 + 200
    assert dataset.metainfo['ood_sets'] == dict(near=['val'], far=['noise'])
    assert dataset.metainfo['classes'] == Digits.METAINFO['classes']
    first, last = (Digits('test')[n]['gt_label'] for n in (0, 796))
    for index, label in ((0, first), (796, last), (797, -1), (996, -1), (997, -2), (1196, -2)):
        assert dataset[index]['data_samples'].gt_label.tolist() == [label]
        assert dataset.get_data_info(index)['gt_label'] == label
    assert torch.equal(dataset[797]['inputs'], dataset.datasets[1][0]['inputs'])
    with pytest.raises(IndexError):
        dataset[1197]


def test_names_and_pipelines_of_sets():
    twice = dict(near={'a': 0}, far={'a': 0})
    for sets in ({}, dict(near={'near': 0}), twice, dict(far={'a/b': 0})):
        with pytest.raises(ValueError, match='near and far must be dicts of OOD sets'):
            WithOODSets(Digits('val'), **sets)
    sets = dict(own=dict(VAL, pipeline=[]), none=Digits('val'))
    dataset = WithOODSets(dict(VAL, pipeline=[lambda info: 3]), far=sets)
    assert dataset.datasets[0][0] == 3
    assert dataset.datasets[1][0]['img'].shape == dataset.datasets[2][0]['img'].shape


class Broken(torch.nn.Module):
    """A classifier whose head is called twice, as for two views."""

    def __init__(self):
        super().__init__()
        self.head = torch.nn.Linear(2, 3)

    def forward(self, x):
        self.head(torch.cat([x, x]))
        return [None] * len(x)


def test_logits_that_are_not_one_row_a_sample():
    hook, model = KeepLogitsHook(), Broken()
    hook.before_test(SimpleNamespace(model=model))
    with pytest.raises(ValueError, match=r'returned \(6, 3\) for 3 samples'):
        model(torch.zeros(3, 2))
    hook.after_test(None)
    assert model(torch.zeros(3, 2)) == [None] * 3
