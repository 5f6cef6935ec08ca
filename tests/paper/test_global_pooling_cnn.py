import pytest
import torch
from mmengine.registry import MODELS
from posts import write_vectors
from torch.nn import functional as F

from mmcalib.paper.global_pooling_cnn import GlobalPoolingCNN


def texts(number, length, words):
    """Ids of texts of all lengths from 0 to `length` and beyond, padded in front."""
    torch.manual_seed(0)
    ids = torch.randint(1, words + 1, (number, length))
    for row, used in zip(ids, torch.linspace(0, 1.3 * length, number).long(), strict=True):
        row[: max(length - used, 0)] = 0
    return ids[torch.randperm(number)]


def reference(net, ids):
    """The network in the paper's order of layers, on the whole of the padded texts."""
    first, second, third = (m for m in net.convs if isinstance(m, torch.nn.Conv1d))
    x = net.embedding.weight[ids].transpose(1, 2)
    x = F.max_pool1d(F.relu(first(x)), 5, stride=1)
    x = F.max_pool1d(F.relu(second(x)), 5, stride=1)
    return F.relu(net.hidden[0](F.relu(third(x)).max(dim=2).values))


@pytest.mark.parametrize('number', [1, 16, 37])
def test_global_pooling_cnn_padding_left_out_equals_reference(number):
    net = GlobalPoolingCNN(num_words=30, embed_dims=6, channels=8).double()
    ids = texts(number, 90, 30)
    results = []
    for out in (net(ids.float())[0], reference(net, ids)):
        weighted = (out * torch.arange(out.numel()).view_as(out)).sum()
        gradients = torch.autograd.grad(weighted, [*net.parameters()])
        gradients[0][0] = 0  # the reference has no notion of a padding that is not trained
        results.append((out, *gradients))
    torch.testing.assert_close(*results)


def test_global_pooling_cnn_sizes_are_those_of_the_paper():
    net = MODELS.build(dict(type='GlobalPoolingCNN'))
    assert net(texts(3, 1000, 2000))[0].shape == (3, 128)
    assert [tuple(p.shape) for p in net.parameters() if p.requires_grad and p.ndim > 1] == [
        (2001, 100), (128, 100, 5), (128, 128, 5), (128, 128, 5), (128, 128),
    ]  # fmt: skip
    before = net.embedding.weight.clone()
    net.set_words(['a', 'b'])
    assert torch.equal(net.embedding.weight, before) and (before[0] == 0).all()


def test_set_words_vectors_are_frozen_and_unknown_words_zero(tmp_path):
    path = write_vectors(tmp_path / 'glove.txt')
    path.write_text(path.read_text() + 'the 9 9 9 9 9 9\n')  # The first of two counts.
    net = GlobalPoolingCNN(num_words=5, vectors=str(path), embed_dims=6)
    net.set_words(['group1', 'unknown', 'the'])
    weight = net.embedding.weight
    assert not weight.requires_grad and weight[:, 0].tolist() == [0, 3, 0, 1, 0, 0]
    with pytest.raises(RuntimeError, match=r'expanded size .*\(7\) must match .*\(6\)'):
        GlobalPoolingCNN(vectors=str(path), embed_dims=7).set_words(['the'])
    with pytest.raises(FileNotFoundError, match=r'nlp\.stanford\.edu/projects/glove/'):
        GlobalPoolingCNN(vectors=str(tmp_path / 'nowhere.txt')).set_words(['the'])
