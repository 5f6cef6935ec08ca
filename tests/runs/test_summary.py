"""What a run ends with."""

import pytest
import torch
from records import record, trained

from mmcalib.metrics import CalibrationStatistics
from mmcalib.record import Record
from mmcalib.runs.test import summary

METRICS = {
    'accuracy/top1': 75.0,
    'calibration/ECE': 4.123,
    'calibration/NLL': 0.61234,
    'calibration/ECE_low': 3.0,
    'calibration/ECE_high': 5.55,
}


def tested(metrics=METRICS, samples=1797, **about):
    loss = dict(type='MarginLabelSmoothingLoss', margin=8.0, alpha=0.1)
    evaluation = dict(dataset=dict(samples=samples))
    found = record('mbls/digits', metrics, loss=loss, evaluation=evaluation, **about)
    return Record(**found)


# 40 predictions with a confidence of 0.9, 30 of them correct, and 10 with 0.5, none of them.
CELLS = torch.tensor([[40.0, 10.0], [30.0, 0.0], [36.0, 5.0]], dtype=torch.float64)


def statistics(narrow_bins=CELLS):
    return CalibrationStatistics({}, 'pooled', 15, narrow_bins)


def words(lines):
    return [line.split() for line in lines]


def test_the_figures_and_what_they_mean():
    assert words(summary(tested(), statistics())) == [
        ['mbls/digits;', 'MbLS', 'm=8', 'α=0.1;', 'test', 'split,', '1,797', 'samples'],
        ['accuracy/top1', '75.00', '%'],
        ['mean', 'confidence', '82.00', '%'],
        ['gap', '+22.00', '%'],
        ['ECE', '4.12', '%', 'interval', '3.00', 'to', '5.55', '%'],
        ['NLL', '0.6123'],
    ]


def test_a_segmentation_has_its_pixels_accuracy_beside_the_miou():
    lines = words(summary(tested({'mIoU': 40.0}), statistics()))
    assert lines[1:3] == [
        ['mIoU', '40.00', '%'],
        ['accuracy', '60.00', '%', 'of', '50', 'predictions'],
    ]


def test_what_was_not_measured_has_no_line():
    assert len(summary(tested({'accuracy/top1': 75.0}))) == 2
    named = tested({'paper/ECE': 4.0})
    assert words(summary(named))[1:] == [['paper/ECE', '4.00', '%']]
    empty = tested({'calibration/ECE': float('nan')})
    assert words(summary(empty, statistics(torch.zeros(3, 0))))[1:] == [['ECE', 'nan', '%']]


def test_a_calibrated_checkpoint_is_called_what_reports_call_it():
    calibrated = tested(calibration={'methods': ['temperature'], 'forced': []})
    line, *_ = summary(calibrated, statistics())
    assert line.startswith('mbls/digits; MbLS m=8 α=0.1 + temperature; test split')


def test_a_smoke_run_says_so():
    assert summary(tested(limit=8))[0].endswith('; SMOKE RUN with --limit 8')
    all_tested = tested(samples=9, training=trained(limit=8))
    assert summary(all_tested)[0].endswith('; the checkpoint of a SMOKE RUN with --limit 8')


@pytest.mark.parametrize(
    ('gap', 'low', 'high', 'said'),
    [
        (4.84, 1.9, 7.8, 'gap +4.84 % over-confident; interval +1.90 to +7.80 %'),
        (-3.0, -5.0, -1.0, 'gap -3.00 % under-confident; interval -5.00 to -1.00 %'),
        (1.0, -0.5, 2.5, 'gap +1.00 % not told from 0; interval -0.50 to +2.50 %'),
    ],
)
def test_the_gap_is_judged_by_its_interval(gap, low, high, said):
    key = 'calibration/gap'
    metrics = {key: gap, f'{key}_low': low, f'{key}_high': high}
    lines = words(summary(tested(metrics), statistics()))
    assert lines[2:] == [['mean', 'confidence', '82.00', '%'], said.split()]
