r"""Objects of a segmentation: the connected components of each predicted class.

Two pixels hang together if they touch, also by a corner.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch

from mmcalib.predictions.image_predictions import ImagePredictions

TOUCHING = np.ones((3, 3), dtype=int)
RIGHT = 0.5  # above which IoU an object counts as found
# Down to which probability pixels outside of an object may belong to it.
SUPPORT = 0.1


class Objects(NamedTuple):
    """The O objects of a segmented image, by class and then in the order of their first pixels.

    Attributes:
        number: ``(H, W)`` int32, which object each pixel is of, from 0 on; -1 of none.
        label: ``(O,)`` int64 classes.
        pixels: ``(O,)`` int64 sizes.
        confidence: ``(O,)`` float64, the mean confidence of an object's pixels.
        expected_iou: ``(O,)`` float64, see :func:`find_objects`.
        box: ``(O, 4)`` int64: first and last row, first and last column, with the last one counted
            in.
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

    for the pixels :math:`P_k` that are predicted as k and the pixels S that hang together with O
    through probabilities :math:`p_k` of at least 0.1: what may be missing is what is next to it.

    Args:
        predicted: ``(H, W)`` classes.
        confidence: ``(H, W)`` probabilities of these.
        plane: Returns the ``(H, W)`` probabilities of a class.
        background: The class that is no object; None if every class is one.
    """
    from scipy import ndimage  # takes a moment to import, and few need it

    number = np.full(predicted.shape, -1, np.int32)
    rows = [np.zeros((0, 8))]
    count = 0
    for k in np.unique(predicted):
        if k == background:
            continue
        inside = predicted == k
        found, size = ndimage.label(inside, TOUCHING)
        probs = np.asarray(plane(int(k)), dtype=np.float64)
        pixels = np.bincount(found.ravel(), minlength=size + 1)[1:]
        total = np.bincount(found.ravel(), confidence.ravel(), size + 1)[1:]
        parts, last = ndimage.label(inside | (probs >= SUPPORT), TOUCHING)
        missing = np.bincount(parts.ravel(), np.where(inside, 0, probs).ravel(), last + 1)
        part = np.zeros(size + 1, int)
        part[found] = parts  # an object is in one
        windows = ndimage.find_objects(found)
        box = np.array([[e for s in w for e in (s.start, s.stop - 1)] for w in windows])
        number[inside] = found[inside] - 1 + count
        count += size
        measured = [np.full(size, k), pixels, total / pixels, total / (pixels + missing[part[1:]])]
        rows.append(np.concatenate([np.stack(measured, axis=1), box], axis=1))
    table = np.concatenate(rows)
    label, pixels = table[:, :2].astype(np.int64).T
    return Objects(number, label, pixels, *table[:, 2:4].T, table[:, 4:].astype(np.int64))


def map_confidence(predictions: ImagePredictions) -> torch.Tensor:
    """Return the probability of the predicted class of each pixel of one map, ``(H, W)`` float32.

    Logits are not changed to the probabilities of all classes, which takes less memory.
    """
    scores = predictions.scores[0].float()
    if len(scores) == 1:
        return torch.where(predictions.predicted[0] == 1, scores[0], 1 - scores[0])
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
        objects: Of :func:`find_objects`.
        labels: ``(H, W)`` true classes.
        ignore_index: Label of the pixels to leave out, None for none.
    """
    from scipy import ndimage  # takes a moment to import, and few need it

    valid = np.full(labels.shape, True) if ignore_index is None else labels != ignore_index
    size = np.bincount(objects.number[valid & (objects.number >= 0)], minlength=len(objects))
    truth, count = np.zeros(labels.shape, np.int64), 0
    for k in np.unique(objects.label):
        found, last = ndimage.label((labels == k) & valid, TOUCHING)
        truth[found > 0] = found[found > 0] + count
        count += last
    large = np.bincount(truth.ravel())
    pairs = (truth > 0) & (objects.number >= 0)
    own, other = objects.number[pairs].astype(np.int64), truth[pairs]
    ours = objects.label[own] == labels[pairs]
    codes, common = np.unique(own[ours] * (count + 1) + other[ours], return_counts=True)
    own, other = np.divmod(codes, count + 1)
    both = np.bincount(own, common, len(objects))
    with np.errstate(invalid='ignore'):
        union = size + np.bincount(own, large[other], len(objects)) - both
        return np.where(size > 0, both / union, np.nan)


def describe_objects(objects: torch.Tensor) -> str:
    """Return a line on how well the ``(O, 6)`` objects of an evaluation are found."""
    labelled = objects[~objects[:, 5].isnan()]
    if not len(labelled):
        return f'{len(objects)} objects, none of which has a labelled pixel'
    _, _, pixels, conf, expected, iou = labelled.T
    return (
        f'{len(labelled):,} objects of {pixels.median():.0f} pixels (median): '
        f'{100 * (iou > RIGHT).double().mean():.1f} % have an IoU above {RIGHT:g}, the mean IoU is '
        f'{100 * iou.mean():.1f} %, the mean confidence {100 * conf.mean():.1f} %, the expected '
        f'IoU {100 * expected.mean():.1f} %'
    )
