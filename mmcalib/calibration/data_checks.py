"""Refusals of predictions that determine no scaling, and of scalings that reverse their order."""

from __future__ import annotations

import torch
from torch import Tensor

from mmcalib.calibration.held_out import HeldOut
from mmcalib.errors import UserError
from mmcalib.posthoc.logits import top_class
from mmcalib.posthoc.per_label import Scaler, ScalerPerLabel

NO_INFORMATION = 'the logits carry no information about the labels'
SAME_ORDER = 'are the classes of the labels in the same order as those of the model?'
# It is hardly by chance that so many predictions of one class are of another one.
CLEAR_COUNT = 5


def check_determined(data: HeldOut) -> None:
    """Refuse predictions that determine no temperature: a wrong number would be written.

    Raises:
        UserError: If all labels are of one class, or no prediction is wrong.
    """
    labels = data.pooled.labels
    if not (labels != labels[0]).any():
        remedy = 'calibrate on data of several classes'
        if data.draw.pixels:
            remedy += '; if masks have 0 and 255, which is left out, write 1 in its place'
        raise UserError(f'all labels are {int(labels[0])}: {remedy}')
    # A head may predict other classes, by its threshold; but a fit sees the logits.
    if not (top_class(data.pooled.logits) != labels).any():
        raise UserError('no prediction is wrong: calibrate on data that the model did not learn')


def check_information(data: HeldOut) -> None:
    """Refuse logits that say less about the labels than equal ones; those of several labels pass.

    A smoke run, which only shows that all works, leaves this out.

    Raises:
        UserError: If the logits say less about the labels than equal ones, or classes are
            exchanged.
    """
    if data.information is None:
        return
    labels = data.pooled.labels
    predicted = top_class(data.pooled.logits)
    if data.information <= 0:
        accuracy = 100 * (1 - (predicted != labels).double().mean().item())
        num_logits = data.pooled.logits.shape[1]
        num_labelled = num_logits - len(data.draw.unlabelled or [])
        question = SAME_ORDER
        if 2 * num_labelled < num_logits:
            question = (
                f'does it return features, since {num_labelled} of its {num_logits} outputs have a '
                f'label, or {SAME_ORDER}'
            )
        raise UserError(
            f'{NO_INFORMATION} (accuracy {accuracy:.2f} %), so there is no scaling to fit: '
            f'{question}'
        )
    exchanged = exchanged_classes(predicted, labels)
    if exchanged:
        shown = ', '.join(f'{true} as {other}' for true, other in exchanged.items())
        raise UserError(
            f'most labels of these classes are predicted as another: {shown}: {SAME_ORDER}'
        )


def check_order(scaler: Scaler | None, data: HeldOut) -> None:
    """Refuse a scaling that reverses the order of the predictions of two classes.

    Few labels of a rare class give one by chance. A smoke run leaves this out.

    Raises:
        UserError: If the scaled log-odds do not rise with those of the model.
    """
    labels = data.pooled.labels
    if isinstance(scaler, ScalerPerLabel):
        # A label whose own scaling is reversed has taken that of all labels.
        scalers = [scaler.scalers[label] for label in scaler.shared_labels[:1]]
    else:
        scalers = [] if scaler is None else [scaler]
    for fitted in scalers:
        problem = fitted.order_problem(data.pooled.logits, labels)
        if problem is not None:
            raise UserError(problem)


def exchanged_classes(predicted: Tensor, labels: Tensor) -> dict[int, int]:
    """Return the classes that are predicted as one another in a circle, as two that are exchanged.

    Each is predicted as the next one more than half of the time. A model does not learn that, but
    labels in another order show it.

    Args:
        predicted: ``(M,)`` predicted classes.
        labels: ``(M,)`` true classes.
    """
    num_classes = int(max(predicted.max(), labels.max())) + 1
    label_counts = torch.bincount(labels)
    # Most of the K² pairs of classes do not occur.
    pairs, counts = (labels * num_classes + predicted).unique(return_counts=True)
    pair_labels = pairs // num_classes
    is_clear = (2 * counts > label_counts[pair_labels]) & (counts >= CLEAR_COUNT)
    clear_labels = pair_labels[is_clear].tolist()
    clear_predicted = (pairs[is_clear] % num_classes).tolist()
    predicted_as = dict(zip(clear_labels, clear_predicted, strict=True))
    exchanged = {}
    for start in predicted_as:
        label = predicted_as[start]
        path = [start]
        while label in predicted_as and label not in path:
            path.append(label)
            label = predicted_as[label]
        if label == start and len(path) > 1:
            exchanged[start] = predicted_as[start]
    return exchanged
