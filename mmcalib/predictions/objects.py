r"""Objects of a segmentation: the connected components of each predicted class.

Two pixels are connected if they touch, also by a corner.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch

from mmcalib.predictions.image_predictions import ImagePredictions

# The neighbours of a pixel, for scipy: all eight.
TOUCHING = np.ones((3, 3), dtype=int)
# An object with a larger IoU is correct.
RIGHT_IOU = 0.5
# Pixels outside of an object may belong to it if its class has at least this probability.
LEAST_PROBABILITY = 0.1


class Objects(NamedTuple):
    """The O objects of a segmented image, by class and then in the order of their first pixels.

    Attributes:
        number: ``(H, W)`` int32 index of the object of each pixel; -1 for none.
        label: ``(O,)`` int64 classes.
        pixels: ``(O,)`` int64 sizes.
        confidence: ``(O,)`` float64 mean confidences of the pixels.
        expected_iou: ``(O,)`` float64, see :func:`find_objects`.
        box: ``(O, 4)`` int64: first and last row, first and last column, both included.
    """

    number: np.ndarray
    label: np.ndarray
    pixels: np.ndarray
    confidence: np.ndarray
    expected_iou: np.ndarray
    box: np.ndarray

    def __len__(self) -> int:
        return len(self.label)


def find_objects(
    predicted: np.ndarray,
    confidence: np.ndarray,
    plane: Callable[[int], np.ndarray],
    *,
    background: int | None = None,
) -> Objects:
    r"""Return the objects of a segmented image.

    The expected IoU of an object O of class k is

    .. math:: \frac{\sum_{i \in O} p_{ik}}{|O| + \sum_{i \in S \setminus P_k} p_{ik}}

    for the pixels :math:`P_k` that are predicted as k and the pixels S that are connected with O
    through probabilities :math:`p_k` of at least 0.1: what may be missing is next to the object.

    Args:
        predicted: ``(H, W)`` classes.
        confidence: ``(H, W)`` probabilities of these.
        plane: A function from a class to its ``(H, W)`` probabilities.
        background: The class that is no object; None if every class is one.
    """
    number = np.full(predicted.shape, -1, np.int32)
    classes = [_no_objects()]
    num_objects = 0
    for label in np.unique(predicted):
        if label == background:
            continue
        is_label = predicted == label
        probs = np.asarray(plane(int(label)), dtype=np.float64)
        objects = _class_objects(int(label), is_label, confidence, probs)
        number[is_label] = objects.number[is_label] + num_objects
        num_objects += len(objects)
        classes.append(objects)
    _, *columns = zip(*classes, strict=True)
    return Objects(number, *map(np.concatenate, columns))


def _no_objects() -> Objects:
    return Objects(
        number=np.zeros((0, 0), np.int32),
        label=np.zeros(0, np.int64),
        pixels=np.zeros(0, np.int64),
        confidence=np.zeros(0),
        expected_iou=np.zeros(0),
        box=np.zeros((0, 4), np.int64),
    )


def _class_objects(
    label: int, is_label: np.ndarray, confidence: np.ndarray, probs: np.ndarray
) -> Objects:
    """Return the objects of one class.

    Args:
        label: The class.
        is_label: ``(H, W)`` mask of the pixels that are predicted as it.
        confidence: ``(H, W)`` confidences.
        probs: ``(H, W)`` probabilities of the class.
    """
    from scipy import ndimage  # The import takes a moment, and few need it.

    # Components are numbered from 1 on; 0 is everything else.
    component, num_objects = ndimage.label(is_label, TOUCHING)
    pixels = np.bincount(component.ravel(), minlength=num_objects + 1)[1:]
    sum_conf = np.bincount(component.ravel(), confidence.ravel(), num_objects + 1)[1:]
    # A region has objects, and the likely pixels around them that are predicted as another class.
    region, num_regions = ndimage.label(is_label | (probs >= LEAST_PROBABILITY), TOUCHING)
    probs_outside = np.where(is_label, 0, probs)
    missing = np.bincount(region.ravel(), probs_outside.ravel(), num_regions + 1)
    region_of_component = np.zeros(num_objects + 1, int)
    region_of_component[component] = region
    boxes = []
    for row_slice, column_slice in ndimage.find_objects(component):
        boxes.append(
            [row_slice.start, row_slice.stop - 1, column_slice.start, column_slice.stop - 1]
        )
    return Objects(
        number=component - 1,
        label=np.full(num_objects, label, np.int64),
        pixels=pixels.astype(np.int64),
        confidence=sum_conf / pixels,
        expected_iou=sum_conf / (pixels + missing[region_of_component[1:]]),
        box=np.array(boxes, np.int64),
    )


def map_confidence(predictions: ImagePredictions) -> torch.Tensor:
    """Return the probability of the predicted class of each pixel of one map, ``(H, W)`` float32.

    Logits are not changed to the probabilities of all classes, which takes less memory.
    """
    scores = predictions.scores[0].float()
    if len(scores) == 1:
        return torch.where(predictions.predicted[0] == 1, scores[0], 1 - scores[0])
    if predictions.probs is not None:
        return scores.gather(0, predictions.predicted)[0]
    return 1 / (scores - scores.amax(dim=0)).exp().sum(dim=0)


def find_map_objects(predictions: ImagePredictions, *, background: int | None = None) -> Objects:
    """Return the objects of one map.

    Args:
        predictions: Predictions of one map, which are finite.
        background: The class that is no object; None if every class is one.
    """
    probs = predictions.class_probabilities()[0]
    conf = probs.gather(0, predictions.predicted)[0]
    return find_objects(
        predictions.predicted[0].cpu().numpy(),
        conf.cpu().numpy(),
        lambda k: probs[k].cpu().numpy(),
        background=background,
    )


def object_ious(
    objects: Objects, labels: np.ndarray, *, ignore_index: int | None = 255
) -> np.ndarray:
    r"""Return the IoU of each object with the labels, ``(O,)`` in [0, 1].

    .. math:: \frac{|O \cap G|}{|O \cup G|}

    over labelled pixels, for the objects G of the same class in the labels that O has a pixel in
    common with, taken together. 0 where there is none, NaN of an object without a labelled pixel.

    Source: Rottmann et al., Prediction Error Meta Classification in Semantic Segmentation,
    IJCNN 2020, Section II.

    Args:
        objects: The objects, see :func:`find_objects`.
        labels: ``(H, W)`` true classes.
        ignore_index: The label of pixels that are not valid; None if all are.
    """
    from scipy import ndimage  # The import takes a moment, and few need it.

    valid = np.full(labels.shape, True) if ignore_index is None else labels != ignore_index
    is_object = objects.number >= 0
    num_objects = len(objects)
    pixels = np.bincount(objects.number[valid & is_object], minlength=num_objects)
    # True objects of all classes are numbered from 1 on; 0 is everything else.
    true_object = np.zeros(labels.shape, np.int64)
    num_true_objects = 0
    for label in np.unique(objects.label):
        component, num_components = ndimage.label((labels == label) & valid, TOUCHING)
        is_component = component > 0
        true_object[is_component] = component[is_component] + num_true_objects
        num_true_objects += num_components
    true_pixels = np.bincount(true_object.ravel())
    is_common = (true_object > 0) & is_object
    common_object = objects.number[is_common].astype(np.int64)
    common_true_object = true_object[is_common]
    is_same_class = objects.label[common_object] == labels[is_common]
    # A number for each pair of an object and a true one that share pixels.
    code = common_object * (num_true_objects + 1) + common_true_object
    pair_codes, pair_pixels = np.unique(code[is_same_class], return_counts=True)
    pair_object, pair_true_object = np.divmod(pair_codes, num_true_objects + 1)
    intersection = np.bincount(pair_object, pair_pixels, num_objects)
    summed_true_pixels = np.bincount(pair_object, true_pixels[pair_true_object], num_objects)
    union = pixels + summed_true_pixels - intersection
    with np.errstate(invalid='ignore'):
        return np.where(pixels > 0, intersection / union, np.nan)


def describe_objects(objects: torch.Tensor) -> str:
    """Return a line on the IoU of objects and on what was expected of it.

    Args:
        objects: ``(O, 6)`` float64 of the columns image, class, pixels, confidence, expected IoU
            and IoU, which is NaN without a labelled pixel.
    """
    labelled = objects[~objects[:, 5].isnan()]
    if not len(labelled):
        return f'{len(objects)} objects, none of which has a labelled pixel'
    _, _, pixels, conf, expected_iou, iou = labelled.T
    share_right = (iou > RIGHT_IOU).double().mean()
    return (
        f'{len(labelled):,} objects of {pixels.median():.0f} pixels (median): '
        f'{100 * share_right:.1f} % have an IoU above {RIGHT_IOU:g}, the mean IoU is '
        f'{100 * iou.mean():.1f} %, the mean confidence {100 * conf.mean():.1f} %, the expected '
        f'IoU {100 * expected_iou.mean():.1f} %'
    )
