"""A sum of losses, for heads that take one."""

from collections.abc import Sequence

from torch import Tensor, nn

from mmcalib.losses.calibration_loss import check_loss_name


class CombinedLoss(nn.Module):
    """The sum of several losses: any base loss with any regulariser.

    mmpretrain's heads take one loss; mmseg's take a list as well, which logs each term. A term is
    weighted by its own ``loss_weight``::

        loss=dict(
            type='CombinedLoss',
            losses=[dict(type='SoftmaxFocalLoss'), dict(type='MDCALoss', loss_weight=5.0)],
        )

    Args:
        losses: Losses that are built; in a config their configs, from mmcalib or the toolbox.
        loss_name: Key in mmseg's log, which must contain "loss".

    Raises:
        ValueError: If the name does not contain "loss", or only some losses are of rows
            (``reduction='none'``), whose sum with a mean would be another loss.
    """

    def __init__(self, losses: Sequence[nn.Module], *, loss_name: str = 'loss_combined') -> None:
        super().__init__()
        check_loss_name(loss_name)
        self.losses = nn.ModuleList(losses)
        if len({getattr(loss, 'reduction', None) == 'none' for loss in losses}) > 1:
            raise ValueError("either all losses or none must have reduction='none', to be added")
        self.loss_name = loss_name

    def forward(self, pred: Tensor, target: Tensor, **call) -> Tensor:
        """Return the sum; the further arguments go to every loss."""
        return sum(loss(pred, target, **call) for loss in self.losses)
