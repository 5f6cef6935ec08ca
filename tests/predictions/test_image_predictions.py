"""Predictions of any shape: their rows, parts, labels and regions."""

import itertools

import pytest
import torch

from mmcalib.predictions.contract import Contract
from mmcalib.predictions.image_predictions import (
    class_columns,
    concatenate,
    predictions_from_confidences,
)


def random_logits(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def random_labels(logits):
    torch.manual_seed(1)
    labels = torch.randint(max(logits.shape[1], 2), logits[:, 0].shape)
    return labels.masked_fill(torch.rand(labels.shape) < 0.3, 255)


@pytest.mark.parametrize('shape', [(7, 4), (3, 4, 5, 6), (2, 3, 2, 3, 4), (3, 1, 5, 6)])
def test_valid_rows_any_shape_equal_loop(shape):
    logits = random_logits(*shape)
    labels = random_labels(logits)
    contract = Contract(ignore_index=255)
    contract.read(random_logits(10, *shape[1:]), random_labels(random_logits(10, *shape[1:])))
    predictions = contract.read(logits, labels)
    images = []
    expected_labels = []
    expected_logits = []
    for index in itertools.product(*map(range, labels.shape)):
        label = labels[index].item()
        if label != 255:
            images.append(10 + index[0])
            expected_labels.append(label)
            expected_logits.append(logits[(index[0], slice(None), *index[1:])].tolist())
    rows = predictions.valid_rows()
    assert rows.images.tolist() == images
    assert rows.labels.tolist() == expected_labels
    assert rows.logits.tolist() == expected_logits


@pytest.mark.parametrize('shape', [(7, 4), (3, 4, 5, 6), (2, 3, 2, 3, 4)])
def test_concatenate_maps_of_parts_equals_whole(shape):
    logits = random_logits(*shape)
    predictions = Contract(ignore_index=255).read(logits, random_labels(logits))
    parts = [predictions.select(slice(start, start + 2)) for start in range(0, len(logits), 2)]
    maps = []
    for part in parts:
        maps += part.split_maps()
    actual = concatenate(maps)
    for name in ('logits', 'labels', 'predicted', 'images'):
        assert torch.equal(getattr(actual, name), getattr(predictions, name))
    assert len(maps) == (len(logits) if predictions.are_maps else len(parts))


def test_split_labels_equals_binary_heads():
    logits = random_logits(6, 3)
    labels = torch.tensor([[0, 1, 255]] * 6)
    predictions = Contract(ignore_index=255).read(logits, labels)
    assert predictions.several_labels and not predictions.are_maps and predictions.num_classes == 2
    for index, actual in enumerate(predictions.split_labels()):
        expected = Contract(ignore_index=255).read(logits[:, index, None], labels[:, index])
        for name in ('logits', 'labels', 'predicted', 'images'):
            assert torch.equal(getattr(actual, name), getattr(expected, name))
        assert actual.several_labels is False
    num_valid = [
        len(label_predictions.valid_rows()) for label_predictions in predictions.split_labels()
    ]
    assert num_valid == [6, 6, 0]


def test_contract_binary_half_decides_class():
    probs = torch.tensor([0.2, 0.4, 0.6])
    labels = torch.zeros(3, dtype=torch.int64)
    assert Contract().read(torch.logit(probs)[:, None], labels).predicted.tolist() == [0, 0, 1]
    assert Contract('probs').read(probs, labels).predicted.tolist() == [0, 0, 1]


def test_predictions_from_confidences_predict_that_each_is_right():
    conf = torch.tensor([0.9, 0.3])
    predictions = predictions_from_confidences(conf, torch.tensor([True, False]))
    assert predictions.scores[:, 0].tolist() == conf.tolist()
    assert (predictions.predicted == predictions.labels).tolist() == [True, False]


def test_contract_copies_no_scores():
    logits = random_logits(1, 4, 5, 6)
    predictions = Contract().read(logits, torch.zeros(1, 5, 6, dtype=torch.int64))
    assert predictions.logits.data_ptr() == logits.data_ptr()
    assert class_columns(predictions.scores).data_ptr() == logits.data_ptr()


def test_within_pixels_outside_of_region_are_not_valid():
    logits = random_logits(1, 3, 4, 5)
    predictions = Contract().read(logits, torch.zeros(1, 4, 5, dtype=torch.int64))
    region = torch.zeros(1, 4, 5, dtype=torch.bool)
    region[0, 1, 2] = True
    rows = predictions.within(region).valid_rows()
    assert rows.logits.tolist() == [logits[0, :, 1, 2].tolist()]
