"""Test data with unseen sets behind them, in a test of mmpretrain as a user configures it."""

import pickle
from types import SimpleNamespace

import pytest
import torch
from commands import ROOT
from mmengine.config import Config
from mmengine.registry import DATASETS, init_default_scope
from mmengine.runner import Runner
from sklearn.metrics import roc_auc_score

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


@torch.no_grad()
def logits_of(runner):
    """What the network returns for the test data, by hand."""
    model, found = runner.model.eval(), []
    for batch in runner.test_dataloader:
        found.append(model(model.data_preprocessor(batch)['inputs'], mode='tensor'))
    return torch.cat(found)


def test_a_test_of_a_classifier(config):
    config.load_from = None
    torch.manual_seed(0)
    runner = Runner.from_cfg(config)
    found = runner.test()
    keys = [
        f'ood/{score}/{part}/{figure}'
        for score in ('max_probability', 'energy')
        for part in ('near', 'far', 'val', 'noise')
        for figure in ('AUROC', 'AUPR_in', 'AUPR_out', 'FPR95')
    ]
    assert list(found) == keys
    assert all(0 <= value <= 100 for value in found.values())
    for key in keys:
        if '/near/' in key:
            assert found[key] == found[key.replace('near', 'val')]
    logits = logits_of(runner).double()
    assert len(logits) == 797 + 200 + 200
    for score, values in (('energy', logits.logsumexp(1)), ('max_probability', logits.softmax(1))):
        values = values.reshape(len(logits), -1).amax(1)
        for name, part in (('val', slice(797, 997)), ('noise', slice(997, 1197))):
            seen = torch.tensor([1] * 797 + [0] * 200)
            expected = 100 * roc_auc_score(seen, torch.cat([values[:797], values[part]]))
            assert found[f'ood/{score}/{name}/AUROC'] == pytest.approx(expected, abs=0.01)
    assert not runner.model.head._forward_hooks and not runner.model._forward_hooks


def test_labels_of_the_sets(config):
    init_default_scope('mmpretrain')
    dataset = DATASETS.build(config.test_dataloader.dataset)
    assert len(dataset) == 797 + 200 + 200
    assert dataset.metainfo['ood_sets'] == dict(near=['val'], far=['noise'])
    assert dataset.metainfo['classes'] == Digits.METAINFO['classes']
    own = Digits('test')
    for index, label in ((0, own[0]['gt_label']), (796, own[796]['gt_label']), (797, -1),
                         (996, -1), (997, -2), (1196, -2)):  # fmt: skip
        assert dataset[index]['data_samples'].gt_label.tolist() == [label]
        assert dataset.get_data_info(index)['gt_label'] == label
    assert torch.equal(dataset[797]['inputs'], dataset.datasets[1][0]['inputs'])
    assert len(pickle.loads(pickle.dumps(dataset))) == len(dataset)
    with pytest.raises(IndexError):
        dataset[1197]


@pytest.mark.parametrize('sets', [{}, dict(near={}), dict(near={'near': 0}),
                                  dict(near={'a': 0}, far={'a': 0}), dict(far={'a/b': 0}),
                                  dict(far={'OOD': 0})])  # fmt: skip
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
    with pytest.raises(ValueError, match='Linear has no head'):
        hook.before_val(SimpleNamespace(model=model.head))
