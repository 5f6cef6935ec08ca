import itertools

import torch
from mmengine.registry import MODELS

from mmcalib.models import GridAveragePooling


def test_cells_are_averages_channel_by_channel():
    maps = torch.arange(2 * 3 * 8 * 8, dtype=torch.float64).reshape(2, 3, 8, 8)
    (features,) = GridAveragePooling(size=2)((maps,))
    assert features.shape == (2, 12)
    for sample, channel, row, column in itertools.product(range(2), range(3), range(2), range(2)):
        cell = maps[sample, channel, 4 * row : 4 * row + 4, 4 * column : 4 * column + 4]
        assert features[sample, 4 * channel + 2 * row + column] == cell.mean()


def test_one_cell_is_global_average_pooling():
    reference = MODELS.build(dict(type='mmpretrain.GlobalAveragePooling'))
    maps = (torch.randn(2, 3, 8, 8), torch.randn(2, 5, 4, 4))
    for mine, theirs in zip(GridAveragePooling(size=1)(maps), reference(maps), strict=True):
        torch.testing.assert_close(mine, theirs)
