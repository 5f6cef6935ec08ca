"""Sample-dependent focal loss (FLSD): a gamma for each range of the true class's probability."""

from collections.abc import Sequence

from mmcalib.checks import check_number
from mmcalib.losses.base.calibration_loss import CalibrationLoss
from mmcalib.losses.base.models_registry import MODELS
from mmcalib.losses.softmax_focal import softmax_focal

FLSD_SCHEDULE = ((0.2, 5.0), (1.0, 3.0))


@MODELS.register_module()
class SampleDependentFocalLoss(CalibrationLoss):
    """FLSD: softmax focal loss with a gamma for each range of p_y; see :func:`softmax_focal`.

    Args:
        schedule: Pairs of an upper bound of p_y and the gamma below it, ascending up to 1. The
            paper uses 5 for p_y in [0, 0.2) and 3 for [0.2, 1), the default.
        loss_name: See :class:`CalibrationLoss`, which also takes ``class_weight``,
            ``ignore_index``, ``reduction`` and ``loss_weight``.

    Raises:
        ValueError: If the bounds do not ascend to 1, or a gamma is below 0.
    """

    formula = staticmethod(softmax_focal)

    def __init__(
        self,
        *,
        schedule: Sequence[tuple[float, float]] = FLSD_SCHEDULE,
        loss_name: str = 'loss_flsd',
        **common,
    ) -> None:
        super().__init__(loss_name=loss_name, **common)
        self.schedule = tuple(
            (check_number('a bound of schedule', bound), check_number('a gamma of schedule', gamma))
            for bound, gamma in schedule
        )
        bounds = [0.0, *(bound for bound, _ in self.schedule)]
        if bounds[-1] != 1 or sorted(set(bounds)) != bounds:
            raise ValueError(f'the bounds of schedule must ascend to 1, got {self.schedule}')

    def options(self) -> dict:
        return dict(gamma=self.schedule)
