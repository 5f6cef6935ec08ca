"""The paper's constraint, watched while training: the distance of logits from the largest."""

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
from mmcalib.options import check_integer

# Where the heads of mmpretrain and mmseg keep their losses, whatever these are.
HEADS_LOSSES = ('loss_module', 'loss_decode')


@HOOKS.register_module()
class LogitDistanceHook(Hook):
    r"""Log the logit distances, which margin-based label smoothing keeps below its margin.

    Of the distances :math:`d_k = \max_j l_j - l_k` of a batch, over all valid rows and all K
    classes (so 1/K of them are 0, of the largest itself), it logs as scalars beside the loss

    - ``train/logit_distance_mean`` and ``train/logit_distance_max``, in logits;
    - ``train/logit_distance_above_margin``, in percent: the share of :math:`d_k > m`, which the
      paper's constraint wants to be 0. Only of a loss that has a margin.

    They are of the first loss of the main head, in the first training iteration, and then in every
    `interval`-th. In between the hook does nothing: it attaches itself to the loss only for the
    call that it measures. Under several processes the figures are of the main process's batch.

    Source: the constraint :math:`d(l) \le m` of Eq. 6.

    Args:
        interval: n. The logger shows the last measurement, so use its interval, or a divisor of it.

    Raises:
        TypeError: If the interval is no integer.
        ValueError: If it is below 1; before training, if the model has no such loss.
    """

    def __init__(self, *, interval: int = 50) -> None:
        self.interval = check_integer('interval', interval)

    def before_train(self, runner: Runner) -> None:
        self._loss, self._first = find_loss(runner.model), True

    def before_train_iter(self, runner: Runner, batch_idx: int, data_batch=None) -> None:
        if self._first or self.every_n_train_iters(runner, self.interval):
            self._first = False
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
        ignore_index: Rows with this label take no part.

    Returns:
        ``mean`` and ``max``, in logits, and with a margin ``above_margin``, in percent. NaN, and a
        largest of 0, of no valid row.
    """
    logits = logits.detach().float()
    highest = logits.amax(dim=1, keepdim=True)
    rows = torch.ones_like(highest[:, 0])
    if ignore_index is not None and not target.is_floating_point():
        rows = (target != ignore_index).reshape(rows.shape).to(logits.dtype)
    count = rows.sum()
    values = {
        'mean': ((highest[:, 0] - logits.mean(dim=1)) * rows).sum() / count,
        'max': ((highest[:, 0] - logits.amin(dim=1)) * rows).max(),
    }
    if margin is not None:
        share = (logits < highest - margin).float().mean(dim=1)
        values['above_margin'] = 100 * (share * rows).sum() / count
    return values


def find_loss(model: nn.Module) -> nn.Module:
    """Return the first loss of a model of either toolbox that belongs to no auxiliary head.

    Raises:
        ValueError: If there is none.
    """
    found = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, CalibrationLoss) or name.split('.')[-1] in HEADS_LOSSES
    }
    if not found:
        raise UserError('LogitDistanceHook found no loss in the model')
    loss = found[min(found, key=lambda name: 'auxiliary' in name)]
    # Several losses of one head get the same logits.
    return loss[0] if isinstance(loss, nn.ModuleList) else loss
