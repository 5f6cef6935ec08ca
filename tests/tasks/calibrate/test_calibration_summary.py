"""What a calibration prints: when it is a gain, and when it is none."""

import copy

import pytest

from mmcalib.tasks.calibrate.summary import (
    calibration_sentences,
    no_gain,
    print_calibration,
)

BEFORE = {'ECE': 3.781, 'AECE': 3.5, 'NLL': 0.3, 'Brier': 0.2, 'accuracy': 90.0}
AFTER = {'ECE': 2.0, 'AECE': 2.0, 'NLL': 0.25, 'Brier': 0.19, 'accuracy': 90.0}
RESULT = dict(before=BEFORE, after=AFTER, num_predictions=1200, changed=0)
META = dict(
    method='temperature',
    parameters={'temperature': 1.5},
    standard_error=0.04,
    sampling_error=0.0,
    split='val',
    dataset=dict(type='Digits', samples=1200),
    groups=1200,
    folds=0,
    num_predictions=1200,
    num_fitted=1200,
    layers=['head.fc'],
    difference=1e-7,
    threshold=None,
    fitted=RESULT,
    tested=None,
    forced=[],
)


def described(*, after=(), tested=None, **changes):
    meta = copy.deepcopy(META) | changes
    meta['fitted']['after'] |= dict(after)
    if tested is not None:
        meta['tested'] = copy.deepcopy(RESULT)
        meta['tested']['after'] |= tested
    return meta


def test_a_gain_needs_no_word():
    assert no_gain(described()) == []


@pytest.mark.parametrize(
    ('temperature', 'error', 'said'),
    [
        (0.97, 0.04, '0.8 standard errors'),
        (1.04, 0.04, '1.0 standard errors'),
        (1.06, 0.04, '1.5 standard errors'),
        (0.9, 0.04, None),
        (1.1, 0.04, None),
        (1.001, float('nan'), None),
    ],
)
def test_a_temperature_that_may_be_one(temperature, error, said):
    meta = described(parameters={'temperature': temperature}, standard_error=error)
    found = ' '.join(no_gain(meta))
    assert (said in found and 'The original may be as good' in found) if said else found == ''


def test_a_temperature_of_one_from_the_grid():
    meta = described(parameters={'temperature': 1.0})
    del meta['standard_error']
    assert no_gain(meta) == ['No gain: a temperature of 1 changes nothing.']


def test_figures_that_got_worse():
    meta = described(after={'ECE': 4.631}, tested={'NLL': 0.31, 'accuracy': 89.5})
    assert no_gain(meta) == [
        'Worse than before on val: ECE from 3.78 to 4.63.',
        'Worse than before on test: NLL from 0.3000 to 0.3100, accuracy from 90.00 to 89.50.',
    ]
    # Not by less than is printed, nor where nothing was measured.
    assert no_gain(described(after={'ECE': 3.7811, 'NLL': float('nan')})) == []


def test_a_split_is_told_once():
    meta = described(split='test', after={'ECE': 5.0}, tested={'ECE': 5.0})
    assert no_gain(meta) == ['Worse than before on test: ECE from 3.78 to 5.00.']
    assert sum('changed class' in line for line in calibration_sentences(meta)) == 1


def test_what_is_printed(capsys):
    meta = described(
        num_predictions=98765, num_fitted=1000, sampling_error=0.01, forced=['calibrated before'],
        tested={}, threshold=0.4, after={'ECE': 4.631},
    )  # fmt: skip
    print_calibration(meta, 'out.pth')
    printed = capsys.readouterr().out
    for part in (
        'ECE (%)', 'NLL (nats)', '3.78', '4.63', '0.2500',
        'Temperature 1.5 ± 0.04 (standard error over 1,200 images, ± 0.01 of it from the draw), '
        'fitted on 1,000 of 98,765 predictions on val.',
        '0 of 1,200 predictions changed side of the threshold 0.4.',
        '0 of 1,200 predictions on test changed side',
        'Folded into head.fc: its probabilities equal the scaled ones within 1.0e-07.',
        'Warning: calibrated before.',
        'Worse than before on val: ECE',
    ):  # fmt: skip
        assert part in printed
    assert printed.endswith('Written: out.pth\n')
