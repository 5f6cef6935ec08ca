"""The lines that a test ends with."""

import pytest
import torch
from records import record, trained

from mmcalib.metrics import CalibrationStatistics
from mmcalib.runs.record import Record
from mmcalib.runs.summary import summary_lines

METRICS = {
    'accuracy/top1': 75.0,
    'calibration/ECE': 4.123,
    'calibration/NLL': 0.61234,
    'calibration/ECE_low': 3.0,
    'calibration/ECE_high': 5.55,
}
# 40 predictions with a confidence of 0.9, 30 of them correct, and 10 with 0.5, none of them.
BINS = torch.tensor([[40.0, 10.0], [30.0, 0.0], [36.0, 5.0]], dtype=torch.float64)


def lines_of(metrics=METRICS, bins=BINS, **content):
    """Return the lines for a test of 1,797 samples, each space once."""
    content['loss'] = dict(type='MarginLabelSmoothingLoss', margin=8.0, alpha=0.1)
    content['evaluation'] = dict(dataset=dict(samples=1797))
    statistics = None if bins is None else CalibrationStatistics({}, 'pooled', 15, bins)
    lines = summary_lines(Record(**record('mbls/digits', metrics, **content)), statistics)
    return [' '.join(line.split()) for line in lines]


def gap_metrics(value, low, high):
    """Return the metrics of a gap with its interval."""
    key = 'calibration/gap'
    return {key: value, f'{key}_low': low, f'{key}_high': high}


CONFIDENCE = ['accuracy 60.00 % of 50 predictions', 'mean confidence 82.00 %']
FIGURES = ['gap +22.00 %', 'ECE 4.12 % interval 3.00 to 5.55 %', 'NLL 0.6123']
MEASURED = {
    'calibration/ECE': 4.123,
    'calibration/confidence': 82.0,
    'calibration/accuracy': 60.0,
    'calibration/accuracy_low': 50.0,
    'calibration/accuracy_high': 70.0,
}
NAN = {'calibration/ECE': float('nan')}


@pytest.mark.parametrize(
    ('metrics', 'bins', 'expected'),
    [
        (METRICS, BINS, ['accuracy/top1 75.00 %', CONFIDENCE[1], *FIGURES]),
        # A segmentation has its pixels' accuracy beside the mIoU.
        ({'mIoU': 40.0}, BINS, ['mIoU 40.00 %', *CONFIDENCE, FIGURES[0]]),
        # That of the toolbox stands for it where it is the same, and for the metric's.
        ({'aAcc': 60.0}, BINS, ['aAcc 60.00 % of 50 predictions', CONFIDENCE[1], FIGURES[0]]),
        ({'aAcc': 50.0}, BINS, ['aAcc 50.00 %', *CONFIDENCE, FIGURES[0]]),
        (
            {'mIoU': 40.0, 'aAcc': 60.0} | MEASURED,
            BINS,
            [
                'mIoU 40.00 %',
                'aAcc 60.00 % interval 50.00 to 70.00 %',
                CONFIDENCE[1],
                FIGURES[0],
                'ECE 4.12 %',
            ],
        ),
        (
            {'accuracy/top1': 60.0} | MEASURED,
            BINS,
            [
                'accuracy/top1 60.00 % interval 50.00 to 70.00 %',
                CONFIDENCE[1],
                FIGURES[0],
                'ECE 4.12 %',
            ],
        ),
        # The accuracy of some of the pixels is another one.
        (
            {'aAcc': 70.0} | MEASURED,
            BINS,
            [
                'aAcc 70.00 %',
                'accuracy 60.00 % interval 50.00 to 70.00 %',
                CONFIDENCE[1],
                FIGURES[0],
                'ECE 4.12 %',
            ],
        ),
        (
            MEASURED,
            None,
            [
                'accuracy 60.00 % interval 50.00 to 70.00 %',
                CONFIDENCE[1],
                'ECE 4.12 %',
            ],
        ),
        # Metrics that were not measured have no line.
        ({'accuracy/top1': 75.0}, None, ['accuracy/top1 75.00 %']),
        ({'paper/ECE': 4.0}, None, ['paper/ECE 4.00 %']),
        (NAN, torch.zeros(3, 0), ['ECE nan %']),
    ],
)
def test_summary_lines_list_metrics(metrics, bins, expected):
    heading, *rows = lines_of(metrics, bins)
    assert heading == 'mbls/digits; MbLS m=8 α=0.1; test split, 1,797 samples'
    assert rows == expected


@pytest.mark.parametrize(
    ('gap', 'low', 'high', 'verdict'),
    [
        (4.84, 1.9, 7.8, 'over-confident'),
        (-3.0, -5.0, -1.0, 'under-confident'),
        (1.0, -0.5, 2.5, 'not told from 0'),
    ],
)
def test_summary_lines_judge_gap_by_its_interval(gap, low, high, verdict):
    *_, gap_line = lines_of(gap_metrics(gap, low, high))
    assert gap_line.startswith(f'gap {gap:+.2f} %')
    assert verdict in gap_line
    assert gap_line.endswith(f'interval {low:+.2f} to {high:+.2f} %')


def test_summary_lines_heading_has_label_of_reports():
    heading, *_ = lines_of(calibration={'methods': ['temperature'], 'forced': []})
    assert 'MbLS m=8 α=0.1 + temperature;' in heading


def test_summary_lines_heading_names_smoke_runs():
    heading, *_ = lines_of(limit=8)
    assert heading.endswith('; SMOKE RUN with --limit 8')
    heading, *_ = lines_of(training=trained(limit=8))
    assert heading.endswith('; the checkpoint of a SMOKE RUN with --limit 8')
