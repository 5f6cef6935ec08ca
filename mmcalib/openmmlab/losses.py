"""The losses of the library, registered under their names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from inspect import isclass
from typing import Any

from mmengine.registry import MODELS
from torch import nn

from mmcalib import losses as library

BASES = (library.BatchLoss, library.CalibrationLoss)
for loss in vars(library).values():
    if isclass(loss) and issubclass(loss, library.CalibrationLoss) and loss not in BASES:
        MODELS.register_module(module=loss)


@MODELS.register_module(name='CombinedLoss')
def combined_loss(*, losses: Sequence[Mapping | nn.Module], **options: Any) -> library.CombinedLoss:
    """Build a sum of losses from their configs.

    Args:
        losses: Configs of losses, from mmcalib or the toolbox, or losses that are built.
        options: Options of :class:`mmcalib.losses.CombinedLoss`.
    """
    built = [MODELS.build(loss) if isinstance(loss, Mapping) else loss for loss in losses]
    return library.CombinedLoss(built, **options)
