"""What a run ends with."""

import pytest
import torch
from records import record, trained

from mmcalib.metrics import CalibrationStatistics
from mmcalib.runs.record import Record
from mmcalib.runs.test_summary import test_summary

METRICS = {
    'accuracy/top1': 75.0,
    'calibration/ECE': 4.123,
    'calibration/NLL': 0.61234,
    'calibration/ECE_low': 3.0,
    'calibration/ECE_high': 5.55,
}
# 40 predictions with a confidence of 0.9, 30 of them correct, and 10 with 0.5, none of them.
CELLS = torch.tensor([[40.0, 10.0], [30.0, 0.0], [36.0, 5.0]], dtype=torch.float64)


def lines(metrics=METRICS, bins=CELLS, samples=1797, **about):
    loss = dict(type='MarginLabelSmoothingLoss', margin=8.0, alpha=0.1)
    about |= dict(loss=loss, evaluation=dict(dataset=dict(samples=samples)))
    counted = None if bins is None else CalibrationStatistics({}, 'pooled', 15, bins)
    found = test_summary(Record(**record('mbls/digits', metrics, **about)), counted)
    return [' '.join(line.split()) for line in found]


def gap(value, low, high):
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
        (METRICS, CELLS, ['accuracy/top1 75.00 %', CONFIDENCE[1], *FIGURES]),
        # A segmentation has its pixels' accuracy beside the mIoU.
        ({'mIoU': 40.0}, CELLS, ['mIoU 40.00 %', *CONFIDENCE, FIGURES[0]]),
        # Which is the toolbox's own where it is the same, and the metric's where it was measured.
        ({'aAcc': 60.0}, CELLS, ['aAcc 60.00 % of 50 predictions', CONFIDENCE[1], FIGURES[0]]),
        ({'aAcc': 50.0}, CELLS, ['aAcc 50.00 %', *CONFIDENCE, FIGURES[0]]),
        (
            {'mIoU': 40.0, 'aAcc': 60.0} | MEASURED,
            CELLS,
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
            CELLS,
            [
                'accuracy/top1 60.00 % interval 50.00 to 70.00 %',
                CONFIDENCE[1],
                FIGURES[0],
                'ECE 4.12 %',
            ],
        ),
        # Of some pixels it is another one.
        (
            {'aAcc': 70.0} | MEASURED,
            CELLS,
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
        # What was not measured has no line.
        ({'accuracy/top1': 75.0}, None, ['accuracy/top1 75.00 %']),
        ({'paper/ECE': 4.0}, None, ['paper/ECE 4.00 %']),
        (NAN, torch.zeros(3, 0), ['ECE nan %']),
        # The gap is judged by its interval.
        *(
            (gap(*values), CELLS, [*CONFIDENCE, f'gap {said} %'])
            for values, said in (
                ((4.84, 1.9, 7.8), '+4.84 % over-confident; interval +1.90 to +7.80'),
                ((-3.0, -5.0, -1.0), '-3.00 % under-confident; interval -5.00 to -1.00'),
                ((1.0, -0.5, 2.5), '+1.00 % not told from 0; interval -0.50 to +2.50'),
            )
        ),
    ],
)
def test_test_summary_lists_figures(metrics, bins, expected):
    heading, *rows = lines(metrics, bins)
    assert heading == 'mbls/digits; MbLS m=8 α=0.1; test split, 1,797 samples'
    assert rows == expected


def test_test_summary_heading_has_label_of_reports():
    calibrated = dict(calibration={'methods': ['temperature'], 'forced': []})
    assert lines(**calibrated)[0].startswith('mbls/digits; MbLS m=8 α=0.1 + temperature; test spl')
    assert lines(limit=8)[0].endswith('; SMOKE RUN with --limit 8')
    of_checkpoint = lines(training=trained(limit=8))[0]
    assert of_checkpoint.endswith('; the checkpoint of a SMOKE RUN with --limit 8')
