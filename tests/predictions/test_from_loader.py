"""Logits and labels of any model, from any loader's batches."""

import itertools

import numpy as np
import pytest
import torch
from mmengine.dataset import DefaultSampler
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

import mmcalib
from mmcalib.predictions.groups import group_numbers
from mmcalib.predictions.loader import read_loader, reader

IMAGES, CLASSES = torch.arange(12.0).view(4, 3) / 7, torch.tensor([0, 1, 1, 0])


class Output(dict):
    """As of transformers."""

    logits = property(lambda self: self['logits'])


class Named(nn.Linear):
    def forward(self, pixel_values):
        return Output(logits=super().forward(pixel_values))


class Pair(nn.Linear):
    def forward(self, left, right):
        return {'out': super().forward(left + right), 'aux': left}


def model_of(kind=nn.Linear, classes=2):
    torch.manual_seed(0)
    return kind(3, classes)


@pytest.mark.parametrize(
    ('kind', 'batch', 'logits'),
    [
        (nn.Linear, (IMAGES, CLASSES), None),
        (nn.Linear, [IMAGES, CLASSES[:, None]], None),
        (nn.Linear, {'image': IMAGES, 'label': CLASSES.float(), 'path': 'x'}, None),
        (nn.Linear, {'data': IMAGES, 'target': CLASSES, 'keys': ['x']}, None),
        (Named, {'pixel_values': IMAGES, 'labels': CLASSES}, None),
        (Named, (dict(pixel_values=IMAGES), CLASSES.tolist()), lambda output: output['logits']),
        (Pair, ((IMAGES, 0 * IMAGES), CLASSES.numpy()), None),
    ],
)
def test_batches_of_all_libraries(kind, batch, logits):
    model = model_of(kind)
    with reader(model, logits=logits) as read:
        found, labels = read(batch)
    expected = nn.functional.linear(IMAGES, model.weight, model.bias)
    assert torch.equal(found, expected) and torch.equal(labels, CLASSES)
    assert labels.dtype == torch.int64 and not found.requires_grad


def test_the_model_and_the_random_state_are_as_before():
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3).eval(), nn.Dropout(), nn.Linear(3, 2))
    kept, modes = {k: v.clone() for k, v in model.state_dict().items()}, [True, True, False, True]
    loader = DataLoader(TensorDataset(IMAGES, CLASSES), batch_size=3, shuffle=True)
    state = torch.get_rng_state()
    found = torch.cat([labels for _, labels in read_loader(model, loader, 'Reading')])
    assert sorted(found.tolist()) == [0, 0, 1, 1]
    assert torch.equal(torch.get_rng_state(), state)
    assert [m.training for m in model.modules()] == [*modes, True]
    assert all(torch.equal(value, kept[key]) for key, value in model.state_dict().items())
    with reader(lambda x: model(x) + torch.rand(1)) as read:
        found, *_ = read((IMAGES, CLASSES)), torch.rand(1)
        assert torch.equal(read((IMAGES, CLASSES))[0], found[0])  # the same each time


def test_maps_volumes_and_several_labels():
    with reader(lambda x: x, ignore_index=255) as read:
        volume, labels = torch.randn(2, 3, 4, 5, 6), torch.full((2, 1, 4, 5, 6), 255)
        assert read((volume, labels))[1].shape == (2, 4, 5, 6)
        several = torch.tensor([[1.0, 1, 0], [0, 255, 1]])
        labels = read((torch.randn(2, 3), several))[1]
        assert torch.equal(labels, several.long())
        assert read((torch.randn(4), CLASSES))[0].shape == (4, 1)


ROWS = torch.randn(4, 3)
MASKED = ROWS.where(ROWS.max() > ROWS, -torch.inf)


@pytest.mark.parametrize(
    ('batch', 'options', 'remedy'),
    [
        (ROWS, {}, 'add the labels'),
        ((ROWS, CLASSES, CLASSES), {}, 'wrap the loader'),
        ({'image': ROWS}, {}, 'add the labels'),
        ({'x': ROWS, 'y': CLASSES}, {}, r"b\['x'\], b\['y'\]"),
        ((ROWS, CLASSES[0]), {}, 'DataLoader'),
        (([ROWS, ROWS], CLASSES), dict(logits=lambda x: x), r'tuple: .* output\[0\]'),
        ((ROWS, CLASSES), dict(logits=lambda x: {'cls': x}), r'dict of cls: .* output\[KEY\]'),
        ((ROWS, CLASSES), dict(logits=torch.Tensor.numpy), 'returns ndarray'),
        ((ROWS, CLASSES + 2), {}, 'ignore_index'),
        ((ROWS, CLASSES / 3), {}, 'whole numbers'),
        ((ROWS.softmax(1), CLASSES), {}, r'log\(\)'),
        ((ROWS / 0, CLASSES), {}, 'NaN or infinite'),
        ((MASKED, CLASSES), {}, '1 values of -inf .*masked'),
        ((torch.randn(4, 3, 2, 2), torch.zeros(4, 8, 8)), {}, r'interpolate them to \(8, 8\)'),
    ],
)
def test_one_line_with_the_remedy(batch, options, remedy):
    with (
        reader(lambda *x: x if len(x) > 1 else x[0], **options) as read,
        pytest.raises(ValueError, match=remedy) as found,
    ):
        read(batch)
    assert '\n' not in str(found.value)


