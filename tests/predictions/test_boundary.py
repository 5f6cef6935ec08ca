"""Distances from another label, against loops over all pairs of pixels."""

import itertools

import pytest
import torch
from references import distance

from mmcalib.predictions import boundary as boundary_module
from mmcalib.predictions.boundary import DISTANCES, RANGE_NAMES, boundary, distance_ranges


def label_maps():
    """Yield maps of two labels and few ignored pixels, and maps of one label."""
    torch.manual_seed(0)
    for size, share in (((13, 9), 0.2), ((13, 17), 0.02), ((1, 23), 0.1), ((8, 1), 0.2)):
        labels = (torch.rand(size) < share).long()
        labels[torch.rand(size) < 0.01] = 255
        yield labels
    yield torch.zeros(3, 4, dtype=torch.uint8)
    yield torch.tensor([[7]])


@pytest.mark.parametrize(
    'labels', label_maps(), ids=lambda labels: 'x'.join(map(str, labels.shape))
)
def test_distance_ranges_equal_loop_over_pairs(labels, monkeypatch):
    ends = (1, 2, 4, 7, 11)  # All lie within the maps.
    monkeypatch.setattr(boundary_module, 'DISTANCES', ends)
    ranges = distance_ranges(labels)
    assert ranges.dtype == torch.int64
    for i, j in itertools.product(*map(range, labels.shape)):
        expected = distance(labels, i, j)
        assert ranges[i, j] == sum(expected > end for end in ends), (i, j)
        for width in (1, 2, 3, 6):
            assert boundary(labels, width)[i, j] == (expected <= width), (i, j, width)


def test_range_names_name_the_ends():
    labels = torch.zeros(1, 200, dtype=torch.int64)
    labels[0, 0] = 1
    ranges = distance_ranges(labels)[0]
    for index, end in enumerate(DISTANCES):
        assert ranges[end] == index and ranges[end + 1] == index + 1
        assert RANGE_NAMES[index].split('–')[-1] == str(end)
    assert RANGE_NAMES[len(DISTANCES)] == f'over {DISTANCES[-1]}'
