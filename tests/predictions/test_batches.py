"""Inputs and labels of a batch: declared, or asked for."""

import copy
from collections import namedtuple

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence
from torch.optim.swa_utils import AveragedModel

import mmcalib
from mmcalib.predictions.loader import reader

NUM_IMAGES = 600
FUNCTIONS = [mmcalib.evaluate, mmcalib.calibrate]


def draw_labels(logits):
    """Return classes that are as likely as the logits ``(N, K, *)`` say, ``(N, *)``."""
    generator = torch.Generator().manual_seed(1)
    rows = logits.movedim(1, -1).softmax(dim=-1)
    labels = torch.multinomial(rows.flatten(0, -2), 1, generator=generator)
    return labels.view(rows.shape[:-1])


class ImageAndTable(nn.Module):
    """A model that takes a table beside the image, if there is one."""

    def __init__(self):
        super().__init__()
        self.of_image = nn.Linear(8, 5)
        self.of_table = nn.Linear(3, 5)

    def forward(self, image, tabular=None):
        logits = self.of_image(image)
        return logits if tabular is None else logits + self.of_table(tabular)


class RenamedImageAndTable(ImageAndTable):
    def forward(self, x, tabular=None):
        return super().forward(x, tabular)


class AnyImageAndTable(ImageAndTable):
    def forward(self, image, **others):
        return super().forward(image, others.get('tabular'))


class WrappedImageAndTable(nn.Module):
    """A wrapper, as that of a training in parallel is, whose signature names nothing."""

    def __init__(self):
        super().__init__()
        self.module = ImageAndTable()

    def forward(self, *args, **kwargs):
        return self.module(*args, **kwargs)


class Speech(nn.Module):
    """A mean over the steps of padded sequences, of all steps if no lengths are given."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 5)

    def forward(self, data, lengths=None):
        logits = self.layer(data)
        if lengths is None:
            return logits.mean(dim=1)
        is_step = torch.arange(data.shape[1])[None] < lengths[:, None]
        return (logits * is_step[..., None]).sum(dim=1) / lengths[:, None]


def image_and_table():
    torch.manual_seed(0)
    return torch.randn(NUM_IMAGES, 8), 3 * torch.randn(NUM_IMAGES, 3)


MODELS = {
    'plain': ImageAndTable,
    'image of another name': RenamedImageAndTable,
    'keywords of any name': AnyImageAndTable,
    'wrapper': WrappedImageAndTable,
    'weight average': lambda: AveragedModel(ImageAndTable()),
    'compiled': lambda: torch.compile(ImageAndTable(), backend='eager'),
    'data parallel': lambda: nn.DataParallel(ImageAndTable()),
    'scripted': lambda: torch.jit.script(ImageAndTable()),
    'traced': lambda: torch.jit.trace(ImageAndTable(), image_and_table()),
}


@pytest.mark.filterwarnings('ignore')
@pytest.mark.parametrize('name', MODELS)
def test_evaluate_dict_gives_every_entry_that_forward_names(name):
    image, tabular = image_and_table()
    torch.manual_seed(1)
    plain_model = ImageAndTable()
    torch.manual_seed(1)
    model = MODELS[name]()
    with torch.no_grad():
        labels = draw_labels(plain_model(image, tabular))
    actual = mmcalib.evaluate(model, [{'image': image, 'tabular': tabular, 'label': labels}])
    assert actual == mmcalib.evaluate(plain_model, [((image, tabular), labels)])
    assert actual != mmcalib.evaluate(plain_model, [(image, labels)])


def test_calibrate_dict_gives_every_entry_that_forward_names():
    model = ImageAndTable()
    image, tabular = image_and_table()
    with torch.no_grad():
        labels = draw_labels(model(image, tabular) / 2)
    actual = mmcalib.calibrate(model, [{'image': image, 'tabular': tabular, 'label': labels}])
    expected = mmcalib.calibrate(model, [((image, tabular), labels)])
    assert actual.scaler.temperature_ == expected.scaler.temperature_ != 1


def test_calibrate_attached_to_wrapper_gives_every_entry_that_forward_names():
    model = nn.DataParallel(ImageAndTable())
    image, tabular = image_and_table()
    with torch.no_grad():
        labels = draw_labels(model(image, tabular) / 2)
    batch = {'image': image, 'tabular': tabular, 'label': labels}
    calibrated = mmcalib.calibrate(model, [batch], method='isotonic')
    assert calibrated.attached
    with torch.no_grad():
        logits = model(image, tabular)
    expected = calibrated.scaler.predict_proba(logits)
    actual = calibrated.model(image=image, tabular=tabular).softmax(dim=1)
    torch.testing.assert_close(actual, expected.to(actual), atol=1e-4, rtol=0)


def test_evaluate_data_with_lengths_gives_both():
    torch.manual_seed(0)
    model = Speech()
    data = torch.randn(200, 20, 8).cumsum(dim=1)
    lengths = torch.randint(1, 21, (200,))
    with torch.no_grad():
        labels = draw_labels(model(data, lengths))
    actual = mmcalib.evaluate(model, [{'data': data, 'lengths': lengths, 'label': labels}])
    assert actual == mmcalib.evaluate(model, [((data, lengths), labels)])


@pytest.mark.parametrize('function', FUNCTIONS)
def test_doors_misspelt_needed_input_raises_with_remedy(function):
    model = ImageAndTable()
    image, tabular = image_and_table()
    with torch.no_grad():
        labels = draw_labels(model(image, tabular))
    batch = {'picture': image, 'tabular': tabular, 'label': labels}
    with pytest.raises(ValueError, match='takes image, tabular, and not picture') as raised:
        function(model, [batch])
    unpack = eval(str(raised.value).partition('unpack=')[2])
    expected = mmcalib.evaluate(model, [((image, tabular), labels)])
    assert mmcalib.evaluate(model, [batch], unpack=unpack) == expected


@pytest.mark.parametrize('function', FUNCTIONS)
def test_doors_misspelt_optional_input_raises(function):
    image, table = image_and_table()
    labels = torch.arange(NUM_IMAGES) % 5
    with pytest.raises(ValueError, match=r'takes image, tabular, and not table: .*unpack='):
        function(ImageAndTable(), [{'image': image, 'table': table, 'label': labels}])


class Tagger(nn.Module):
    """A tagger that takes what is given it, as models do that pass a batch on."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Conv1d(6, 3, 1)

    def forward(self, x, **others):
        return self.layer(x)


