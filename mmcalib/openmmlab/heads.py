"""The head of a toolbox's model, its classes, and whether it predicts a softmax."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from mmcalib.errors import UserError
from mmcalib.openmmlab.samples import IGNORE_INDEX

# The items of a list `loss_decode` that train the logits of the prediction, by the class whose
# `loss_by_feat` computes them; None if all do. The others train another branch.
PREDICTING_ITEMS = {'BaseDecodeHead': None, 'PointHead': None, 'DDRHead': (0,), 'PIDHead': (1, 3)}


def find_head(model: nn.Module) -> nn.Module | None:
    """Return the head that predicts, the last of several decode heads; None if there is none."""
    head = getattr(model, 'decode_head', getattr(model, 'head', None))
    return head[-1] if isinstance(head, nn.ModuleList) else head


def predicting_items(head_class: object, count: int) -> Sequence[int] | None:
    """Return which losses of a head train the logits of its prediction, None if it is not known.

    Args:
        head_class: Class of the head, or None.
        count: Number of its losses.
    """
    function = getattr(head_class, 'loss_by_feat', None)
    owner = getattr(function, '__qualname__', '').partition('.')[0]
    if owner not in PREDICTING_ITEMS:
        return None
    items = PREDICTING_ITEMS[owner]
    if items is None or max(items) >= count:
        return range(count)
    return items


def classes_of_head(model: nn.Module) -> int | None:
    """Return the number of classes of a model's head; None if it has no such attribute."""
    num_classes = getattr(find_head(model), 'num_classes', None)
    return num_classes if isinstance(num_classes, int) else None


def label_ignored_by_head(model: nn.Module) -> int:
    """Return the label of the pixels that a model's head leaves out; mmseg's 255 without one."""
    ignore_index = getattr(find_head(model), 'ignore_index', None)
    return IGNORE_INDEX if ignore_index is None else ignore_index


def innermost_model(model: nn.Module) -> nn.Module:
    """Return the model that several processes or views wrap."""
    while hasattr(model, 'module'):
        model = model.module
    return model


def predicted_classes(model: nn.Module) -> int | None:
    """Return the number of classes that a prediction chooses from; None if it is not known.

    It is two of one logit before a sigmoid, and of each of several labels.
    """
    head = find_head(model)
    if takes_several_labels(head) or getattr(head, 'out_channels', None) == 1:
        return 2
    return classes_of_head(model)


def has_several_labels(model: nn.Module) -> bool:
    """Return whether a classifier predicts each class by a sigmoid of its own."""
    return takes_several_labels(find_head(model))


def takes_several_labels(head: nn.Module | None) -> bool:
    """Return whether a head is mmpretrain's for several labels, or one derived from it."""
    # mmpretrain, which has the class, may not be installed.
    return 'MultiLabelClsHead' in [base.__name__ for base in type(head).__mro__]


def returns_scores(model: nn.Module) -> bool:
    """Return whether a segmentor's ``seg_logits`` are scores of at least 0, not logits.

    Heads that classify masks (Mask2Former, MaskFormer) return sums over queries of the probability
    of the class times that of the mask. They have no ``loss_decode``.
    """
    return hasattr(model, 'decode_head') and not hasattr(find_head(model), 'loss_decode')


def check_softmax(model: nn.Module, name: str) -> None:
    """Raise a UserError if a head's scores are no softmax of one logit per class.

    It looks at the type of the head and its losses. It prevents a wrong number: a mean of scores
    that are no probabilities.
    """
    head = find_head(model)
    reason = None
    if has_several_labels(model):
        reason = 'predicts each class with a separate sigmoid'
    elif hasattr(model, 'decode_head') and getattr(head, 'out_channels', None) != 1:
        if returns_scores(model):
            reason = 'has no loss_decode, so its seg_logits are not what a softmax was trained on'
        elif any(getattr(loss, 'use_sigmoid', False) for loss in head.loss_decode.modules()):
            reason = 'was trained with a separate sigmoid for each class (use_sigmoid)'
    if reason is not None:
        raise UserError(
            f'{name}: {type(head).__name__} {reason}; only probabilities from a softmax, or from '
            'one binary logit, can be averaged'
        )
