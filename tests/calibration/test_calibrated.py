"""The text and the record of a calibration: when it is a gain, and when it is none."""

import json
import math
from dataclasses import replace

import pytest

from mmcalib.calibration.before_after import Effect
from mmcalib.calibration.calibrated import Calibrated
from mmcalib.calibration.prove import Placement
from mmcalib.posthoc import SCALERS
from mmcalib.posthoc.per_label import ScalerPerLabel

BEFORE = {'ECE': 3.781, 'AECE': 3.5, 'NLL': 0.3, 'Brier': 0.2, 'accuracy': 90.0}
AFTER = {'ECE': 2.0, 'AECE': 2.0, 'NLL': 0.25, 'Brier': 0.19, 'accuracy': 90.0}
ERRORS = {'before': {'ECE': 0.5, 'NLL': 0.01, 'accuracy': 1.0}, 'after': {'ECE': 0.25, 'NLL': 0.02}}
NO_GAIN = (
    'No gain expected: a temperature of 1, which changes nothing, is only {} standard errors away.'
)


def make_effect(**after):
    return Effect(BEFORE, AFTER | after, ERRORS, num_predictions=1200, changed=0)


def make_temperature(value):
    return SCALERS['temperature'].from_parameters({'temperature': value})


def make_calibrated(**changes):
    options = dict(
        scaler=make_temperature(1.5),
        effects={'fitted': make_effect()},
        num_images=1200,
        num_groups=1200,
        population=98765,
        num_fitted=1000,
        num_folds=0,
        seed=0,
        num_bins=15,
        placement=Placement(layers=['head.fc'], difference=1e-7),
        fit_errors={'standard_error': 0.04, 'sampling_error': 0.0},
        information=30.0,
        split='val',
    )
    return Calibrated(**options | changes)


@pytest.mark.parametrize(
    ('changes', 'expected'),
    [
        (
            {},
            [
                'split', 'ECE (%)',
                '± is one standard error: by about this, other images would differ.',
                'NLL (nats)', '3.78 ± 0.50', '2.00 ± 0.25', '0.2500 ± 0.0200',
                'Temperature 1.5 ± 0.04 (standard error over 1,200 images), fitted on 1,000 of '
                '98,765 predictions of 1,200 images on val.',
                'Before and after are of images that the scaling was fitted on.',
                '0 of 1,200 predicted classes change.',
                "Folded into layer 'head.fc': its probabilities equal the scaled ones within ",
            ],
        ),
        (
            dict(
                fit_errors={'standard_error': 0.04, 'sampling_error': 0.01},
                effects={'fitted': make_effect(), 'tested': make_effect()},
                num_groups=7, num_folds=5,
            ),
            [
                '± 0.04 (standard error over 7 groups of 1,200 images, ± 0.01 of it from the draw)',
                '0 of 1,200 predicted classes on test change.', 'other 4 of 5 folds',
                '7 groups of 1,200 images are few',
            ],
        ),
        (dict(split=None), ["Folded into layer 'head.fc'"]),
        (
            dict(placement=Placement(reason='ets scaling is not one that layers absorb')),
            ['Attached behind the model, because ets scaling is not one that layers absorb: its'],
        ),
        (
            dict(
                information=1.2, unlabelled=['cat', 'dog', 'cow', 'pig', 'fox', 'elk', 'rat'],
            ),
            ['no information about the labels beyond chance (accuracy 90.00 %)',
             'in the same order',
             'No label is of classes cat, dog, cow, pig, fox and 2 more'],
        ),
        # The accuracy is above that of the most frequent class by 2.5 standard errors, or by 1.25.
        (dict(information=1.2, majority=87.5), []),
        (dict(information=1.2, majority=88.75), ['no information about', 'in the same order']),
        (dict(majority=89.9), []),
        (dict(majority=90.5), ['90.00 %, is not above 90.50 %', 'in the same order']),
        (dict(scaler=make_temperature(100.0)), ['bound of its search', 'in the same order']),
        (dict(num_groups=1), ['nothing tells how the scaling holds on others']),
        (dict(num_groups=5, groups_are_runs=True), ['Neighbours among the 1,200 images are alike']),
        (dict(scaler=make_temperature(0.97)), [NO_GAIN.format('0.8')]),
        # 0.15 ± 0.34 would be 2.5 standard errors away, and has an end below 0.
        (
            dict(
                scaler=make_temperature(0.1471),
                fit_errors={'standard_error': 0.34, 'sampling_error': 0.17},
            ),
            ['Temperature 0.1471 [0.015, 1.5] (standard error of the logarithm over 1,200 images, '
             '50 % of it from the draw)',
             NO_GAIN.format('0.8').replace(' away', ' of the logarithm away')],
        ),
        (dict(scaler=make_temperature(1.06)), [NO_GAIN.format('1.5')]),
        (dict(scaler=make_temperature(0.9)), []),
        (dict(scaler=make_temperature(1.001), fit_errors={}), []),
        (
            dict(scaler=make_temperature(1.0), fit_errors={}),
            ['No gain: a temperature of 1 changes'],
        ),
        (
            dict(
                effects={
                    'fitted': make_effect(ECE=4.631),
                    'tested': make_effect(NLL=0.31, accuracy=89.5),
                },
            ),
            ['Worse than before on val: ECE from 3.78 to 4.63.',
             'Worse than before on test: NLL from 0.3000 to 0.3100, accuracy from 90.00 to 89.50.',
             'judge by it', 'keep your model'],
        ),
        # Not by less than is printed, nor where nothing was measured.
        (dict(effects={'fitted': make_effect(ECE=3.7811, NLL=math.nan)}), []),
    ],
)  # fmt: skip
def test_calibrated_text_names_fit_place_and_signs_of_no_gain(changes, expected):
    text = str(make_calibrated(**changes))
    for sentence in expected:
        assert sentence in text
    for sign in ('No gain', 'Worse', 'in the same order', 'bound'):
        assert text.count(sign) == ''.join(expected).count(sign)
    assert ('split' in text.splitlines()[0]) == (changes.get('split', 'val') is not None)


