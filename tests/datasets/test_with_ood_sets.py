"""Test data with unseen sets behind them, in a test of mmpretrain as a user configures it."""

import itertools
import pickle
from types import SimpleNamespace

import pytest
import torch
from commands import ROOT
from mmengine.registry import DATASETS, init_default_scope
from mmengine.runner import Runner
from sklearn.metrics import roc_auc_score

from mmcalib import register
from mmcalib.datasets import Digits, WithOODSets
from mmcalib.hooks import KeepLogitsHook
from mmcalib.runs.config import load_config

pytest.importorskip('mmpretrain.models')
SETS = dict(
    near=dict(val=dict(type='Digits', split='val')),
    far=dict(noise=dict(type='Digits', split='val', noise=2.0)),
)


@pytest.fixture
def config(tmp_path):
    config = load_config(str(ROOT / 'configs/ce/digits.py'))
    loader = config.test_dataloader
    loader.dataset = dict(type='WithOODSets', dataset=loader.dataset, **SETS)
    config.test_evaluator = [dict(type='OODMetric', scores=['max_probability', 'energy'])]
    config.custom_hooks = [dict(type='KeepLogitsHook')]
    config.default_hooks.reliability_diagram.splits = []
    config.work_dir = str(tmp_path)
    return config


def test_a_test_of_a_classifier(config):
    register()  # if another file has imported mmcalib before mmengine
    torch.manual_seed(0)
    runner = Runner.from_cfg(config)
    found, model = runner.test(), runner.model.eval()
    scores, figures = ('max_probability', 'energy'), ('AUROC', 'AUPR_in', 'AUPR_out', 'FPR95')
    parts = itertools.product(scores, ('near', 'far', 'val', 'noise'), figures)
    assert list(found) == ['/'.join(['ood', *part]) for part in parts]
    assert all(v == found[k.replace('near', 'val')] for k, v in found.items() if '/near/' in k)
    with torch.no_grad():  # by hand
        batches = map(model.data_preprocessor, runner.test_dataloader)
        logits = torch.cat([model(batch['inputs'], mode='tensor') for batch in batches]).double()
    values = dict(energy=logits.logsumexp(1), max_probability=logits.softmax(1).amax(1))
    for score, (number, name) in itertools.product(scores, enumerate(('val', 'noise'))):
        seen, *sets = values[score].split([797, 200, 200])
        expected = 100 * roc_auc_score(
            [True] * 797 + [False] * 200, torch.cat([seen, sets[number]])
        )
        assert found[f'ood/{score}/{name}/AUROC'] == pytest.approx(expected, abs=0.01)
    assert not model.head._forward_hooks and not model._forward_hooks


def test_labels_of_the_sets(config):
    init_default_scope('mmpretrain')
    dataset = DATASETS.build(config.test_dataloader.dataset)
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
    sets = dict(own=dict(type='Digits', split='val', pipeline=[]), none=Digits('val'))
    dataset = WithOODSets(dict(type='Digits', split='val', pipeline=[lambda info: 3]), far=sets)
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