class MaskedTagger(Tagger):
    def forward(self, x, mask=None):
        return self.layer(x)


class LossTagger(Tagger):
    """A tagger that computes its loss if it gets labels, as those of transformers do."""

    def forward(self, x, mask=None, labels=None):
        if labels is not None:
            raise RuntimeError('it got the labels')
        return self.layer(x)


def tagged_texts(model):
    """Return inputs, masks of what is no padding, and tags, -100 of padding."""
    torch.manual_seed(0)
    x = torch.randn(200, 6, 12)
    mask = (torch.arange(12)[None] < torch.randint(4, 13, (200, 1))).long()
    with torch.no_grad():
        tags = draw_labels(2 * model(x)).masked_fill(mask == 0, -100)
    return x, mask, tags


def accuracy(model, batch, **options):
    return mmcalib.evaluate(model, [batch], 'accuracy', ignore_index=-100, **options)


@pytest.mark.parametrize('function', FUNCTIONS)
def test_doors_two_entries_that_may_be_labels_raise_and_each_reading_is_shown(function):
    model = Tagger()
    x, mask, tags = tagged_texts(model)
    batch = {'x': x, 'mask': mask, 'target': tags}
    with pytest.raises(ValueError, match='mask and target of a batch') as raised:
        function(model, [batch], ignore_index=-100)
    message = str(raised.value)
    assert '\n' not in message
    readings = [eval(code.removesuffix(' or ')) for code in message.split('unpack=')[1:]]
    expected = accuracy(model, (x, tags))
    assert accuracy(model, batch, unpack=readings[1]) == expected
    assert accuracy(model, batch, unpack=readings[0]) != expected


@pytest.mark.parametrize(
    'keys', [('label', 'target'), ('labels', 'label'), ('label', 'mask'), ('labels', 'mask')]
)
def test_evaluate_any_two_label_keys_raise(keys):
    labels = torch.arange(4) % 3
    batch = {'image': torch.randn(4, 3), keys[0]: labels, keys[1]: labels}
    with pytest.raises(ValueError, match='may each be the labels'):
        mmcalib.evaluate(nn.Linear(3, 3), [batch])


@pytest.mark.parametrize(
    ('model_class', 'keys'),
    [(MaskedTagger, ('mask', 'target')), (LossTagger, ('mask', 'labels'))],
)
def test_evaluate_mask_that_forward_names_is_an_input(model_class, keys):
    model = model_class()
    x, mask, tags = tagged_texts(model)
    batch = {'x': x, **dict(zip(keys, (mask, tags), strict=True))}
    assert accuracy(model, batch) == accuracy(model, (x, tags))


def test_evaluate_sole_mask_that_forward_names_raises():
    model = MaskedTagger()
    x, mask, _ = tagged_texts(model)
    with pytest.raises(ValueError, match=r"unpack=lambda b: \(b\['x'\], b\['mask'\]\)"):
        accuracy(model, {'x': x, 'mask': mask})


class MarginHead(nn.Linear):
    """A head that needs the label, as those of face recognition do."""

    def forward(self, x, label):
        return super().forward(x)


def test_evaluate_label_that_forward_needs_raises_with_remedy():
    model = MarginHead(3, 2)
    batch = {'x': torch.randn(4, 3), 'label': torch.arange(4) % 2}
    with pytest.raises(ValueError, match='none of x, label is known to be the labels') as raised:
        mmcalib.evaluate(model, [batch])
    unpack = eval(str(raised.value).partition('unpack=')[2])
    expected = mmcalib.evaluate(nn.Identity(), [(model(**batch).detach(), batch['label'])])
    assert mmcalib.evaluate(model, [batch], unpack=unpack) == expected


