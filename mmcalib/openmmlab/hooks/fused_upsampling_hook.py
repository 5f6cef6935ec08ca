"""The hook that computes losses of mmseg's decode heads without the upsampled logits."""

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
    """Hook that computes the losses of mmseg's decode heads tile by tile, without full-size logits.

    mmseg's heads upsample the logits to the size of the labels before the loss, so a training step
    holds them, their log-softmax and their gradients. With this hook, during a training, a head
    upsamples one tile at a time, and keeps only the gradient of its own, small logits. Losses,
    gradients and ``acc_seg`` are the same, to rounding; logits in half precision are upsampled in
    float32, which mmseg does in half. See :func:`upsampled_loss`.

    It is for heads, auxiliary ones too, whose ``loss_by_feat`` is that of mmseg's
    ``BaseDecodeHead`` and whose losses are mmcalib's and sums over pixels: not SVLS, NACL, MDCA and
    mL1-ACE. Heads with another loss or a pixel sampler stay as they are. What each head does, and
    why, is logged once. A head computes its losses in mmseg's way inside a compiled model, and in a
    step in which a loss has forward hooks, such as those of ``LogitDistanceHook``::

        custom_hooks = [dict(type='FusedUpsamplingHook')]

    Raises:
        ValueError: Before training, if the model has no decode head of mmseg.
    """

    def before_train(self, runner: Runner) -> None:
        self._heads: list[nn.Module] = []
        heads = decode_heads(runner.model)
        if not heads:
            raise UserError(
                'FusedUpsamplingHook is for decode heads of mmseg, but the model has none'
            )
        for name, head in heads.items():
            reason = reason_for_mmseg_losses(head)
            if reason is not None:
                runner.logger.warning(f'FusedUpsamplingHook: {name} is left as it is: {reason}')
                continue
            self._heads.append(head)
            head.loss_by_feat = MethodType(fused_loss_by_feat, head)
            runner.logger.info(
                f'FusedUpsamplingHook: {name} computes its losses without the upsampled logits'
            )

    def after_train(self, runner: Runner) -> None:
        for head in self._heads:
            del head.loss_by_feat


def decode_heads(model: nn.Module) -> dict[str, nn.Module]:
    """Return the decode heads of mmseg in a model, possibly wrapped, by their names."""
    return {
        name.removeprefix('module.'): module
        for name, module in model.named_modules()
        if hasattr(module, 'loss_by_feat') and hasattr(module, LOSSES)
    }


def reason_for_mmseg_losses(head: nn.Module) -> str | None:
    """Return the reason why a head cannot compute its losses by tiles; None if it can."""
    head_type = type(head)
    if head_type.loss_by_feat.__qualname__ != 'BaseDecodeHead.loss_by_feat':
        return f'{head_type.__name__} has a loss_by_feat of its own'
    if head.sampler is not None:
        return f'its sampler, {type(head.sampler).__name__}, looks at all pixels'
    if head.out_channels == 1:
        return 'it has one channel, which a softmax does not take'
    if head.ignore_index is None:
        return 'it has no ignore_index'
    for loss in head_losses(head):
        reason = reason_for_whole_logits(loss)
        if reason:
            return reason
    return None


def fused_loss_by_feat(
    head: nn.Module, seg_logits: Tensor, batch_data_samples: Sequence
) -> dict[str, Tensor]:
    """Return the losses of ``BaseDecodeHead.loss_by_feat``, by :func:`upsampled_loss`."""
    losses = head_losses(head)
    if torch.compiler.is_compiling() or any(has_forward_hooks(loss) for loss in losses):
        return type(head).loss_by_feat(head, seg_logits, batch_data_samples)
    labels = head._stack_batch_gt(batch_data_samples).squeeze(1)
    result = {}
    for loss in losses:
        value, num_correct = upsampled_loss(
            loss,
            seg_logits,
            labels,
            ignore_index=head.ignore_index,
            align_corners=head.align_corners,
        )
        result[loss.loss_name] = result.get(loss.loss_name, 0) + value
    # The accuracy is mmseg's, which is 100 without a valid pixel.
    eps = torch.finfo(torch.float32).eps
    num_valid = (labels != head.ignore_index).sum()
    result['acc_seg'] = ((num_correct + eps) * (100 / (num_valid + eps))).view(1)
    return result


def has_forward_hooks(loss: nn.Module) -> bool:
    """Return whether something watches a loss or one of its parts."""
    return any(part._forward_hooks or part._forward_pre_hooks for part in loss.modules())


def head_losses(head: nn.Module) -> list[nn.Module]:
    """Return the losses of a head, which may be one or several."""
    losses = getattr(head, LOSSES)
    return list(losses) if isinstance(losses, nn.ModuleList) else [losses]
