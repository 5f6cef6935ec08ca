"""Inputs and labels of a batch: declared, or asked for."""

import copy
import re
from collections import namedtuple
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence
from torch.optim.swa_utils import AveragedModel

import mmcalib
from mmcalib.predictions.loader import reader

NUM_IMAGES = 600


def draw_labels(logits):
    """Return classes that are as likely as the logits ``(N, K, *)`` say, ``(N, *)``."""
    torch.manual_seed(1)
    rows = logits.movedim(1, -1).softmax(dim=-1)
    labels = torch.multinomial(rows.flatten(0, -2), 1)
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


def readings(model, batch, message, **options):
    """Return the functions for ``unpack`` that the error about a batch shows."""
    with pytest.raises(ValueError, match=message) as raised:
        mmcalib.evaluate(model, [batch], **options)
    assert '\n' not in str(raised.value)
    codes = str(raised.value).split('unpack=')[1:]
    return [eval(re.split(',? or | if the | for (?:the|a) ', code)[0]) for code in codes]


@pytest.mark.parametrize(
    ('keys', 'message'),
    [
        (('picture', 'tabular'), 'takes image, tabular, and not picture'),
        (('image', 'table'), 'takes image, tabular, and not table, name: '),
    ],
)
def test_evaluate_misspelt_input_raises_with_remedy(keys, message):
    image, table = image_and_table()
    labels = torch.arange(NUM_IMAGES) % 5
    model = ImageAndTable()
    batch = {keys[0]: image, keys[1]: table, 'name': ['a'] * NUM_IMAGES, 'label': labels}
    (unpack,) = readings(model, batch, message)
    expected = mmcalib.evaluate(model, [((image, table), labels)])
    assert mmcalib.evaluate(model, [batch], unpack=unpack) == expected


def test_evaluate_batch_of_image_label_and_table_raises_with_remedy_of_both():
    image, table = image_and_table()
    labels = torch.arange(NUM_IMAGES) % 5
    model = ImageAndTable()
    batch = (image, labels, table)
    *_, unpack = readings(model, batch, 'if the second is')
    expected = mmcalib.evaluate(model, [((image, table), labels)])
    assert mmcalib.evaluate(model, [batch], unpack=unpack) == expected


def test_evaluate_mask_that_may_be_an_input_is_in_the_remedy_of_labels():
    model = MaskedTagger()
    x, mask, tags = tagged_texts(model)
    with pytest.raises(ValueError) as raised:
        accuracy(model, {'x': x, 'att_mask': mask, 'labels': tags})
    assert "({'x': b['x'], 'mask': b['att_mask']}, b['labels'])" in str(raised.value)


def test_evaluate_object_of_inputs_and_labels_raises_with_remedy():
    inputs, labels, _ = labelled_rows()
    batch = SimpleNamespace(x=inputs, y=labels)
    unpack, *_ = readings(nn.Identity(), batch, 'the whole object')
    actual = mmcalib.evaluate(nn.Identity(), [batch], unpack=unpack)
    assert actual == mmcalib.evaluate(nn.Identity(), [(inputs, labels)])


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


def test_evaluate_two_entries_that_may_be_labels_raise_and_each_reading_is_shown():
    model = Tagger()
    x, mask, tags = tagged_texts(model)
    batch = {'x': x, 'mask': mask, 'target': tags}
    of_mask, of_tags = readings(model, batch, 'mask and target of a batch', ignore_index=-100)
    expected = accuracy(model, (x, tags))
    assert accuracy(model, batch, unpack=of_tags) == expected
    assert accuracy(model, batch, unpack=of_mask) != expected


def labelled_rows():
    """Return inputs, two classes, and which rows are valid, 0 or 1."""
    torch.manual_seed(0)
    labels = torch.randint(0, 2, (300,))
    inputs = nn.functional.one_hot(labels, 2) + torch.randn(300, 2)
    return inputs, labels, (torch.rand(300) < 0.3 + 0.5 * labels).long()


