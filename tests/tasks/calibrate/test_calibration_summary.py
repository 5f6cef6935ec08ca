"""What a calibration prints: when it is a gain, and when it is none."""

import copy

import pytest

from mmcalib.tasks.calibrate.summary import print_calibration

BEFORE = {'ECE': 3.781, 'AECE': 3.5, 'NLL': 0.3, 'Brier': 0.2, 'accuracy': 90.0}
AFTER = {'ECE': 2.0, 'AECE': 2.0, 'NLL': 0.25, 'Brier': 0.19, 'accuracy': 90.0}
RESULT = dict(before=BEFORE, after=AFTER, num_predictions=1200, changed=0)
META = dict(
    method='temperature', parameters={'temperature': 1.5}, standard_error=0.04, sampling_error=0.0,
    split='val', dataset=dict(type='Digits', samples=1200), groups=1200, folds=0,
    num_predictions=98765, num_fitted=1000, layers=['head.fc'], difference=1e-7, threshold=None,
    fitted=RESULT, tested=None, forced=[], information=30.0, unlabelled=[],
    limit=None,
)  # fmt: skip
NO_GAIN = (
    'No gain expected: a temperature of 1, which changes nothing, is only {} standard errors away.'
)


def changed(**after):
    result = copy.deepcopy(RESULT)
    result['after'] |= after
    return result


@pytest.mark.parametrize(
    ('changes', 'said'),
    [
        (
            {},
            [
                'ECE (%)', 'NLL (nats)', '3.78', '2.00', '0.2500',
                'Temperature 1.5 ± 0.04 (standard error over 1,200 images), fitted on 1,000 of '
                '98,765 predictions on val. The figures of val after the fit come from the images',
                '0 of 1,200 predictions changed class.',
                'Folded into head.fc: its probabilities equal the scaled ones within 1.0e-07.',
            ],
        ),
        (
            dict(sampling_error=0.01, forced=['calibrated before'], tested=changed(),
                 threshold=0.4, groups=7, folds=5),
            [
                '± 0.04 (standard error over 7 groups of images, ± 0.01 of it from the draw), ',
                '0 of 1,200 predictions on test changed side of the threshold 0.4.',
                'Warning: calibrated before.', 'other 4 of 5 folds of the images.',
            ],
        ),
        (
            dict(information=1.2, unlabelled=['cat', 'dog', 'cow', 'pig', 'fox', 'elk', 'rat']),
            ['no information about the labels beyond chance (accuracy 90.00 %)',
             'in the same order',
             'No label is of classes cat, dog, cow, pig, fox and 2 more'],
        ),
        (dict(groups=1), ['nothing tells how the scaling holds on others']),
        (dict(limit=7), ['SMOKE RUN with --limit 7']),
        (dict(parameters={'temperature': 0.97}), [NO_GAIN.format('0.7')]),
        (dict(parameters={'temperature': 1.06}), [NO_GAIN.format('1.5')]),
        (dict(parameters={'temperature': 0.9}), []),
        (dict(parameters={'temperature': 1.001}, standard_error=float('nan')), []),
        (
            dict(parameters={'temperature': 1.0}, standard_error=0.0),
            ['No gain: a temperature of 1 changes nothing.'],
        ),
        (
            dict(fitted=changed(ECE=4.631), tested=changed(NLL=0.31, accuracy=89.5)),
            ['Worse than before on val: ECE from 3.78 to 4.63.',
             'Worse than before on test: NLL from 0.3000 to 0.3100, accuracy from 90.00 to 89.50.'],
        ),
        # Not by less than is printed, nor where nothing was measured.
        (dict(fitted=changed(ECE=3.7811, NLL=float('nan'))), []),
        (
            dict(split='test', fitted=changed(ECE=5.0), tested=changed(ECE=5.0)),
            ['Worse than before on test: ECE from 3.78 to 5.00.'],
        ),
    ],
)  # fmt: skip
def test_what_is_printed(changes, said, capsys):
    print_calibration(META | changes, 'out.pth')
    printed = capsys.readouterr().out
    assert printed.endswith('Written: out.pth\n') and all(text in printed for text in said)
    for sign in ('No gain', 'Worse', 'Warning'):
        assert printed.count(sign) == ''.join(said).count(sign) or 'information' in changes
