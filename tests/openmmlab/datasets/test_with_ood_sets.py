"""Test data followed by OOD sets; tests/runs/test_unseen_labels.py tests on them."""

import pickle
from types import SimpleNamespace

import pytest
import torch
from mmengine.registry import DATASETS, DefaultScope

from mmcalib.openmmlab.datasets import Digits, WithOODSets
from mmcalib.openmmlab.hooks import KeepLogitsHook

VAL = dict(type='Digits', split='val')


def test_with_ood_sets_labels_are_minus_the_set():
    pytest.importorskip('mmpretrain.datasets')
    test = dict(type='Digits', split='test', pipeline=[dict(type='PackInputs')])
    config = dict(
        type='WithOODSets',
        dataset=test,
        near=dict(val=VAL),
        far=dict(noise=dict(VAL, noise=2.0)),
    )
    with DefaultScope.overwrite_default_scope('mmpretrain'):
        dataset = DATASETS.build(config)
    assert len(pickle.loads(pickle.dumps(dataset))) == len(dataset) == 797 + 200 + 200
    assert dataset.metainfo['ood_sets'] == dict(near=['val'], far=['noise'])
    assert dataset.metainfo['classes'] == Digits.METAINFO['classes']
    first = Digits('test')[0]['gt_label']
    last = Digits('test')[796]['gt_label']
    for index, label in ((0, first), (796, last), (797, -1), (996, -1), (997, -2), (1196, -2)):
        assert dataset[index]['data_samples'].gt_label.tolist() == [label]
        assert dataset.get_data_info(index)['gt_label'] == label
    assert torch.equal(dataset[797]['inputs'], dataset.datasets[1][0]['inputs'])
    with pytest.raises(IndexError):
        dataset[1197]


def test_with_ood_sets_invalid_name_raises_and_pipeline_is_shared():
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


def test_keep_logits_hook_other_number_of_rows_raises():
    hook = KeepLogitsHook()
    model = Broken()
    hook.before_test(SimpleNamespace(model=model))
    with pytest.raises(ValueError, match=r'returned \(6, 3\) for 3 samples'):
        model(torch.zeros(3, 2))
    hook.after_test(None)
    assert model(torch.zeros(3, 2)) == [None] * 3
