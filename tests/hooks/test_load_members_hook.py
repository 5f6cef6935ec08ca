from types import SimpleNamespace

import pytest
import torch
from mmengine.runner.checkpoint import _load_checkpoint_to_model
from tiny_models import classifier

from mmcalib.ensembles import MeanProbabilityModel
from mmcalib.hooks import LoadMembersHook

LINEAR = dict(type='LinearClsHead', num_classes=5, in_channels=8)


def runner_of(model):
    """What a Runner does with a checkpoint, without what it needs beside that."""

    def load_checkpoint(path):
        content = torch.load(path, weights_only=True)
        return _load_checkpoint_to_model(model, content)

    return SimpleNamespace(model=model, load_checkpoint=load_checkpoint)


@pytest.mark.parametrize('one_at_a_time', [False, True])
def test_each_member_gets_its_checkpoint(one_at_a_time, tmp_path):
    paths = []
    for seed in range(3):
        paths.append(str(tmp_path / f'{seed}.pth'))
        state = classifier(LINEAR, seed=seed).state_dict()
        torch.save({'state_dict': state, 'meta': {'seed': seed}}, paths[-1])
    first, *others = (classifier(LINEAR, seed=9) for _ in paths)
    model = MeanProbabilityModel(first, others=others, one_at_a_time=one_at_a_time)
    hook = LoadMembersHook(paths)
    hook.before_run(runner_of(model))
    assert [meta['seed'] for meta in hook.metas] == [0, 1, 2] and model.names == paths
    assert model.members == [first, *others]
    for seed, member in enumerate(model.members):
        expected = classifier(LINEAR, seed=seed).state_dict()
        assert all(torch.equal(value, expected[key]) for key, value in member.state_dict().items())


def test_what_has_no_such_members_is_refused():
    with pytest.raises(ValueError, match='the model is a ImageClassifier'):
        LoadMembersHook(['a.pth']).before_run(runner_of(classifier(LINEAR)))
    model = MeanProbabilityModel(classifier(LINEAR))
    with pytest.raises(ValueError, match='2 checkpoints for 1 members'):
        LoadMembersHook(['a.pth', 'b.pth']).before_run(runner_of(model))
