import pytest
import torch
from mmengine.registry import MODELS
from mmengine.runner.checkpoint import _load_checkpoint_to_model
from posts import write_vectors
from torch.nn import functional as F

from mmcalib.models import GlobalPoolingCNN
from mmcalib.models.global_pooling_cnn import WINDOW


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
def test_leaving_out_padding_changes_nothing(number):
    net = GlobalPoolingCNN(num_words=30, embed_dims=6, channels=8).double()
    ids = texts(number, 90, 30)
    results = {}
    for name, run in (('ours', lambda: net(ids)[0]), ('reference', lambda: reference(net, ids))):
        net.zero_grad()
        out = run()
        (out * torch.arange(out.numel()).view_as(out)).sum().backward()
        gradients = [p.grad.clone() for p in net.parameters()]
        gradients[0][0] = 0  # the reference has no notion of a padding that is not trained
        results[name] = (out, *gradients)
    for mine, other in zip(results['ours'], results['reference'], strict=True):
        torch.testing.assert_close(mine, other)


def test_the_shape_that_the_head_expects():
    net = MODELS.build(dict(type='GlobalPoolingCNN'))
    (features,) = net(texts(3, 1000, 2000))
    assert features.shape == (3, 128)
    assert [tuple(p.shape) for p in net.parameters() if p.requires_grad and p.ndim > 1] == [
        (2001, 100), (128, 100, 5), (128, 128, 5), (128, 128, 5), (128, 128),
    ]  # fmt: skip
    assert (net.embedding.weight[0] == 0).all()


def test_given_vectors_are_frozen_and_unknown_words_zero(tmp_path):
    net = GlobalPoolingCNN(num_words=5, vectors=str(write_vectors(tmp_path / 'glove.txt')))
    net.set_words(['group1', 'unknown', 'the'])
    weight = net.embedding.weight
    assert not weight.requires_grad and weight.shape == (6, 6)
    assert weight[:, 0].tolist() == [0, 3, 0, 1, 0, 0]
    assert not net(texts(2, 30, 3))[0].isnan().any()


def test_without_vectors_they_are_trained():
    net = GlobalPoolingCNN(num_words=5, embed_dims=7)
    before = net.embedding.weight.clone()
    net.set_words(['a', 'b'])
    assert net.embedding.weight.requires_grad and torch.equal(net.embedding.weight, before)


def test_what_cannot_be_is_refused(tmp_path):
    with pytest.raises(ValueError, match='num_words must be an integer of at least 1, got 0'):
        GlobalPoolingCNN(num_words=0)
    with pytest.raises(TypeError, match='channels must be an integer of at least 1, got True'):
        GlobalPoolingCNN(channels=True)
    with pytest.raises(FileNotFoundError, match=r'nlp\.stanford\.edu/projects/glove/'):
        GlobalPoolingCNN(vectors=str(tmp_path / 'glove.6B.100d.txt'))
    # With a known size, only training needs the file.
    net = GlobalPoolingCNN(num_words=5, vectors=str(tmp_path / 'glove.txt'), embed_dims=7)
    with pytest.raises(FileNotFoundError, match=r'glove\.txt of word vectors'):
        net.set_words(['the'])
    write_vectors(tmp_path / 'glove.txt')
    with pytest.raises(ValueError, match='6 numbers per word, but embed_dims=7'):
        net.set_words(['the'])
    with pytest.raises(ValueError, match='6 words are more than num_words=5'):
        net.set_words(list('abcdef'))
    with pytest.raises(TypeError, match=r'int64 ids .* got torch\.float32'):
        net(torch.zeros(2, 30))
    with pytest.raises(ValueError, match=f'at least {WINDOW}, got 20'):
        net(torch.zeros(2, 20, dtype=torch.int64))
    other = GlobalPoolingCNN(num_words=5, embed_dims=6)
    with pytest.raises(ValueError, match='has 5 words of 7 numbers, but num_words=5 and embed_d'):
        _load_checkpoint_to_model(other, net.state_dict())
