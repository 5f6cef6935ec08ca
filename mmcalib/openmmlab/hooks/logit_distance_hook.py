"""The hook that logs the distance of logits from the largest, the paper's constraint."""

from __future__ import annotations

from functools import partial

import torch
from mmengine.hooks import Hook
from mmengine.logging import MessageHub
from mmengine.registry import HOOKS
from mmengine.runner import Runner
from torch import Tensor, nn

from mmcalib.errors import UserError
from mmcalib.losses.calibration_loss import CalibrationLoss
from mmcalib.openmmlab.heads import find_head, predicting_items
from mmcalib.options import check_integer

# The heads of mmpretrain and mmseg keep their losses under these names.
HEADS_LOSSES = ('loss_module', 'loss_decode')


@HOOKS.register_module()
class LogitDistanceHook(Hook):
    r"""Hook that logs logit distances, which margin-based label smoothing keeps below its margin.

    Beside the loss it logs scalars of the distances :math:`d_k = \max_j l_j - l_k` over all valid
    predictions of a batch and all K classes (so 1/K of them are 0, those of the largest logits):

    - ``train/logit_distance_mean`` and ``train/logit_distance_max``, in logits;
    - ``train/logit_distance_above_margin``, in percent: the share of :math:`d_k > m`, which the
      paper's constraint wants to be 0; only if the loss has a margin.

    It measures a loss of the head that predicts, in the first training iteration and in every
    `interval`-th. In between it does nothing: it attaches itself to the loss only for the call that
    it measures. Among several processes the main process measures its own batch.

    Source: the constraint :math:`d(l) \le m` of Eq. 6.

    Args:
        interval: Number of iterations between measurements. The logger shows the last one, so use
            its interval, or a divisor of it.

    Raises:
        TypeError: If the interval is no integer.
        ValueError: If it is below 1; before training, if the model has no such loss.
    """

    def __init__(self, *, interval: int = 50) -> None:
        self.interval = check_integer('interval', interval)

    def before_train(self, runner: Runner) -> None:
        self._loss = find_loss(runner.model)
        self._is_first = True

    def before_train_iter(self, runner: Runner, batch_idx: int, data_batch=None) -> None:
        if self._is_first or self.every_n_train_iters(runner, self.interval):
            self._is_first = False
            measure = partial(self._measure, runner.message_hub)
            self._handle = self._loss.register_forward_hook(measure, with_kwargs=True)

    def _measure(self, hub: MessageHub, loss: nn.Module, args: tuple, kwargs: dict, output) -> None:
        self._handle.remove()
        logits, target = [*args, *kwargs.values()][:2]
        ignore_index = kwargs.get('ignore_index', getattr(loss, 'ignore_index', None))
        margin = getattr(loss, 'margin', None)
        values = logit_distances(logits, target, margin=margin, ignore_index=ignore_index)
        for name, value in values.items():
            hub.update_scalar(f'train/logit_distance_{name}', value.item())


@torch.no_grad()
def logit_distances(
    logits: Tensor, target: Tensor, *, margin: float | None = None, ignore_index: int | None = None
) -> dict[str, Tensor]:
    r"""Return figures of the distances :math:`\max_j l_j - l_k` of a batch, as scalar tensors.

    Args:
        logits: ``(N, K, *)``.
        target: ``(N, *)`` integer labels, or probabilities in the shape of `logits`.
        margin: m, in logits.
        ignore_index: Label of the predictions that are not valid; None if all are.

    Returns:
        ``mean`` and ``max``, in logits, and with a margin ``above_margin``, in percent. Without a
        valid prediction NaN, and a largest of 0.
    """
    logits = logits.detach().float()
    highest = logits.amax(dim=1, keepdim=True)
    weight = torch.ones_like(highest[:, 0])  # 0 of ignored predictions
    if ignore_index is not None and not target.is_floating_point():
        weight = (target != ignore_index).reshape(weight.shape).to(logits.dtype)
    count = weight.sum()
    values = {
        'mean': ((highest[:, 0] - logits.mean(dim=1)) * weight).sum() / count,
        'max': ((highest[:, 0] - logits.amin(dim=1)) * weight).max(),
    }
    if margin is not None:
        share = (logits < highest - margin).float().mean(dim=1)
        values['above_margin'] = 100 * (share * weight).sum() / count
    return values


def find_loss(model: nn.Module) -> nn.Module:
    """Return a loss of the logits of a model's prediction, one with a margin if there is one.

    In a model without a head of either toolbox it is the first that belongs to no auxiliary head.

    Raises:
        ValueError: If there is none.
    """
    head = find_head(getattr(model, 'module', model))
    for name in HEADS_LOSSES:
        loss = getattr(head, name, None)
        if isinstance(loss, nn.ModuleList):
            items = predicting_items(type(head), len(loss)) or range(len(loss))
            predicting_losses = [loss[item] for item in items]
            return max(predicting_losses, key=lambda loss: hasattr(loss, 'margin'))
        if isinstance(loss, nn.Module):
            return loss
    losses = {}
    for name, module in model.named_modules():
        if isinstance(module, CalibrationLoss) or name.split('.')[-1] in HEADS_LOSSES:
            losses[name] = module
    if not losses:
        raise UserError('LogitDistanceHook found no loss in the model')
    main_losses = [loss for name, loss in losses.items() if 'auxiliary' not in name]
    loss = (main_losses or list(losses.values()))[0]
    # Several losses of one head get the same logits.
    return loss[0] if isinstance(loss, nn.ModuleList) else loss
