"""Losses of mmseg's decode heads without the upsampled logits in memory."""

from __future__ import annotations

from collections.abc import Sequence
from types import MethodType

import torch
from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from mmengine.runner import Runner
from torch import Tensor, nn

from mmcalib.errors import UserError
from mmcalib.losses.upsampled import reason_for_whole_logits, upsampled_loss

LOSSES = 'loss_decode'


@HOOKS.register_module()
class FusedUpsamplingHook(Hook):
    """Compute the losses of mmseg decode heads tile by tile, without full-size logits.

    mmseg's heads upsample the logits to the size of the labels before the loss, so a training step
    holds them, their log-softmax and their gradients. With this hook, for the time of a training,
    a head makes a tile of them at a time, and keeps the gradient by its own, small logits. Losses,
    gradients and ``acc_seg`` are the same, to rounding; logits in half precision are upsampled in
    float32, which mmseg does in half. See :func:`upsampled_loss`.

    It is for heads, auxiliary ones too, whose ``loss_by_feat`` is that of mmseg's
    ``BaseDecodeHead`` and whose losses are mmcalib's and sums over pixels: not SVLS, NACL, MDCA and
    mL1-ACE. Heads with another loss or a pixel sampler stay as they are. Which ones do what, and
    why, is logged once. In a step in which a loss has forward hooks, as those that
    ``LogitDistanceHook`` measures, and inside a compiled model, a head goes mmseg's way::

        custom_hooks = [dict(type='FusedUpsamplingHook')]

    Raises:
        ValueError: Before training, if the model has no decode head of mmseg.
    """

    def before_train(self, runner: Runner) -> None:
        self._heads, heads = [], decode_heads(runner.model)
        if not heads:
            raise UserError(
                'FusedUpsamplingHook is for decode heads of mmseg, but the model has none'
            )
        for name, head in heads.items():
            if reason := why_not(head):
                runner.logger.warning(f'FusedUpsamplingHook: {name} is left as it is: {reason}')
                continue
            self._heads.append(head)
            head.loss_by_feat = MethodType(fused_loss_by_feat, head)
            said = f'{name} computes its losses without the upsampled logits'
            runner.logger.info(f'FusedUpsamplingHook: {said}')

    def after_train(self, runner: Runner) -> None:
        for head in self._heads:
            del head.loss_by_feat


def decode_heads(model: nn.Module) -> dict[str, nn.Module]:
    """Return the decode heads of mmseg in a model, possibly wrapped, by their names."""
    heads = {name.removeprefix('module.'): module for name, module in model.named_modules()}
    return {k: x for k, x in heads.items() if hasattr(x, 'loss_by_feat') and hasattr(x, LOSSES)}


def why_not(head: nn.Module) -> str | None:
    """Return the reason why a head cannot compute its losses by tiles; None if it can."""
    kind = type(head)
    if kind.loss_by_feat.__qualname__ != 'BaseDecodeHead.loss_by_feat':
        return f'{kind.__name__} has a loss_by_feat of its own'
    if head.sampler is not None:
        return f'its sampler, {type(head.sampler).__name__}, looks at all pixels'
    if head.out_channels == 1:
        return 'it has one channel, which a softmax does not take'
    if head.ignore_index is None:
        return 'it has no ignore_index'
    return next(filter(None, map(reason_for_whole_logits, losses_of(head))), None)


def fused_loss_by_feat(
    head: nn.Module, seg_logits: Tensor, batch_data_samples: Sequence
) -> dict[str, Tensor]:
    """Return the losses of ``BaseDecodeHead.loss_by_feat``, by :func:`upsampled_loss`."""
    losses = losses_of(head)
    parts = [module for loss in losses for module in loss.modules()]
    watched = any(module._forward_hooks or module._forward_pre_hooks for module in parts)
    if watched or torch.compiler.is_compiling():
        return type(head).loss_by_feat(head, seg_logits, batch_data_samples)
    labels = head._stack_batch_gt(batch_data_samples).squeeze(1)
    how = dict(ignore_index=head.ignore_index, align_corners=head.align_corners)
    result = {}
    for loss in losses:
        value, correct = upsampled_loss(loss, seg_logits, labels, **how)
        result[loss.loss_name] = result.get(loss.loss_name, 0) + value
    # As mmseg's accuracy: of no valid pixel it is 100.
    eps = torch.finfo(torch.float32).eps
    valid = (labels != head.ignore_index).sum()
    result['acc_seg'] = ((correct + eps) * (100 / (valid + eps))).view(1)
    return result


def losses_of(head: nn.Module) -> list[nn.Module]:
    """Return the losses of a head, of which it may have several."""
    losses = getattr(head, LOSSES)
    return list(losses) if isinstance(losses, nn.ModuleList) else [losses]
