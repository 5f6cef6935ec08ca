"""Logits and labels of any model, from any loader's batches."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.ao import quantization
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, TensorDataset
from tqdm import tqdm

import mmcalib
from mmcalib.predictions.loader import read_loader, reader

INPUTS = torch.arange(12.0).view(4, 3) / 7
LABELS = torch.tensor([0, 1, 1, 0])


class Output(dict):
    """An output of a model of transformers."""

    logits = property(lambda self: self['logits'])


class TransformersModel(nn.Linear):
    def forward(self, pixel_values):
        return Output(logits=super().forward(pixel_values))


class TwoInputModel(nn.Linear):
    def forward(self, left, right):
        return {'out': super().forward(left + right), 'aux': left}


def make_model(model_class=nn.Linear):
    torch.manual_seed(0)
    return model_class(3, 2)


@pytest.mark.parametrize(
    ('model_class', 'batch', 'logits'),
    [
        (nn.Linear, (INPUTS, LABELS), None),
        (nn.Linear, [INPUTS, LABELS[:, None]], None),
        (nn.Linear, {'image': INPUTS, 'label': LABELS.float(), 'path': 'x'}, None),
        (nn.Linear, {'data': INPUTS, 'target': LABELS, 'keys': ['x']}, None),
        (TransformersModel, {'pixel_values': INPUTS, 'labels': LABELS}, None),
        (
            TransformersModel,
            (dict(pixel_values=INPUTS), LABELS.tolist()),
            lambda output: output['logits'],
        ),
        (TwoInputModel, ((INPUTS, 0 * INPUTS), LABELS.numpy()), None),
    ],
)
def test_reader_batch_of_each_library_equals_model(model_class, batch, logits):
    model = make_model(model_class)
    (predictions,) = read_loader(model, [batch], 'Reading', logits=logits)
    expected = nn.functional.linear(INPUTS, model.weight, model.bias)
    assert torch.equal(predictions.logits, expected)
    assert torch.equal(predictions.labels, LABELS) and predictions.labels.dtype == torch.int64
    assert not predictions.logits.requires_grad


def test_read_loader_leaves_model_and_random_state():
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3).eval(), nn.Dropout(), nn.Linear(3, 2))
    modes = [module.training for module in model.modules()]
    state_before = {key: value.clone() for key, value in model.state_dict().items()}
    loader = DataLoader(TensorDataset(INPUTS, LABELS), batch_size=3, shuffle=True)
    random_state = torch.get_rng_state()
    labels = torch.cat([batch.labels for batch in read_loader(model, loader, 'Reading')])
    assert sorted(labels.tolist()) == [0, 0, 1, 1]
    assert torch.equal(torch.get_rng_state(), random_state)
    assert (
        [module.training for module in model.modules()] == modes == [True, True, False, True, True]
    )
    for key, value in model.state_dict().items():
        assert torch.equal(value, state_before[key])


class QuantizedModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.quantize = quantization.QuantStub()
        self.layers = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
        self.dequantize = quantization.DeQuantStub()

    def forward(self, inputs):
        return self.dequantize(self.layers(self.quantize(inputs)))


@pytest.mark.filterwarnings('ignore')
@pytest.mark.parametrize(
    ('prepare', 'config'),
    [
        (quantization.prepare_qat, quantization.get_default_qat_qconfig('fbgemm')),
        (quantization.prepare, quantization.get_default_qconfig('fbgemm')),
    ],
    ids=['fake quantization', 'observers'],
)
def test_evaluate_quantization_in_preparation_stays_as_it_is(prepare, config):
    torch.manual_seed(0)
    model = QuantizedModel()
    model.qconfig = config
    prepare(model.train(prepare is quantization.prepare_qat), inplace=True)
    model(INPUTS)
    state_before = {key: value.clone() for key, value in model.state_dict().items()}
    batches = [(5 * INPUTS, LABELS), (INPUTS, LABELS)]
    first = mmcalib.evaluate(model, batches, 'NLL')
    assert mmcalib.evaluate(model, batches[::-1], 'NLL') == pytest.approx(first, abs=1e-6)
    for key, value in model.state_dict().items():
        assert torch.equal(value, state_before[key]), key
    model(9 * INPUTS)
    assert any(not torch.equal(x, state_before[key]) for key, x in model.state_dict().items())


class Sample:
    def __init__(self, inputs):
        self.inputs = inputs


class WritingModel(nn.Linear):
    """A model that keeps its features in the object that it is given."""

    def forward(self, sample):
        sample.inputs = sample.inputs.relu() - 1
        return super().forward(sample.inputs)


def test_doors_model_that_writes_into_an_object_leaves_that_of_the_loader():
    torch.manual_seed(0)
    model = WritingModel(3, 2)
    nn.init.normal_(model.weight, std=2)
    batches = []
    for _ in range(5):
        batches.append((Sample(torch.randn(40, 3)), torch.arange(40) % 2))
    inputs_before = [sample.inputs for sample, _ in batches]
    value = mmcalib.evaluate(model, batches, 'NLL')
    assert mmcalib.evaluate(model, batches, 'NLL') == value
    with reader(model) as read:
        logits = torch.cat([read(batch) for batch in batches])
    labels = logits.argmax(dim=1)
    labels[::3] = 1 - labels[::3]
    for index, labels_of_batch in enumerate(labels.split(40)):
        batches[index] = (batches[index][0], labels_of_batch)
    assert mmcalib.calibrate(model, batches).folded_into
    for (sample, _), inputs in zip(batches, inputs_before, strict=True):
        assert sample.inputs is inputs


@pytest.mark.parametrize(
    ('function', 'options'),
    [(mmcalib.evaluate, {}), (mmcalib.evaluate, {'device': 'cpu'}), (mmcalib.calibrate, {})],
)
def test_doors_model_on_meta_device_raises(function, options):
    with pytest.raises(ValueError, match=r'on the meta device.*to_empty'):
        function(nn.Linear(3, 2, device='meta'), [(INPUTS, LABELS)], **options)


def test_reader_random_model_predicts_the_same_again():
    with reader(lambda inputs: inputs + torch.rand(1)) as read:
        logits = read((INPUTS, LABELS))
        torch.rand(1)
        assert torch.equal(read((INPUTS, LABELS)), logits)


def read_identity(batches, **options):
    """Return the batches of a loader, read with a model that returns its inputs."""
    return list(read_loader(lambda inputs: inputs, batches, 'Reading', **options))


def test_read_loader_volumes_and_several_labels_have_their_shapes():
    batch = (torch.randn(2, 3, 4, 5, 6), torch.full((2, 1, 4, 5, 6), 255))
    (predictions,) = read_identity([batch], ignore_index=255)
    assert predictions.labels.shape == (2, 4, 5, 6)
    several_labels = torch.tensor([[1.0, 1, 0], [0, 255, 1]])
    (predictions,) = read_identity([(torch.randn(2, 3), several_labels)], ignore_index=255)
    assert predictions.labels.tolist() == [[1, 1, 0], [0, -1, 1]]
    (predictions,) = read_identity([(torch.randn(4), LABELS)])
    assert predictions.logits.shape == (4, 1)


LOGITS = torch.randn(4, 3)
MASKED_LABELS = LOGITS.where(torch.arange(3) != LABELS[:, None], -torch.inf)


@pytest.mark.parametrize(
    ('batch', 'options', 'remedy'),
    [
        (LOGITS, {}, 'add the labels'),
        ((LOGITS, LABELS, LABELS), {}, 'say which is the labels'),
        ({'image': LOGITS}, {}, 'add the labels'),
        ({'x': LOGITS, 'y': LABELS}, {}, r"b\['x'\], b\['y'\]"),
        ((LOGITS, LABELS[0]), {}, 'DataLoader'),
        (([LOGITS, LOGITS], LABELS), dict(logits=lambda x: x), r'tuple: .* output\[0\]'),
        ((LOGITS, LABELS), dict(logits=lambda x: {'cls': x}), r'dict of cls: .* output\[KEY\]'),
        ((LOGITS, LABELS + 2), {}, 'ignore_index'),
        ((LOGITS, LABELS / 0), {}, r'whole numbers, got \[nan'),
        ((MASKED_LABELS, LABELS), {}, '-inf for 4 of 4 labels: mask no class'),
        ((LOGITS - torch.inf, LABELS), {}, '12 values of -inf .*masked'),
        ((LOGITS[:, :1] - torch.inf, LABELS > 0), {}, '4 values of -inf'),
        ((torch.randn(4, 3, 2, 2), torch.zeros(4, 8, 8)), {}, r'interpolate them to \(8, 8\)'),
        (
            (torch.randn(3, 4, 5), torch.ones(3, 4, 5)),
            {},
            r'maps of one class, give logits\[:, None\]',
        ),
        ((LOGITS[0], 1), {}, 'give batches, as DataLoader'),
        ((LOGITS, LABELS), dict(logits='cls'), "got 'cls'"),
        ((LOGITS, LABELS), dict(ignore_index='255'), "ignore_index must be an integer, got '255'"),
    ],
)
def test_read_loader_invalid_batch_raises_one_line_with_remedy(batch, options, remedy):
    with pytest.raises((TypeError, ValueError), match=remedy) as raised:
        model = lambda *inputs: inputs if len(inputs) > 1 else inputs[0]  # noqa: E731
        list(read_loader(model, [batch], 'Reading', **options))
    assert '\n' not in str(raised.value)


def test_read_loader_one_hot_labels_raises():
    one_hot = nn.functional.one_hot(LABELS, 3)
    with pytest.raises(ValueError, match='argmax'):
        read_identity([(LOGITS, one_hot)] * 2)
    two_labels = one_hot.clone()
    two_labels[0] = 1
    assert len(read_identity([(LOGITS, one_hot), (LOGITS, two_labels)])) == 2
    assert len(read_identity([(LOGITS, two_labels), (LOGITS, one_hot)])) == 2


@pytest.mark.parametrize('shape', [(12, 1), (12, 3), (2, 1, 8, 8)])
def test_read_loader_outputs_of_sigmoid_raises(shape):
    outputs = torch.rand(shape)
    batches = [(outputs, outputs > 0.5)]
    with pytest.raises(ValueError, match=r'give logits=lambda p: torch\.logit\(p, eps=1e-7\)'):
        read_identity(batches)
    assert read_identity(batches, logits=torch.logit)


@pytest.mark.parametrize(('total', 'probs'), [(1, 'p'), (100, r'\(p / 100\)')])
def test_read_loader_probabilities_raise_at_ten_images_or_at_the_end(total, probs):
    outputs = total * LOGITS.softmax(dim=1)
    with pytest.raises(ValueError, match=rf'sum to {total}, .*logits=lambda p: {probs}\.log'):
        read_identity([(outputs, LABELS)])

    def batches():
        yield from [(outputs[:1], LABELS[:1])] * 10
        pytest.fail('it goes on')

    with pytest.raises(ValueError, match=f'sum to {total}'):
        read_identity(batches())


def test_read_loader_evidence_of_single_images_is_read():
    """Logits that are never negative may sum to 1, or 100, for some of the images."""
    torch.manual_seed(0)
    logits = 40 * torch.rand(60, 3)
    logits[5] = torch.tensor([60.0, 30.0, 10.0])
    logits[9] = torch.tensor([0.5, 0.4, 0.1])
    labels = torch.arange(60) % 3
    singles = zip(logits.split(1), labels.split(1), strict=True)
    assert len(read_identity(list(singles))) == 60


def test_read_loader_softmax_logits_from_0_to_1_warns():
    cosines = torch.rand(12, 3)
    batches = [(cosines, cosines.argmax(1))]
    with pytest.warns(UserWarning, match='all lie in'):
        assert read_identity(batches)


class BatchesOfAProcess:
    """Every second batch, as the sampler of Accelerate gives them."""

    num_processes = 2

    def __iter__(self):
        return iter([[0, 1]])


class StreamOfAProcess(IterableDataset):
    num_processes = 2

    def __iter__(self):
        return zip(INPUTS, LABELS, strict=True)


DATASET = TensorDataset(INPUTS, LABELS)
PARTS = [
    DataLoader(DATASET, sampler=DistributedSampler(DATASET, num_replicas=2, rank=1)),
    DataLoader(DATASET, batch_sampler=BatchesOfAProcess()),
    DataLoader(StreamOfAProcess()),
]
PARTS.append(tqdm(PARTS[0], disable=True))


@pytest.mark.parametrize('loader', PARTS, ids=['sampler', 'batch sampler', 'stream', 'tqdm'])
def test_evaluate_loader_of_a_part_of_the_images_raises(loader):
    with pytest.raises(ValueError, match=r'one of 2 parts.*DataLoader.*StreamingMetrics'):
        mmcalib.evaluate(make_model(), loader)


def test_evaluate_sampler_of_one_process_is_read():
    sampler = DistributedSampler(DATASET, num_replicas=1, rank=0)
    model = make_model()
    actual = mmcalib.evaluate(model, DataLoader(DATASET, sampler=sampler), 'accuracy')
    assert actual == mmcalib.evaluate(model, [(INPUTS, LABELS)], 'accuracy')


def test_read_loader_spent_generator_raises():
    with pytest.raises(ValueError, match='no batches'):
        list(read_loader(make_model(), iter([]), 'Reading'))


@pytest.mark.parametrize('shape', [(), (4, 5)], ids=['rows', 'maps'])
def test_evaluate_labels_with_class_axis_or_mask_equal_plain_ones(shape):
    torch.manual_seed(0)
    logits = torch.randn(12, 3, *shape)
    labels = (logits + torch.randn(logits.shape)).argmax(1)
    masked = np.ma.array(labels.numpy(), mask=torch.rand(labels.shape).numpy() < 0.3)
    ignored = torch.from_numpy(masked.filled(255))
    expected = mmcalib.evaluate(nn.Identity(), [(logits, labels)])
    for labels_with_axis in (labels[:, None], labels[..., None]):
        assert mmcalib.evaluate(nn.Identity(), [(logits, labels_with_axis)]) == expected
    actual = mmcalib.evaluate(nn.Identity(), [(logits, masked)], ignore_index=255)
    assert actual == mmcalib.evaluate(nn.Identity(), [(logits, ignored)], ignore_index=255)
    assert actual != expected
    assert mmcalib.evaluate(nn.Identity(), [(logits, masked)]) == actual


def test_evaluate_several_labels_some_ignored_are_not_one_hot():
    labels = torch.tensor([[1, 1, -1], [1, 0, 0], [0, 1, 0], [0, 0, 1]])
    accuracy = mmcalib.evaluate(nn.Identity(), [(LOGITS, labels)], 'accuracy', ignore_index=-1)
    assert accuracy.shape == (3,)


def logits_by_length(*texts):
    return torch.tensor([[1.0, len(text)] for text in texts])


def first_columns(array):
    return torch.from_numpy(array[:, :2])


def test_evaluate_functions_of_texts_and_arrays_are_read():
    batch_of_texts = (['a', 'bbbb'], [1, 1])
    assert mmcalib.evaluate(logits_by_length, [batch_of_texts], 'accuracy') == 50
    batch_of_arrays = (INPUTS.numpy(), LABELS)
    assert mmcalib.evaluate(first_columns, [batch_of_arrays], 'accuracy') == 50


def test_read_loader_rounded_probabilities_raises():
    probs = (100 * torch.randn(40, 5).softmax(dim=1)).round() / 100
    with pytest.raises(ValueError, match='probabilities, which sum to'):
        read_identity([(probs, torch.arange(40) % 5)])


def test_read_loader_numpy_outputs_are_read():
    loader = [(LOGITS, LABELS)]
    (predictions,) = read_loader(lambda inputs: inputs.numpy(), loader, 'Reading')
    assert torch.equal(predictions.logits, LOGITS)
