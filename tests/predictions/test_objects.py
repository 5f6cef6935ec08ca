"""Connected components of predicted classes: against those of OpenCV."""

import cv2
import numpy as np
import pytest
import torch

from mmcalib.predictions.image_predictions import ImagePredictions
from mmcalib.predictions.objects import find_map_objects, find_objects, object_ious


def draw(size=(9, 11), num_classes=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(num_classes, *size, generator=generator, dtype=torch.float64)
    logits = torch.nn.functional.avg_pool2d(logits, 3, 1, 1) * 6
    labels = torch.randint(num_classes, size, generator=generator)
    labels = torch.where(torch.rand(size, generator=generator) < 0.7, logits.argmax(0), labels)
    labels[0, :4] = 255
    return logits, labels.numpy()


def components(mask):
    """Masks of what hangs together, also by corners, in the order of their first pixels."""
    count, number = cv2.connectedComponents(mask.astype(np.uint8), connectivity=8)
    return sorted((number == n for n in range(1, count)), key=lambda own: own.argmax())


def touching(mask, own):
    """The components of a mask that have a pixel of another one."""
    return sum((each for each in components(mask) if (each & own).any()), own & False)


@pytest.mark.parametrize('background', [None, 1])
@pytest.mark.parametrize('seed', range(3))
def test_objects_are_those_of_opencv(background, seed):
    logits, labels = draw(seed=seed)
    probs = logits.softmax(0).numpy()
    predicted, known = probs.argmax(0), labels != 255
    predictions = ImagePredictions(predicted=torch.from_numpy(predicted)[None], logits=logits[None])
    found = find_map_objects(predictions, background=background)
    ious = object_ious(found, labels)
    objects = [(k, own) for k in {0, 1, 2} - {background} for own in components(predicted == k)]
    assert len(found) == len(objects) > 3
    for number, (k, own) in enumerate(objects):
        np.testing.assert_array_equal(found.number == number, own)
        assert (found.label[number], found.pixels[number]) == (k, own.sum())
        assert found.confidence[number] == pytest.approx(probs[k][own].mean())
        inside = predicted == k
        missing = probs[k][touching(inside | (probs[k] >= 0.1), own) & ~inside].sum()
        expected = probs[k][own].sum() / (own.sum() + missing)
        assert found.expected_iou[number] == pytest.approx(expected)
        rows, columns = np.nonzero(own)
        box = [rows.min(), rows.max(), columns.min(), columns.max()]
        assert found.box[number].tolist() == box
        truth = touching(labels == k, own)
        both, either = (own & truth).sum(), (own & known | truth).sum()
        expected = both / either if (own & known).any() else np.nan
        assert ious[number] == pytest.approx(expected, nan_ok=True)


def test_one_pixel_is_an_object_and_nothing_is_none():
    predicted = np.zeros((3, 4), int)
    conf = np.full((3, 4), 0.8)
    nothing = find_objects(predicted, conf, lambda k: conf, background=0)
    assert len(nothing) == 0 and (nothing.number == -1).all()
    assert object_ious(nothing, predicted).shape == (0,)
    predicted[1, 2] = 1
    planes = {0: np.full((3, 4), 0.95), 1: np.where(predicted == 1, 0.8, 0.05)}
    (one,) = zip(*find_objects(predicted, conf, planes.get, background=0)[1:], strict=True)
    label, pixels, confidence, expected, box = one
    assert (label, pixels, box.tolist()) == (1, 1, [1, 1, 2, 2])
    assert confidence == pytest.approx(0.8) and expected == pytest.approx(0.8)
    everything = find_objects(predicted, conf, planes.get)
    assert everything.pixels.tolist() == [11, 1]


def test_an_object_where_nothing_is_labelled_has_no_iou():
    predicted = np.array([[1, 1, 0, 1]])
    found = find_objects(predicted, np.ones((1, 4)), lambda k: (predicted == k) * 1.0, background=0)
    np.testing.assert_array_equal(object_ious(found, np.array([[255, 255, 0, 2]])), [np.nan, 0])
    np.testing.assert_array_equal(object_ious(found, np.array([[1, 255, 0, 1]])), [1, 1])


def test_a_binary_head_has_objects_of_its_probability():
    prob = torch.tensor([[[0.9, 0.2, 0.7, 0.05]]], dtype=torch.float64)
    predictions = ImagePredictions(predicted=(prob > 0.5).long(), probs=prob[None])
    found = find_map_objects(predictions, background=0)
    assert found.pixels.tolist() == [1, 1]
    np.testing.assert_allclose(found.confidence, [0.9, 0.7])
    # What lies between hangs together with both.
    np.testing.assert_allclose(found.expected_iou, [0.9 / 1.2, 0.7 / 1.2])
