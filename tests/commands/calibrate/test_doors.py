"""Both doors of the one calibration: ``mmcalib.calibrate`` and ``tools/calibrate.py``."""

import pytest
import torch
from calibration_cases import CASES, calibrate_by_command, calibrate_by_function

SAME_KEYS = (
    'method', 'options', 'images', 'groups', 'groups_are_runs', 'num_predictions', 'num_fitted',
    'folds', 'seed', 'num_bins',
)  # fmt: skip


NEAR_KEYS = ('parameters', 'fitted', 'standard_error', 'information')
SENTENCES = (
    'Neighbours among', 'are few', 'Before and after are', 'change.', 'No label is of',
    'have fewer',
)  # fmt: skip
REFUSED_CASES = [name for name, case in CASES.items() if case.refusal is not None]
FITTED_CASES = [name for name, case in CASES.items() if case.refusal is None]


def numbers_by_path(value, path=''):
    """Return the numbers in a record by their path."""
    if isinstance(value, (int, float)):
        return {path: value}
    entries = {}
    if isinstance(value, dict):
        entries = value
    elif isinstance(value, (list, tuple)):
        entries = dict(enumerate(value))
    numbers = {}
    for key, entry in entries.items():
        numbers |= numbers_by_path(entry, f'{path}/{key}')
    return numbers


@pytest.mark.filterwarnings('ignore::UserWarning')
@pytest.mark.parametrize('name', FITTED_CASES)
def test_calibrate_by_function_and_command_equal(name, run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    case = CASES[name]
    function = calibrate_by_function(case)
    command = calibrate_by_command(case, run)
    for key in SAME_KEYS:
        assert function.record[key] == command.record[key], key
    function_layers = [layer.removeprefix('model.') for layer in function.record['layers']]
    assert function_layers == command.record['layers']
    for record in (function.record, command.record):
        assert bool(record['layers']) == case.folded
        assert (record['attached'] is None) == case.folded
        assert record['groups_are_runs'] == case.are_frames
        assert record['fitted']['after']['NLL'] < record['fitted']['before']['NLL']
    for key in NEAR_KEYS:
        expected = numbers_by_path(function.record.get(key), key)
        actual = numbers_by_path(command.record.get(key), key)
        assert actual == pytest.approx(expected, rel=1e-4, abs=1e-4)
    torch.testing.assert_close(command.predictions, function.predictions, rtol=1e-3, atol=1e-4)
    # The sentences are the same but for the name of the split and of the layers.
    for sentence in SENTENCES:
        assert (sentence in function.text) == (sentence in command.text), sentence


@pytest.mark.parametrize('name', REFUSED_CASES)
def test_calibrate_by_function_and_command_refuse_the_same(name, run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    case = CASES[name]
    with pytest.raises(ValueError, match=case.refusal):
        calibrate_by_function(case)
    assert case.refusal in calibrate_by_command(case, run).text
