"""Errors about the batches of a loader: one line each, with the value and the remedy."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import mmcalib
from mmcalib.losses import MarginLabelSmoothingLoss
from mmcalib.metrics import measure
from mmcalib.posthoc import TemperatureScaler

LOGITS = torch.randn(12, 3, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(12) % 3
MAPS = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
FUNCTIONS = [mmcalib.evaluate, mmcalib.calibrate]


class Named(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, pixels):
        return self.layer(pixels)


def error_message(function, *arguments, **options):
    """Return the one line of the ValueError that a call raises."""
    with pytest.raises(ValueError) as error:
        function(*arguments, **options)
    message = str(error.value)
    assert '\n' not in message
    return message


def batch_error(batch, model=None):
    """Return the line about a batch of a loader."""
    return error_message(mmcalib.evaluate, model or Named(), [batch])


def readers(logits, labels, **options):
    """Return functions without arguments that read logits and labels, one for each door."""
    loader = [(logits, labels)]
    model = nn.Identity()
    return [
        lambda: mmcalib.evaluate(model, loader, **options),
        lambda: mmcalib.calibrate(model, loader, **options),
        lambda: measure(logits.softmax(1), labels, **options),
        lambda: TemperatureScaler().fit(logits, labels, **options),
    ]


@pytest.mark.parametrize('logits', [LOGITS, MAPS])
def test_wrong_ignore_index_is_named(logits):
    labels = torch.zeros(len(logits), *logits.shape[2:], dtype=torch.long)
    labels[0] = 255
    for read in readers(logits, labels, ignore_index=-100):
        message = error_message(read)
        assert '255' in message and 'ignore_index=-100' in message
        assert 'set ignore_index' not in message


@pytest.mark.parametrize('logits', [LOGITS, MAPS])
@pytest.mark.parametrize('options', [{}, dict(ignore_index=255)])
def test_labels_that_start_at_one_are_asked_for(logits, options):
    shape = logits[:, 0].shape
    labels = 1 + torch.arange(logits[:, 0].numel()).reshape(shape) % 3
    reads = readers(logits, labels, **options)
    reads.append(lambda: MarginLabelSmoothingLoss(**options)(logits, labels))
    for read in reads:
        message = error_message(read)
        assert 'numbered from 1' in message and 'subtract 1' in message
        assert 'ignore_index=3' in message
    labels[0] = 0
    for read in readers(logits, labels, **options):
        assert 'numbered from 1' not in error_message(read)


@pytest.mark.parametrize('function', FUNCTIONS)
@pytest.mark.parametrize('pair', [(LOGITS, LABELS), [LOGITS, LABELS], (LOGITS.numpy(), LABELS)])
def test_arrays_in_place_of_a_loader_are_told_to_be_batches(function, pair):
    assert '[(inputs, labels)]' in error_message(function, Named(), pair)
    assert '[(inputs, labels)]' in error_message(function, Named(), ({'pixels': LOGITS}, LABELS))


def test_data_set_in_place_of_a_loader_raises():
    with pytest.raises(TypeError, match=r'TensorDataset .*DataLoader of it'):
        mmcalib.evaluate(Named(), TensorDataset(LOGITS, LABELS))


def test_wrong_number_of_several_labels_is_named():
    labels = torch.tensor([[1.0, 1.0], [0.0, 1.0]]).repeat(6, 1)
    assert '2 labels for 3 logits' in batch_error((LOGITS, labels))


def test_two_batches_are_no_arrays():
    batches = [(LOGITS[:6], LABELS[:6]), (LOGITS[6:], LABELS[6:])]
    data = DataLoader(TensorDataset(LOGITS, LABELS), batch_size=6)
    model = Named()
    assert mmcalib.evaluate(model, batches) == mmcalib.evaluate(model, data)


@pytest.mark.parametrize('shape', [(8, 8), (4, 4, 4)])
def test_masks_one_hot_or_of_several_classes_are_told_apart(shape):
    labels = torch.arange(2 * np.prod(shape)).reshape(2, *shape) % 3
    logits = torch.randn(2, 3, *shape)
    one_hot = nn.functional.one_hot(labels, 3).movedim(-1, 1)
    message = batch_error((logits, one_hot), nn.Identity())
    assert 'one-hot' in message and 'argmax(1)' in message
    regions = one_hot.clone()  # Regions are nested as in BraTS, where a tumour contains its core.
    regions[:, 1] |= regions[:, 2]
    message = batch_error((logits, regions), nn.Identity())
    assert 'several classes' in message and 'one-hot' not in message
    without_background = regions[:, 1:]
    message = batch_error((logits, without_background), nn.Identity())
    assert 'several classes' in message and '(2, 2, ' in message


def test_inputs_that_are_no_tensors_are_named():
    texts = ['a text'] * 12
    assert 'tokenizer' in batch_error((texts, LABELS))
    assert 'texts' in batch_error(({'pixels': texts}, LABELS))
    assert 'from_numpy' in batch_error((LOGITS.numpy(), LABELS))
    assert 'numpy' in batch_error(({'pixels': LOGITS.numpy()}, LABELS))
    assert 'lists' in batch_error(({'pixels': LOGITS.tolist()}, LABELS))
    assert 'lists' in batch_error((LOGITS.tolist(), LABELS))


class Held:
    """An object that holds a model, as a result of calibrate and a net of skorch do."""

    def __init__(self, name):
        setattr(self, name, Named())


class DataFrame(list):
    columns = ('x', 'y')


@pytest.mark.parametrize('function', FUNCTIONS)
@pytest.mark.parametrize('name', ['model', 'module_'])
def test_objects_that_hold_a_model_are_asked_for_it(function, name):
    with pytest.raises(TypeError, match=rf'give the model in it, its \.{name}'):
        function(Held(name), [(LOGITS, LABELS)])


@pytest.mark.parametrize('function', FUNCTIONS)
def test_loader_before_model_is_named(function):
    with pytest.raises(TypeError, match=r'model comes first, as \w+\(model, loader\)'):
        function([(LOGITS, LABELS)], Named())


@pytest.mark.parametrize('loader', ['images/', {'val': [(LOGITS, LABELS)]}, DataFrame('xy'), 5])
def test_objects_that_give_names_are_no_loaders(loader):
    message = rf'must give batches \(inputs, labels\).*got {type(loader).__name__}'
    with pytest.raises(TypeError, match=message):
        mmcalib.evaluate(Named(), loader)


def test_labels_that_are_texts_are_named():
    with pytest.raises(TypeError, match="'cat': number the classes as the model does"):
        mmcalib.evaluate(Named(), [(LOGITS, ['cat'] * 12)])


def test_list_of_samples_is_asked_to_be_collated():
    samples = [{'pixels': LOGITS[0], 'label': 1}] * 3
    assert 'collate them' in batch_error(samples)


class Scores(nn.Module):
    """A model that returns integers, or a tensor in parts."""

    def __init__(self, change):
        super().__init__()
        self.change = change

    def forward(self, logits):
        return self.change(logits)


class Distributed:
    def __init__(self, values):
        self.values = values

    def full_tensor(self):
        return self.values


def quantize(logits):
    return torch.quantize_per_tensor(logits, 0.1, 0, torch.qint8)


@pytest.mark.filterwarnings('ignore')
@pytest.mark.parametrize(
    ('change', 'remedy'),
    [
        (lambda logits: (10 * logits).to(torch.int8), 'scale * (output.float() - zero_point)'),
        (lambda logits: logits.argmax(dim=1), 'take out argmax'),
        (quantize, 'logits=torch.dequantize'),
    ],
)
def test_outputs_of_integers_get_a_remedy(change, remedy):
    assert remedy in batch_error((LOGITS, LABELS), Scores(change))


def test_outputs_in_parts_are_read_whole():
    model = Scores(Distributed)
    assert mmcalib.evaluate(model, [(LOGITS, LABELS)]) == mmcalib.evaluate(
        nn.Identity(), [(LOGITS, LABELS)]
    )


def test_features_as_logits_are_asked_for():
    torch.manual_seed(0)
    features = torch.randn(40, 64).relu()
    message = error_message(mmcalib.calibrate, nn.Identity(), [(features, torch.arange(40) % 5)])
    assert 'return features, since 5 of its 64 outputs have a label' in message


def test_memory_errors_of_the_model_stay():
    class Full(nn.Module):
        def forward(self, pixels, step):
            raise torch.OutOfMemoryError('raised by the model')

    with pytest.raises(torch.OutOfMemoryError):
        mmcalib.evaluate(Full(), [({'pixels': LOGITS.tolist(), 'step': 3}, LABELS)])


def test_errors_of_the_model_itself_stay():
    class Broken(nn.Module):
        def forward(self, x):
            raise TypeError('raised by the model')

    with pytest.raises(TypeError, match='raised by the model'):
        mmcalib.evaluate(Broken(), [(LOGITS, LABELS)])