def test_groups_belong_to_images_in_order():
    assert group_numbers(['b', 'a', 'b'], 3).tolist() == [0, 1, 0]
    with pytest.raises(ValueError, match='each of 4 images, got 3'):
        group_numbers(['b', 'a', 'b'], 4)
    loader = DataLoader(TensorDataset(IMAGES, CLASSES), shuffle=True)
    with pytest.raises(ValueError, match='shuffle=False'):
        group_numbers([0, 1, 0, 1], 4, loader)


def test_labels_of_one_class_are_not_one_hot():
    one_hot = nn.functional.one_hot(CLASSES, 3)
    with pytest.raises(ValueError, match='argmax'):
        list(read_loader(lambda x: x, [(ROWS, one_hot)] * 2, 'Reading'))
    two = one_hot.clone()
    two[0] = 1
    for batches in ([(ROWS, one_hot), (ROWS, two)], [(ROWS, two), (ROWS, one_hot)]):
        assert len(list(read_loader(lambda x: x, batches, 'Reading'))) == 2


def test_outputs_of_sigmoids():
    shares = torch.rand(12, 3)
    for outputs, labels in ((shares[:, :1], shares[:, 0] > 0.5), (shares, shares > 0.5)):
        with pytest.raises(ValueError, match=r'give logits=torch\.logit'):
            list(read_loader(lambda x: x, [(outputs, labels)], 'Reading'))
        assert list(read_loader(lambda x: x, [(outputs, labels)], 'Reading', logits=torch.logit))
    with pytest.warns(UserWarning, match='all lie in'):  # which cosines may
        assert list(read_loader(lambda x: x, [(shares, shares.argmax(1))], 'Reading'))
    with pytest.raises(TypeError, match="got 'cls'"):
        list(read_loader(lambda x: x, [(shares, shares.argmax(1))], 'Reading', logits='cls'))


def test_maps_and_rows_are_of_two_loaders():
    batches = [(torch.randn(2, 3, 4, 4), torch.zeros(2, 4, 4)), (torch.randn(1, 3), torch.ones(1))]
    with pytest.raises(ValueError, match='a loader of each'):
        list(read_loader(lambda x: x, batches, 'Reading'))


def test_a_spent_generator():
    with pytest.raises(ValueError, match='no batches'):
        list(read_loader(model_of(), iter([]), 'Reading'))


class Backwards(Sampler):
    """A sampler of a user's own, whose order no class tells."""

    def __init__(self, data):
        self.data = data

    def __iter__(self):
        return iter(range(len(self.data) - 1, -1, -1))

    def __len__(self):
        return len(self.data)


class EveryOther(Backwards):
    def __iter__(self):
        return iter(range(0, len(self.data), 2))

    def __len__(self):
        return len(self.data) // 2


UNORDERED = {
    'shuffle': lambda data: dict(shuffle=True),
    'a random subset': lambda data: dict(sampler=SubsetRandomSampler(range(len(data)))),
    'weights': lambda data: dict(sampler=WeightedRandomSampler([1.0] * len(data), len(data))),
    'a batch sampler': lambda data: dict(
        batch_sampler=BatchSampler(RandomSampler(data), 4, drop_last=False)
    ),
    'rows alone': lambda data: dict(batch_size=None, sampler=RandomSampler(data)),
    'a share of the processes': lambda data: dict(
        sampler=DistributedSampler(data, num_replicas=1, rank=0, shuffle=True)
    ),
    'the toolboxes': lambda data: dict(sampler=DefaultSampler(data, shuffle=True)),
    'a class of their own': lambda data: dict(sampler=Backwards(data)),
    'numbers read once': lambda data: dict(sampler=iter(range(len(data)))),
}
ORDERED = {
    'none': lambda data: dict(),
    'a batch sampler': lambda data: dict(
        batch_sampler=BatchSampler(SequentialSampler(data), 4, drop_last=False)
    ),
    'the toolboxes': lambda data: dict(sampler=DefaultSampler(data, shuffle=False)),
    'a part': lambda data: dict(sampler=EveryOther(data)),
}


