"""Distances from another label, against loops over all pairs of pixels."""

import itertools

import pytest
import torch
from references import distance

from mmcalib.predictions import boundary as module
from mmcalib.predictions.boundary import DISTANCES, RANGE_NAMES, boundary, distance_ranges


def maps():
    generator = torch.Generator().manual_seed(0)
    for size, share in (((13, 9), 0.2), ((13, 17), 0.02), ((1, 23), 0.1), ((8, 1), 0.2)):
        label = (torch.rand(size, generator=generator) < share).long()
        label[torch.rand(size, generator=generator) < 0.01] = 255
        yield label
    yield torch.zeros(3, 4, dtype=torch.uint8)
    yield torch.tensor([[7]])


@pytest.mark.parametrize('label', maps(), ids=lambda label: 'x'.join(map(str, label.shape)))
def test_distances_are_those_of_all_pairs(label, monkeypatch):
    ends = (1, 2, 4, 7, 11)  # within the maps
    monkeypatch.setattr(module, 'DISTANCES', ends)
    found = distance_ranges(label)
    assert found.dtype == torch.int64
    for i, j in itertools.product(*map(range, label.shape)):
        expected = distance(label, i, j)
        assert found[i, j] == sum(expected > end for end in ends), (i, j)
        for width in (1, 2, 3, 6):
            assert boundary(label, width)[i, j] == (expected <= width), (i, j, width)


def test_every_range_has_a_name_that_says_its_end():
    label = torch.zeros(1, 200, dtype=torch.int64)
    label[0, 0] = 1
    ranges = distance_ranges(label)[0]
    for number, end in enumerate(DISTANCES):
        assert ranges[end] == number and ranges[end + 1] == number + 1
        assert RANGE_NAMES[number].split('–')[-1] == str(end)
    assert RANGE_NAMES[len(DISTANCES)] == f'over {DISTANCES[-1]}'
