"""Connected components of predicted classes, against those of OpenCV."""

import cv2
import numpy as np
import pytest
import torch

from mmcalib.predictions.image_predictions import ImagePredictions
from mmcalib.predictions.objects import find_map_objects, find_objects, object_ious


def draw_map(size=(9, 11), seed=0):
    """Return smooth logits ``(K, H, W)``, and labels that agree with many of them."""
    torch.manual_seed(seed)
    logits = torch.randn(3, *size, dtype=torch.float64)
    logits = torch.nn.functional.avg_pool2d(logits, 3, 1, 1) * 6
    labels = torch.randint(3, size)
    labels = torch.where(torch.rand(size) < 0.7, logits.argmax(0), labels)
    labels[0, :4] = 255
    return logits, labels.numpy()


def components(mask):
    """Return the masks of the connected components, in the order of their first pixels."""
    count, index = cv2.connectedComponents(mask.astype(np.uint8), connectivity=8)
    masks = [index == number for number in range(1, count)]
    return sorted(masks, key=lambda component: component.argmax())


def touching_components(mask, component):
    """Return the mask of the components that share a pixel with another component."""
    union = np.zeros_like(component)
    for other in components(mask):
        if (other & component).any():
            union |= other
    return union


@pytest.mark.parametrize('background', [None, 1])
@pytest.mark.parametrize('seed', range(3))
def test_find_map_objects_equal_components_of_opencv(background, seed):
    logits, labels = draw_map(seed=seed)
    probs = logits.softmax(0).numpy()
    predicted = probs.argmax(0)
    is_labelled = labels != 255
    predictions = ImagePredictions(predicted=torch.from_numpy(predicted)[None], logits=logits[None])
    objects = find_map_objects(predictions, background=background)
    ious = object_ious(objects, labels)
    expected = []
    for label in {0, 1, 2} - {background}:
        for component in components(predicted == label):
            expected.append((label, component))
    assert len(objects) == len(expected) > 3
    for index, (label, component) in enumerate(expected):
        np.testing.assert_array_equal(objects.number == index, component)
        assert (objects.label[index], objects.pixels[index]) == (label, component.sum())
        assert objects.confidence[index] == pytest.approx(probs[label][component].mean())
        is_label = predicted == label
        region = touching_components(is_label | (probs[label] >= 0.1), component)
        missing = probs[label][region & ~is_label].sum()
        expected_iou = probs[label][component].sum() / (component.sum() + missing)
        assert objects.expected_iou[index] == pytest.approx(expected_iou)
        rows, columns = np.nonzero(component)
        box = [rows.min(), rows.max(), columns.min(), columns.max()]
        assert objects.box[index].tolist() == box
        true_object = touching_components(labels == label, component)
        intersection = (component & true_object).sum()
        union = (component & is_labelled | true_object).sum()
        iou = intersection / union if (component & is_labelled).any() else np.nan
        assert ious[index] == pytest.approx(iou, nan_ok=True)


def test_find_objects_background_alone_is_no_object():
    predicted = np.zeros((3, 4), int)
    conf = np.full((3, 4), 0.8)
    objects = find_objects(predicted, conf, lambda label: conf, background=0)
    assert len(objects) == 0 and (objects.number == -1).all()
    assert object_ious(objects, predicted).shape == (0,)


def test_find_objects_one_pixel_is_an_object():
    predicted = np.zeros((3, 4), int)
    predicted[1, 2] = 1
    conf = np.full((3, 4), 0.8)
    planes = {0: np.full((3, 4), 0.95), 1: np.where(predicted == 1, 0.8, 0.05)}
    objects = find_objects(predicted, conf, planes.get, background=0)
    assert objects.label.tolist() == [1] and objects.pixels.tolist() == [1]
    assert objects.box.tolist() == [[1, 1, 2, 2]]
    assert objects.confidence == pytest.approx([0.8])
    assert objects.expected_iou == pytest.approx([0.8])
    assert find_objects(predicted, conf, planes.get).pixels.tolist() == [11, 1]


def test_object_ious_object_without_labelled_pixel_is_nan():
    predicted = np.array([[1, 1, 0, 1]])
    objects = find_objects(
        predicted, np.ones((1, 4)), lambda label: (predicted == label) * 1.0, background=0
    )
    actual = object_ious(objects, np.array([[255, 255, 0, 2]]))
    np.testing.assert_array_equal(actual, [np.nan, 0])
    actual = object_ious(objects, np.array([[1, 255, 0, 1]]))
    np.testing.assert_array_equal(actual, [1, 1])


def test_find_map_objects_binary_head_has_its_probability():
    prob = torch.tensor([[[0.9, 0.2, 0.7, 0.05]]], dtype=torch.float64)
    predictions = ImagePredictions(predicted=(prob > 0.5).long(), probs=prob[None])
    objects = find_map_objects(predictions, background=0)
    assert objects.pixels.tolist() == [1, 1]
    np.testing.assert_allclose(objects.confidence, [0.9, 0.7])
    # The pixel between them is connected with both.
    np.testing.assert_allclose(objects.expected_iou, [0.9 / 1.2, 0.7 / 1.2])