class Noted(TensorDataset):
    """Rows with noisy labels; it notes what is read of it."""

    def __init__(self, n):
        rows = torch.randn(n, 3, generator=torch.Generator().manual_seed(0))
        labels = rows.argmax(dim=1)
        labels[::5] = (labels[::5] + 1) % 3
        super().__init__(rows, labels)
        self.seen = []

    def __getitem__(self, index):
        self.seen.append(index)
        return super().__getitem__(index)


def use_groups(function, loader, count):
    options = dict(groups=[number // 2 for number in range(count)])
    if function is mmcalib.evaluate:
        options['interval'] = 0.9
    function(nn.Identity(), loader, **options)


@pytest.mark.parametrize('function', [mmcalib.evaluate, mmcalib.calibrate])
@pytest.mark.parametrize('kind', UNORDERED)
def test_groups_loader_in_another_order_raises(kind, function):
    """Before it reads, since a pass over the data may take an hour."""
    data = Noted(30)
    loader = DataLoader(data, **UNORDERED[kind](data))
    state = torch.get_rng_state()
    with pytest.raises(ValueError, match='shuffle=False'):
        use_groups(function, loader, 30)
    assert not data.seen
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize('function', [mmcalib.evaluate, mmcalib.calibrate])
@pytest.mark.parametrize('kind', ORDERED)
def test_groups_loader_in_order_is_read(kind, function):
    data = Noted(60)
    loader = DataLoader(data, **ORDERED[kind](data))
    step = 2 if kind == 'a part' else 1
    use_groups(function, loader, 60 // step)
    assert data.seen == list(range(0, 60, step))


@pytest.mark.parametrize('shape', [(), (4, 5)], ids=['rows', 'maps'])
def test_evaluate_labels_with_an_axis_of_size_1_or_masked_equal_the_others(shape):
    torch.manual_seed(0)
    logits = torch.randn(12, 3, *shape)
    labels = (logits + torch.randn(logits.shape)).argmax(1)
    masked = np.ma.array(labels.numpy(), mask=torch.rand(labels.shape).numpy() < 0.3)
    ignored = torch.from_numpy(masked.filled(255))
    expected = mmcalib.evaluate(nn.Identity(), [(logits, labels)])
    for given in (labels[:, None], labels[..., None]):
        assert mmcalib.evaluate(nn.Identity(), [(logits, given)]) == expected
    found = mmcalib.evaluate(nn.Identity(), [(logits, masked)], ignore_index=255)
    assert found == mmcalib.evaluate(nn.Identity(), [(logits, ignored)], ignore_index=255)
    assert found != expected
    with pytest.raises(ValueError, match=r'mask.* ignore_index'):
        mmcalib.evaluate(nn.Identity(), [(logits, masked)])


def test_several_labels_of_which_some_are_ignored_are_not_one_hot():
    labels = torch.tensor([[1, 1, -1], [1, 0, 0], [0, 1, 0], [0, 0, 1]])
    options = dict(metrics='accuracy', ignore_index=-1)
    assert mmcalib.evaluate(nn.Identity(), [(ROWS, labels)], **options).shape == (3,)


def test_labels_of_several_classes_in_maps_are_not_called_one_hot():
    maps, labels = torch.randn(2, 3, 4, 4), torch.ones(2, 3, 4, 4)
    with pytest.raises(ValueError, match='several classes'):
        mmcalib.evaluate(nn.Identity(), [(maps, labels)])
    one_hot = nn.functional.one_hot(maps.argmax(1))
    for axis, given in ((3, one_hot), (1, one_hot.movedim(-1, 1))):
        with pytest.raises(ValueError, match=rf'one-hot: give labels.argmax\({axis}\)'):
            mmcalib.evaluate(nn.Identity(), [(maps, given)])


class LanguageModel(nn.Module):
    """A random model of 20 tokens, which predicts the next one."""

    def __init__(self, size=20):
        super().__init__()
        self.table = nn.Embedding(size, size)

    def forward(self, input_ids, labels=None):
        return Output(logits=self.table(input_ids))


def text_batches(n=3, length=9, size=20):
    torch.manual_seed(0)
    return [torch.randint(size, (4, length)) for _ in range(n)]


def by_token(output):
    return output.logits.movedim(-1, 1)


def next_token(output):
    return output.logits[:, :-1].movedim(-1, 1)


def test_evaluate_shifted_labels_equals_a_loop():
    model = LanguageModel()
    batches = [{'input_ids': ids, 'labels': ids[:, 1:]} for ids in text_batches()]
    found = mmcalib.evaluate(model, batches, 'NLL', logits=next_token)
    terms = []
    for ids in text_batches():
        for row in ids.tolist():
            for now, following in itertools.pairwise(row):
                log_probs = model.table.weight[now].log_softmax(0)
                terms.append(-log_probs[following].item())
    assert found == pytest.approx(sum(terms) / len(terms), abs=1e-5)


def test_few_labels_that_equal_their_token_by_chance_are_read():
    (ids,) = text_batches(n=1)
    labels = torch.full_like(ids, -100)
    labels[0, 0] = ids[0, 0]
    other = {'input_ids': ids, 'labels': (ids + 1) % 20}
    batches = [{'input_ids': ids, 'labels': labels}, other]
    assert (
        mmcalib.evaluate(LanguageModel(), batches, 'accuracy', logits=by_token, ignore_index=-100)
        < 50
    )


@pytest.mark.parametrize(
    ('batch', 'remedy'),
    [
        ((IMAGES, CLASSES + 1), 'numbered from 1.*subtract 1.*ignore_index=2'),
        ((['a text', 'another'], CLASSES[:2]), 'texts.*tokenizer'),
        ((IMAGES.numpy(), CLASSES), r'numpy.*from_numpy'),
        ({'pixel_values': IMAGES, 'name': 'x', 'labels': CLASSES}, 'takes pixel_values.*not name'),
        (IMAGES, r'\[\(inputs, labels\)\]'),
        ((IMAGES, torch.tensor([0, 1, 1, 4])), 'otherwise number the classes from 0 to 1'),
    ],
)
@pytest.mark.parametrize('function', [mmcalib.evaluate, mmcalib.calibrate])
def test_a_batch_that_a_model_cannot_take_raises_one_line(function, batch, remedy):
    kind = Named if isinstance(batch, dict) else nn.Linear
    with pytest.raises(ValueError, match=remedy) as found:
        function(model_of(kind), [batch])
    assert '\n' not in str(found.value)


@pytest.mark.parametrize('function', [mmcalib.evaluate, mmcalib.calibrate])
def test_inputs_and_labels_in_place_of_a_loader_raise(function):
    with pytest.raises(ValueError, match=r'in a list, as \[\(inputs, labels\)\]'):
        function(model_of(), (IMAGES, CLASSES))


def test_wrong_ignore_index_is_not_asked_for_again():
    labels = torch.tensor([0, 1, 255, 0])
    with pytest.raises(ValueError, match='not ignore_index=-100') as found:
        mmcalib.evaluate(model_of(), [(IMAGES, labels)], ignore_index=-100)
    assert 'set ignore_index' not in str(found.value)
    with pytest.raises(ValueError, match='not ignore_index=-100') as found:
        mmcalib.measure(torch.full((4, 2), 0.5), labels, ignore_index=-100)
    assert 'set ignore_index' not in str(found.value)


def test_errors_of_a_model_s_own_are_raised_as_they_are():
    with pytest.raises(RuntimeError, match='shapes'):
        mmcalib.evaluate(model_of(), [(IMAGES[:, :2], CLASSES)])


def test_functions_of_arrays_and_texts_are_read():
    lengths = mmcalib.evaluate(
        lambda *texts: torch.tensor([[1.0, len(text)] for text in texts]),
        [(['a', 'bbbb'], [1, 1])],
        'accuracy',
    )
    assert lengths == 50
    arrays = lambda x: torch.from_numpy(x[:, :2])  # noqa: E731
    assert mmcalib.evaluate(arrays, [(IMAGES.numpy(), CLASSES)], 'accuracy') == 50


def percentages(logits):
    return 100 * logits.softmax(dim=1)


def rounded_probabilities(logits):
    return (100 * logits.softmax(dim=1)).round() / 100


@pytest.mark.parametrize('output', [percentages, rounded_probabilities])
@pytest.mark.parametrize('function', [mmcalib.evaluate, mmcalib.calibrate])
def test_model_returns_percentages_or_rounded_probabilities_raises(function, output):
    torch.manual_seed(0)
    logits = 3 * torch.randn(40, 5)
    labels = (logits + 3 * torch.randn(40, 5)).argmax(dim=1)

    class Network(nn.Module):
        def forward(self, inputs):
            return output(inputs)

    with pytest.raises(ValueError, match='probabilities, which sum to'):
        function(Network(), [(logits, labels)])


def test_evaluate_ignore_index_that_is_no_integer_raises():
    with pytest.raises(TypeError, match="ignore_index must be an integer, got '255'"):
        mmcalib.evaluate(
            nn.Identity(), [(torch.randn(2, 3), torch.ones(2).long())], ignore_index='255'
        )


def test_evaluate_label_that_is_nan_is_named():
    labels = torch.tensor([1.0, 2.0, 0.0, 1.0, 2.0, float('nan')])
    with pytest.raises(ValueError, match=r'whole numbers, got \[nan\]'):
        mmcalib.evaluate(nn.Identity(), [(torch.randn(6, 3), labels)])
