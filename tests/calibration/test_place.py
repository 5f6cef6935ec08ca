"""The one placement that several processes agree on."""

import pytest
import torch

from mmcalib.calibration.place import Placement, place_on_all_processes
from mmcalib.errors import UserError


def gather_with(*others):
    """Return a gather function of a process whose others have computed these results."""
    return lambda result: [result, *others]


def test_place_on_all_processes_one_attaches_all_attach():
    folded = Placement(layers=['fc'], tensors={'fc.weight': torch.zeros(1)})
    attached = Placement(reason='halving fc does not halve the logits')
    actual = place_on_all_processes(lambda: folded, gather_with((attached, None)))
    assert actual.layers == [] and actual.reason == attached.reason


def test_place_on_all_processes_other_layers_attaches():
    first = Placement(layers=['fc'])
    second = Placement(layers=['other'])
    actual = place_on_all_processes(lambda: first, gather_with((second, None)))
    assert actual.layers == [] and 'each predict some of the images' in actual.reason


def test_place_on_all_processes_same_layers_folds():
    placement = Placement(layers=['fc'], difference=1e-7)
    assert place_on_all_processes(lambda: placement, gather_with((placement, None))) is placement


def test_place_on_all_processes_error_of_one_is_raised_by_all():
    with pytest.raises(UserError, match='the model predicts otherwise'):
        place_on_all_processes(
            lambda: Placement(layers=['fc']), gather_with((None, 'the model predicts otherwise'))
        )