@pytest.mark.parametrize('function', FUNCTIONS)
def test_doors_batch_of_three_raises_with_both_readings(function):
    model = MaskedTagger()
    batch = tagged_texts(model)
    with pytest.raises(ValueError, match=r'say which is the labels.*\(b\[0\], b\[1\]\)') as raised:
        function(model, [batch], ignore_index=-100)
    code = str(raised.value).partition('unpack=')[2].partition(' if the last is')[0]
    unpack = eval(code)
    assert accuracy(model, batch, unpack=unpack) == accuracy(model, (batch[0], batch[2]))


def test_calibrate_batch_with_an_object_without_a_copy_is_read():
    torch.manual_seed(0)
    inputs = torch.randn(60, 3)
    labels = (inputs + torch.randn(60, 3)).argmax(dim=1)
    model = nn.Identity()
    with open(__file__) as file:
        batch = {'image': inputs, 'file': file, 'label': labels}
        calibrated = mmcalib.calibrate(model, [batch], unpack=lambda b: (b['image'], b['label']))
    assert calibrated.after == mmcalib.calibrate(nn.Identity(), [(inputs, labels)]).after


def test_evaluate_single_entry_is_the_one_argument():
    inputs = torch.randn(4, 3)
    labels = torch.arange(4) % 2
    model = nn.Linear(3, 2)
    expected = mmcalib.evaluate(model, [(inputs, labels)])
    assert mmcalib.evaluate(model, [{'pixels': inputs, 'label': labels}]) == expected
    batch = {'image': inputs, 'meta': {'affine': torch.eye(4)}, 'label': labels}
    assert mmcalib.evaluate(model, [batch]) == expected
    assert mmcalib.evaluate(model, [[batch]]) == expected


class OptionalInputs(nn.Linear):
    """A model that needs none of its inputs, as those of transformers do."""

    def forward(self, pixel_values=None, positions=None, **options):
        return super().forward(pixel_values)


def test_evaluate_single_entry_without_need_is_the_first_argument():
    inputs = torch.randn(4, 3)
    labels = torch.arange(4) % 2
    model = OptionalInputs(3, 2)
    expected = mmcalib.evaluate(model, [(inputs, labels)])
    assert mmcalib.evaluate(model, [{'image': inputs, 'label': labels}]) == expected


class WholeDict(nn.Linear):
    def forward(self, batch):
        return super().forward(batch['x'])


@pytest.mark.parametrize('others', [{}, {'y': torch.ones(4)}])
@pytest.mark.parametrize('function', FUNCTIONS)
def test_doors_forward_of_the_whole_dict_raises_with_remedy(function, others):
    labels = torch.arange(4) % 2
    batch = {'x': torch.randn(4, 3), **others, 'label': labels}
    model = WholeDict(3, 2)
    with pytest.raises(ValueError, match='for the whole dict') as raised:
        function(model, [batch])
    code = str(raised.value).rpartition('unpack=')[2].removesuffix(' for the whole dict')
    actual = mmcalib.evaluate(model, [batch], unpack=eval(code))
    assert actual == mmcalib.evaluate(nn.Identity(), [(model(batch).detach(), labels)])


Pair = namedtuple('Pair', 'left right')


class PackedModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.recurrent = nn.GRU(8, 5, batch_first=True)

    def forward(self, packed, state=None, cell=None, mask=None):
        return self.recurrent(packed, state)[1][-1]


class BagModel(nn.Module):
    """A model of bags of several images each."""

    def forward(self, bags, weights=None):
        return torch.stack([bag.mean(dim=0) for bag in bags])


def packed_sequences():
    lengths = torch.arange(20) % 9 + 1
    return pack_padded_sequence(
        torch.randn(20, 10, 8), lengths, batch_first=True, enforce_sorted=False
    )


@pytest.mark.parametrize(
    ('model', 'inputs'),
    [
        (PackedModel(), packed_sequences()),
        (lambda pair, scale=1.0: pair.left + pair.right, Pair(*torch.randn(2, 20, 5))),
        (BagModel(), [torch.randn(size, 5) for size in range(3, 23)]),
        (BagModel(), [torch.randn(20 + size, 5) for size in range(2)]),
        (BagModel(), [torch.randn(7, 5)]),
    ],
    ids=['packed sequence', 'named tuple', 'bags', 'two bags', 'one bag'],
)
def test_reader_inputs_that_are_one_argument_equal_call(model, inputs):
    with torch.no_grad():
        expected = model(copy.deepcopy(inputs))
    labels = torch.arange(len(expected)) % 5
    for batch in ((inputs, labels), {'inputs': inputs, 'label': labels}):
        with reader(model) as read:
            assert torch.equal(read(batch)[0], expected)
