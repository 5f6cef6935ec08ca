"""Both doors of the one calibration: ``mmcalib.calibrate`` and ``tools/calibrate.py``."""

import pytest
import torch
from calibration_cases import CASES, by_command, by_function

EQUAL = (
    'method', 'options', 'images', 'groups', 'groups_are_runs', 'num_predictions', 'num_fitted',
    'folds', 'seed', 'num_bins', 'attached',
)  # fmt: skip


def numbers(value, path=''):
    """Return the numbers in a record by their path."""
    if isinstance(value, dict):
        found = {}
        for key, entry in value.items():
            found |= numbers(entry, f'{path}/{key}')
        return found
    if isinstance(value, (list, tuple)):
        found = {}
        for index, entry in enumerate(value):
            found |= numbers(entry, f'{path}/{index}')
        return found
    return {path: value} if isinstance(value, (int, float)) else {}


@pytest.mark.filterwarnings('ignore::UserWarning')
@pytest.mark.parametrize('name', CASES)
def test_calibrate_by_function_and_command_equal(name, run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    case = CASES[name]
    if case.refusal is not None:
        with pytest.raises(ValueError, match=case.refusal):
            by_function(case)
        assert case.refusal in by_command(case, run).text
        return
    function = by_function(case)
    command = by_command(case, run)
    for key in EQUAL:
        if key != 'attached':
            assert function.record[key] == command.record[key], key
    layers = [layer.removeprefix('model.') for layer in function.record['layers']]
    assert layers == command.record['layers']
    assert bool(layers) == case.folded == (command.record['attached'] is None)
    for key in ('parameters', 'fitted', 'standard_error', 'information'):
        expected = numbers(function.record.get(key), key)
        assert numbers(command.record.get(key), key) == pytest.approx(expected, rel=1e-4, abs=1e-4)
    torch.testing.assert_close(command.predictions, function.predictions, rtol=1e-3, atol=1e-4)
    assert function.record['fitted']['after']['NLL'] < function.record['fitted']['before']['NLL']
    assert function.record['groups_are_runs'] == case.are_frames
    # The sentences are the same but for the name of the split and of the layers.
    assert ('Neighbours among' in function.text) == ('Neighbours among' in command.text)
    for sentence in ('are few', 'Before and after are', 'change.', 'No label is of', 'have fewer'):
        assert (sentence in function.text) == (sentence in command.text), sentence