def test_calibrated_record_with_nan_is_json():
    nan = {'method': 'vector', 'nll': math.nan, 'problem': 'of one class', 'miou': None}
    record = make_calibrated(
        effects={'fitted': make_effect(ECE=math.nan)}, candidates=[nan]
    ).to_dict()
    text = json.dumps(record, allow_nan=False)
    assert json.loads(text) == record
    assert record['fitted']['after']['ECE'] is None
    assert record['candidates'][0]['nll'] is None
    assert record['fitted']['before'] == BEFORE
    assert record['tested'] is None
    assert record['method'] == 'temperature'
    assert record['parameters'] == {'temperature': 1.5}
    assert record['layers'] == ['head.fc']
    assert record['groups'] == 1200


def test_calibrated_properties_are_those_of_the_fit():
    actual = make_calibrated()
    assert actual.before == BEFORE
    assert actual.after == AFTER
    assert actual.errors == ERRORS
    assert actual.standard_error == 0.04
    assert actual.folded_into == ['head.fc']
    assert actual.attached is None
    assert actual.difference == 1e-7
    assert actual.changed == 0


def test_calibrated_without_scaling_has_no_place():
    actual = replace(make_calibrated(), scaler=None, placement=None, fit_errors={})
    assert actual.method == 'none'
    assert actual.folded_into == []
    assert actual.standard_error is None
    assert 'after' not in str(actual).split('No scaling')[0]


def make_scaler(method, **parameters):
    return SCALERS[method].from_parameters(parameters)


@pytest.mark.parametrize(
    ('scaler', 'expected'),
    [
        (make_scaler('vector', scale=[0.5, 0.75, 1.0, 2.0], shift=[0.0, 0.1, -0.2, 0.1]),
         ['scale 0.5 to 2', 'shift -0.2 to 0.1']),
        (make_scaler('matrix', matrix=[[0.5, 0.1], [-0.3, 0.75]], shift=[0.25, -0.25]),
         ['diagonal 0.5, 0.75', 'other entries 0.1, -0.3', 'shift 0.25, -0.25']),
        (make_scaler('ets', temperature=1.5, weights=[0.7, 0.3, 1e-9]),
         ['temperature 1.5', 'weights 0.7, 0.3, 0']),
        (make_scaler('isotonic', temperature=1.5, knots=[0.0, 1.0, 2.0, 3.0],
                     errors=[0.5, 0.4, 0.3, 0.2]), ['4 confidences 0.5 to 0.8']),
        (make_scaler('platt', scale=0.5, shift=-0.125), ['scale 0.5', 'shift -0.125']),
        (make_scaler('beta', rise=0.5, fall=2.0, shift=0.0), ['rise 0.5', 'fall 2', 'shift 0']),
        (make_scaler('class-temperatures', temperature=[1.5, 2.0, 0.5, 1.0]),
         ['temperature 0.5 to 2']),
        (make_scaler('class-conditional', shift=[[0.0, 0.5], [0.25, 0.0]],
                     matrix=[[[0.0, 0.0], [0.0, 0.7]], [[0.8, 0.0], [0.0, 0.0]]]),
         ['diagonal 0.7, 0.8', 'shift 0.5, 0.25']),
    ],
)  # fmt: skip
def test_parameters_of_any_method_are_in_text_and_repr(scaler, expected):
    text = str(make_calibrated(scaler=scaler, fit_errors={}))
    for part in expected:
        assert part in text
        assert part in repr(scaler)
    assert scaler.method in text
    assert ' with ' not in repr(type(scaler)())


def make_scaler_per_label(temperatures, shared_labels=()):
    scalers = [make_scaler('temperature', temperature=value) for value in temperatures]
    return ScalerPerLabel(scalers, shared_labels)


def test_temperature_per_label_is_in_table_and_repr():
    temperatures = [0.5 + 0.125 * label for label in range(25)]
    scaler = make_scaler_per_label(temperatures, shared_labels=[1])
    lines = str(make_calibrated(scaler=scaler, fit_errors={}, information=None)).splitlines()
    rows = [line.split() for line in lines]
    assert ['0', '0.5'] in rows
    assert ['1', '(shared)', '0.625'] in rows
    assert ['19', '2.875'] in rows
    assert ['20', '3'] not in rows
    assert 'and 5 more labels, in scaler.scalers' in lines
    assert 'label 0: temperature 0.5; label 1: temperature 0.625;' in repr(scaler)
    temperatures[2] = 100.0
    scaler = make_scaler_per_label(temperatures)
    assert 'label 2 is at the bound' in str(make_calibrated(scaler=scaler, fit_errors={}))


def test_labels_near_a_temperature_of_one_are_named():
    scaler = make_scaler_per_label([1.05, 2.0, 0.97])
    calibrated = make_calibrated(
        scaler=scaler, fit_errors={'standard_errors': [0.05, 0.1, 0.49]}, information=None
    )
    assert 'No gain expected of labels 0, 2' in str(calibrated)
    assert '1.05 ± 0.05' in str(calibrated)
    assert '0.97 [0.59, 1.6]' in str(calibrated)
    assert calibrated.standard_error is None
