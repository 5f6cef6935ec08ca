"""Test data with unseen sets behind them, in a test of mmpretrain as a user configures it."""

import itertools
import pickle
from types import SimpleNamespace

import pytest
import torch
from commands import ROOT
from mmengine.config import Config
from mmengine.registry import DATASETS, init_default_scope
from mmengine.runner import Runner
from sklearn.metrics import roc_auc_score

from mmcalib import register
from mmcalib.datasets import Digits, WithOODSets
from mmcalib.hooks import KeepLogitsHook

pytest.importorskip('mmpretrain.models')

CONFIG = """
_base_ = '{root}/configs/ce/digits.py'
test_dataloader = dict(dataset=dict(
    _delete_=True, type='WithOODSets', dataset={{{{_base_.test_dataloader.dataset}}}},
    near=dict(val=dict(type='Digits', split='val')),
    far=dict(noise=dict(type='Digits', split='val', noise=2.0))))
test_evaluator = [dict(type='OODMetric', scores=['max_probability', 'energy'])]
custom_hooks = [dict(type='KeepLogitsHook')]
default_hooks = dict(reliability_diagram=dict(splits=[]))  # of a Runner that no tool has built
"""


@pytest.fixture
def config(tmp_path):
    path = tmp_path / 'ood.py'
    path.write_text(CONFIG.format(root=ROOT.as_posix()))
    config = Config.fromfile(path)
    config.work_dir = str(tmp_path / 'work')
    return config


def test_a_test_of_a_classifier(config):
    register()  # if another file has imported mmcalib before mmengine
    config.load_from = None
    torch.manual_seed(0)
    runner = Runner.from_cfg(config)
    found, model = runner.test(), runner.model.eval()
    parts = itertools.product(
        ('max_probability', 'energy'),
        ('near', 'far', 'val', 'noise'),
        ('AUROC', 'AUPR_in', 'AUPR_out', 'FPR95'),
    )
    assert list(found) == ['/'.join(['ood', *part]) for part in parts]
    assert all(v == found[k.replace('near', 'val')] for k, v in found.items() if '/near/' in k)
    with torch.no_grad():  # by hand
        batches = map(model.data_preprocessor, runner.test_dataloader)
        logits = torch.cat([model(batch['inputs'], mode='tensor') for batch in batches]).double()
    scores = dict(energy=logits.logsumexp(1), max_probability=logits.softmax(1).amax(1))
    for (score, values), name in itertools.product(scores.items(), ('val', 'noise')):
        seen, *sets = values.split([797, 200, 200])
        values = torch.cat([seen, sets[name == 'noise']])
        expected = 100 * roc_auc_score(torch.arange(997) < 797, values)
        assert found[f'ood/{score}/{name}/AUROC'] == pytest.approx(expected, abs=0.01)
    assert not model.head._forward_hooks and not model._forward_hooks


def test_labels_of_the_sets(config):
    init_default_scope('mmpretrain')
    dataset = DATASETS.build(config.test_dataloader.dataset)
    assert len(dataset) == 797 + 200 + 200
    assert dataset.metainfo['ood_sets'] == dict(near=['val'], far=['noise'])
    assert dataset.metainfo['classes'] == Digits.METAINFO['classes']
    own = Digits('test')
    first, last = (own[n]['gt_label'] for n in (0, 796))
    for index, label in ((0, first), (796, last), (797, -1), (996, -1), (997, -2), (1196, -2)):
        assert dataset[index]['data_samples'].gt_label.tolist() == [label]
        assert dataset.get_data_info(index)['gt_label'] == label
    assert torch.equal(dataset[797]['inputs'], dataset.datasets[1][0]['inputs'])
    assert len(pickle.loads(pickle.dumps(dataset))) == len(dataset)
    with pytest.raises(IndexError):
        dataset[1197]


TWICE = dict(near={'a': 0}, far={'a': 0})


@pytest.mark.parametrize('sets', [{}, dict(near={'near': 0}), TWICE, dict(far={'a/b': 0})])
def test_names_of_sets(sets):
    with pytest.raises(ValueError, match='near and far must be dicts of OOD sets'):
        WithOODSets(Digits('val'), **sets)


def test_a_set_keeps_a_pipeline_of_its_own():
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
