"""Average pooling to a small grid, a neck for classifiers."""

from mmengine.model import BaseModule
from mmengine.registry import MODELS
from torch import Tensor, nn


@MODELS.register_module()
class GridAveragePooling(BaseModule):
    """Neck that averages feature maps over a grid of `size` × `size` cells and flattens them.

    Maps ``(N, C, H, W)`` become features ``(N, C·size²)``, channel by channel; mmpretrain's
    ``GlobalAveragePooling`` is the case of one cell.

    Args:
        size: Number of cells per side.

    Source: the published code, whose ResNets for Tiny-ImageNet end in 2 × 2 cells.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.pool = nn.AdaptiveAvgPool2d(size)

    def forward(self, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Return the pooled maps of each stage that the backbone gives."""
        return tuple(self.pool(maps).flatten(1) for maps in inputs)
