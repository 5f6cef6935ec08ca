"""ECE, accuracy and confidence by the distance from a boundary: the values that are drawn."""

import pytest
import torch
from drawings import statistics, table

from mmcalib.visualization import draw_boundary_curves

NUM_RANGES = 8
EMPTY_RANGE = 6


def distance_bins(seed):
    """Bins of each range of distance, one of which has no pixels."""
    bins = [table(15, n=50 + 100 * i, seed=seed + i) for i in range(NUM_RANGES)]
    bins[EMPTY_RANGE] *= 0
    return torch.stack(bins, dim=1)


def test_boundary_curves_equal_bins_of_filled_ranges():
    bins_by_run = {'one': distance_bins(0), 'two': distance_bins(50)}
    runs = {
        name: statistics(protocol='paper', distance_bins=bins) for name, bins in bins_by_run.items()
    }
    figure = draw_boundary_curves(runs)
    left, right, shares, _ = figure.axes
    filled_ranges = [i for i in range(NUM_RANGES) if i != EMPTY_RANGE]
    for number, (name, bins) in enumerate(bins_by_run.items()):
        ece = left.lines[number]
        accuracy, confidence = right.lines[2 * number : 2 * number + 2]
        assert ece.get_label() == accuracy.get_label() == f'{name}, protocol paper'
        assert ece.get_color() == accuracy.get_color() == confidence.get_color()
        assert (accuracy.get_linestyle(), confidence.get_linestyle()) == ('-', '--')
        for index, i in enumerate(filled_ranges):
            count, correct, conf_sum = bins[:, i].sum(dim=-1).tolist()
            gaps = (bins[1, i] - bins[2, i]).abs().sum().item()
            assert ece.get_ydata()[index] == pytest.approx(100 * gaps / count)
            assert accuracy.get_ydata()[index] == pytest.approx(100 * correct / count)
            assert confidence.get_ydata()[index] == pytest.approx(100 * conf_sum / count)
            share = 100 * count / bins[0].sum().item()
            assert shares.patches[index].get_height() == pytest.approx(share)
    assert left.lines[0].get_color() != left.lines[1].get_color()
    range_names = [tick.get_text() for tick in shares.get_xticklabels()]
    assert range_names == ['1', '2', '3–4', '5–8', '9–16', '17–32', 'over 64']
