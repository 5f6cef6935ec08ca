"""The head of a toolbox's model, its classes, and whether it predicts a softmax."""

from __future__ import annotations

from torch import nn

from mmcalib.errors import UserError


def head_of(model: nn.Module) -> nn.Module | None:
    """Return the head that predicts: of several decode heads, the last."""
    head = getattr(model, 'decode_head', getattr(model, 'head', None))
    return head[-1] if isinstance(head, nn.ModuleList) else head


def classes_of_head(model: nn.Module) -> int | None:
    """Return the classes of a model's head, None if it has no such thing."""
    found = getattr(head_of(model), 'num_classes', None)
    return found if isinstance(found, int) else None


def has_several_labels(model: nn.Module) -> bool:
    """Return whether a classifier predicts each class by a sigmoid of its own."""
    return takes_several_labels(head_of(model))


def takes_several_labels(head: nn.Module | None) -> bool:
    """Return whether a head is mmpretrain's for several labels, or one derived from it."""
    return 'MultiLabelClsHead' in {kind.__name__ for kind in type(head).__mro__}


def returns_scores(model: nn.Module) -> bool:
    """Return whether a segmentor's ``seg_logits`` are scores of at least 0, not logits.

    So they are where masks are classified (Mask2Former, MaskFormer): sums over queries of the
    probability of the class times that of the mask. Such heads have no ``loss_decode``.
    """
    return hasattr(model, 'decode_head') and not hasattr(head_of(model), 'loss_decode')


def check_softmax(model: nn.Module, name: str) -> None:
    """Raise a ValueError for a head whose scores are no softmax of one logit per class.

    As far as its type and its losses tell.
    """
    head = head_of(model)
    reason = None
    if has_several_labels(model):
        reason = 'predicts each class with a separate sigmoid'
    elif hasattr(model, 'decode_head') and getattr(head, 'out_channels', None) != 1:
        if returns_scores(model):
            reason = 'has no loss_decode, so its seg_logits are not what a softmax was trained on'
        elif any(getattr(loss, 'use_sigmoid', False) for loss in head.loss_decode.modules()):
            reason = 'was trained with a separate sigmoid for each class (use_sigmoid)'
    if reason:
        rule = 'only probabilities from a softmax, or from one binary logit, can be averaged'
        raise UserError(f'{name}: {type(head).__name__} {reason}; {rule}')