@pytest.mark.parametrize('key', ['y', 'gt', 'class', 'class_id', 'targets', 'labels2', 'diagnosis'])
@pytest.mark.parametrize(
    ('vague_key', 'change'),
    [
        ('mask', lambda y: y),
        ('target', torch.Tensor.float),
        ('mask', torch.Tensor.bool),
        ('target', torch.Tensor.tolist),
    ],
)
def test_evaluate_mask_or_target_beside_other_classes_raises(change, vague_key, key):
    inputs, labels, mask = labelled_rows()
    batch = {'image': inputs, key: change(labels), vague_key: mask}
    model = nn.Identity()
    _, unpack = readings(model, batch, f'^{vague_key} and {key} of a batch may each')
    expected = mmcalib.evaluate(model, [(inputs, labels)])
    assert mmcalib.evaluate(model, [batch], unpack=unpack) == expected


def test_evaluate_mask_of_classes_beside_labels_raises():
    inputs, labels, _ = labelled_rows()
    batch = {'image': inputs, 'y': labels, 'mask': torch.ones(300, 2).long()}
    with pytest.raises(ValueError, match='mask and y of a batch may each'):
        mmcalib.evaluate(nn.Identity(), [batch])


OTHER_ENTRIES = {
    'index': torch.arange(300),
    'patient_id': torch.arange(300) // 10,
    'length': torch.arange(300) % 7,
    'weight': torch.rand(300),
    'weight_map': torch.ones(300),
    'name': ['a'] * 300,
    'size': torch.tensor([[8, 8]]).repeat(300, 1),
    'epoch': 3,
}


@pytest.mark.parametrize('label_key', ['label', 'labels', 'mask', 'target'])
def test_evaluate_entries_that_are_no_labels_are_left_out(label_key):
    inputs, labels, _ = labelled_rows()
    batch = {'image': inputs, **OTHER_ENTRIES, label_key: labels}
    actual = mmcalib.evaluate(nn.Identity(), [batch])
    assert actual == mmcalib.evaluate(nn.Identity(), [(inputs, labels)])


def test_evaluate_image_of_integers_beside_mask_is_read():
    torch.manual_seed(0)
    image = torch.randint(0, 255, (4, 1, 8, 8), dtype=torch.uint8)
    mask = torch.randint(0, 2, (4, 8, 8))
    weight_map = torch.rand(4, 8, 8)

    def model(x):
        return torch.cat([x, 255 - x], dim=1) / 50

    expected = mmcalib.evaluate(model, [(image, mask)])
    batch = {'image': image, 'mask': mask, 'weight_map': weight_map}
    assert mmcalib.evaluate(model, [batch]) == expected


def test_evaluate_several_unnamed_classes_are_each_shown():
    inputs, labels, _ = labelled_rows()
    batch = {
        'id': torch.arange(300),
        'coarse_label': labels // 2,
        'img': inputs,
        'fine_label': labels,
    }
    with pytest.raises(ValueError) as raised:
        mmcalib.evaluate(nn.Linear(2, 2), [batch])
    readings = "(b['img'], b['coarse_label']) or unpack=lambda b: (b['img'], b['fine_label'])"
    assert readings in str(raised.value)


def test_evaluate_remedy_gives_the_image_and_not_its_id():
    inputs, labels, _ = labelled_rows()
    batch = {'id': torch.arange(300), 'img': inputs, 'label': labels}
    with pytest.raises(ValueError, match=r"\(b\['img'\], b\['label'\]\)"):
        mmcalib.evaluate(nn.Linear(2, 2), [batch])


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
    (unpack,) = readings(model, batch, 'none of x, label is known to be the labels')
    expected = mmcalib.evaluate(nn.Identity(), [(model(**batch).detach(), batch['label'])])
    assert mmcalib.evaluate(model, [batch], unpack=unpack) == expected


def test_evaluate_batch_of_three_raises_with_both_readings():
    model = MaskedTagger()
    batch = tagged_texts(model)
    message = r'say which is the labels.*\(b\[0\], b\[1\]\)'
    unpack, *_ = readings(model, batch, message, ignore_index=-100)
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
def test_evaluate_forward_of_the_whole_dict_raises_with_remedy(others):
    labels = torch.arange(4) % 2
    batch = {'x': torch.randn(4, 3), **others, 'label': labels}
    model = WholeDict(3, 2)
    *_, unpack = readings(model, batch, 'for the whole dict')
    actual = mmcalib.evaluate(model, [batch], unpack=unpack)
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
            assert torch.equal(read(batch), expected)
