"""The state merges: any split, in any order, with an empty one, pickled, is the whole."""

import pickle
import random

import pytest
import torch
from metrics.test_calibration_metric import evaluate, in_patches
from samples import classified, segmented

from mmcalib.metrics import (
    NAMES,
    PROTOCOLS,
    CalibrationMetric,
    CalibrationState,
    Prediction,
    protocol_groups,
)
from mmcalib.metrics.bins import narrow_bins as narrow_module
from mmcalib.samples.evaluated import read_prediction


def read(samples, state, **options):
    options = dict(ignore_index=255, wanted=state.wanted, floor=state.floor) | options
    return [read_prediction(s, name=str(i), **options) for i, s in enumerate(samples)]


def whole(predictions, *options, **more):
    state = CalibrationState(*options, **more)
    for place, prediction in enumerate(predictions):
        state.update(prediction, index=place)
    return state


@pytest.mark.parametrize('protocol', PROTOCOLS)
@pytest.mark.parametrize('limit', [1_000_000, 300])
@pytest.mark.parametrize('num_parts', [1, 2, 5])
def test_any_split_in_any_order_is_the_whole(protocol, limit, num_parts, monkeypatch):
    monkeypatch.setattr(narrow_module, 'EXACT_LIMIT', limit)
    monkeypatch.setattr(protocol_groups, 'GROUP_LIMIT', limit)
    strata = dict(per_class=True, per_distance=True)
    options = dict(protocol=protocol, num_bins=10, keep_bins=True, **strata)
    predictions = read(in_patches(11), CalibrationState(NAMES, **options))
    expected = whole(predictions, NAMES, **options)
    rng = random.Random(num_parts)
    parts = [CalibrationState(NAMES, **options) for _ in range(num_parts + 1)]  # the last is empty
    places = list(range(len(predictions)))
    rng.shuffle(places)
    for place in places:
        parts[rng.randrange(num_parts)].update(predictions[place], index=place)
    rng.shuffle(parts)
    merged = CalibrationState(NAMES, **options)
    for part in parts:
        merged.merge(pickle.loads(pickle.dumps(part)))
    assert merged.compute() == pytest.approx(expected.compute(), abs=1e-9)
    assert (merged.num_images, merged.num_predictions) == (11, expected.num_predictions)
    assert merged.image_bins().equal(expected.image_bins())
    ours, theirs = (state.statistics({}).narrow_bins for state in (merged, expected))
    assert ours == pytest.approx(theirs, abs=1e-9)
    for name in ('class_bins', 'distance_bins'):
        ours, theirs = (getattr(state, name)() for state in (merged, expected))
        assert ours.sum() > 0 and ours == pytest.approx(theirs, abs=1e-9)
    if num_parts != 2:
        return  # intervals are of the same rows, and take long
    drawn = dict(coverage=0.9, num_bootstrap=20)
    intervals = expected.intervals(**drawn)
    for name, bounds in merged.intervals(**drawn).items():
        assert bounds == pytest.approx(intervals[name], abs=1e-9)


def test_it_is_what_the_registered_metric_computes():
    samples = classified(41)
    predictions = read(samples, CalibrationState(NAMES))
    values = evaluate(samples, CalibrationMetric(NAMES))
    assert {f'calibration/{k}': v for k, v in whole(predictions, NAMES).compute().items()} == values


def test_a_pickled_state_is_small():
    state = CalibrationState(['ECE', 'AECE', 'ClasswiseECE', 'NLL'], keep_bins=True)
    for seed in range(7):
        for prediction in read(segmented(1, size=(400, 500), seed=seed), state):
            state.update(prediction)
    assert state.num_predictions == 1_400_000
    assert len(pickle.dumps(state)) < 3_000_000
    for prediction in read(classified(1000), CalibrationState(['ECE'])):
        state = CalibrationState(['ECE']).update(prediction)
    assert len(pickle.dumps(state)) < 3000


def test_states_of_other_options_are_refused():
    with pytest.raises(
        ValueError, match=r"states differ in their options: .*'num_bins': 15.*'num_bins': 20"
    ):
        CalibrationState(['ECE']).merge(CalibrationState(['ECE'], num_bins=20))
    with pytest.raises(ValueError, match='keep_bins=True'):
        CalibrationState(['ECE']).statistics({})


def test_a_batch_of_the_paper_has_no_image_twice():
    state = CalibrationState(['AECE'], protocol='paper')
    (prediction,) = read(segmented(1), state)
    for _ in range(16):
        state.update(prediction)
    assert not state._groups._open and state.compute()['AECE'] > 0
    with pytest.raises(ValueError, match='more than 8 images have a place from 8 to 15'):
        state.update(prediction, index=9)
    again = whole([prediction] * 8, ['AECE'], protocol='paper')
    with pytest.raises(ValueError, match='place from 0 to 7: give update'):
        state.merge(again)


@pytest.mark.parametrize('metric', ['NLL', 'Brier', 'ClasswiseECE'])
def test_a_prediction_that_lacks_what_a_metric_needs_is_refused(metric):
    state = CalibrationState(['ECE', metric])
    with pytest.raises(ValueError, match=rf'has no \w+, but ECE, {metric}'):
        state.update(Prediction(torch.tensor([0.9]), torch.tensor([True]), 3))
    with pytest.raises(ValueError, match=rf'has no \w+, but ECE, {metric}'):
        state.update_each(Prediction(torch.tensor([0.9]), torch.tensor([True]), 3), places=[0])
    assert state.num_images == 0


@pytest.mark.parametrize('conf', [float('nan'), 1.2, -0.1])
def test_a_confidence_that_is_none_is_refused(conf):
    state = CalibrationState(['ECE', 'AECE'])
    with pytest.raises(ValueError, match=r'conf has 1 of 2 values outside \[0, 1\]'):
        state.update(Prediction(torch.tensor([0.5, conf]), torch.tensor([True, False])))
    assert state.num_images == 0
