import torch

from mmcalib.openmmlab.models import GridAveragePooling


def test_grid_average_pooling_cells_are_averages_by_channel():
    maps = torch.randn(2, 3, 8, 8), torch.randn(2, 5, 4, 4)
    first, second = GridAveragePooling(size=2)(maps)
    cells = maps[0].view(2, 3, 2, 4, 2, 4).mean(dim=(3, 5))
    torch.testing.assert_close(first, cells.flatten(1))
    assert second.shape == (2, 20)
