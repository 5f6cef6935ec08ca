"""The comparison of two tests, from the files that they leave."""

import json

import numpy as np
import pytest
import records
import torch
from samples import classified, probabilities, segmented
from tested import small_config, test_weights

from mmcalib import compare
from mmcalib.openmmlab.metrics import CalibrationMetric
from mmcalib.reports.compare_tests import compare_tests
from mmcalib.reports.reported_runs import find_runs
from mmcalib.reports.tables import tables_from_runs
from mmcalib.runs.runner import build_runner

METRICS = ['ECE', 'AECE', 'NLL', 'Brier', 'accuracy']


def sharper(samples):
    """Return the same classified samples with probabilities of half the temperature."""
    changed = []
    for sample in samples:
        scores = sample['pred_score'].square()
        changed.append(sample | {'pred_score': scores / scores.sum()})
    return changed


def hotter(samples):
    """Return the same segmented samples with half the logits."""
    changed = []
    for sample in samples:
        logits = {'data': sample['seg_logits']['data'] / 2}
        changed.append(sample | {'seg_logits': logits})
    return changed


def write_test(folder, samples, *, evaluation=(), metrics=METRICS, **options):
    """Leave the files of a test of some samples."""
    metric = CalibrationMetric(metrics, **options)
    metric.process(None, samples)
    metric.evaluate(len(samples))
    metric.statistics.save(folder / 'calibration.npz')
    described = dict(
        dataset=dict(type='Samples', samples=len(samples)),
        protocol=metric.protocol,
        num_bins=metric.num_bins,
        ignore_index=metric.ignore_index,
    )
    described |= dict(evaluation)
    records.write(folder, 'mbls/digits', evaluation=described)
    return str(folder)


def test_compare_tests_equals_compare_of_arrays(tmp_path):
    samples = classified(200)
    a = write_test(tmp_path / 'a', samples)
    b = write_test(tmp_path / 'b', sharper(samples))
    actual = compare_tests(a, b)
    probs_a, labels = probabilities(samples)
    probs_b, _ = probabilities(sharper(samples))
    probs_a = np.array(probs_a, dtype=np.float32)
    probs_b = np.array(probs_b, dtype=np.float32)
    expected = compare(probs_a, probs_b, np.array(labels), [*METRICS, 'gap'])
    assert dict(actual) == pytest.approx(dict(expected), abs=1e-6)
    assert actual.units == '200 images'
    assert str(actual).endswith(f'B: MbLS m=6 α=0.1, {b}')


def test_compare_tests_names_other_settings_of_trainings(tmp_path):
    a = write_test(tmp_path / 'a', classified(20))
    b = write_test(tmp_path / 'b', classified(20))
    assert 'Trained otherwise' not in str(compare_tests(a, b))
    path = tmp_path / 'b/results.json'
    record = json.loads(path.read_text())
    record['model']['members'][0]['training'] |= {'processes': 4}
    path.write_text(json.dumps(record))
    (line,) = [line for line in str(compare_tests(a, b)).splitlines() if 'Trained' in line]
    assert line.startswith('Trained otherwise: A with processes=')
    assert line.endswith('; B with processes=4.')


@pytest.mark.parametrize(('protocol', 'units'), [
    ('pooled', '20 images'),
    ('foreground', '20 images'),
    ('image', '20 images'),
    ('paper', '3 groups of 8 images'),
])  # fmt: skip
def test_compare_tests_of_any_protocol_has_its_values(protocol, units, tmp_path):
    samples = segmented(20)
    a = write_test(tmp_path / 'a', samples, protocol=protocol)
    b = write_test(tmp_path / 'b', hotter(samples), protocol=protocol)
    comparison = compare_tests(a, b)
    for side, values in (('a', comparison.a), ('b', comparison.b)):
        with np.load(tmp_path / side / 'calibration.npz') as file:
            stored = json.loads(str(file['info']))['metrics']
        assert {name: values[name] for name in METRICS} == pytest.approx(stored)
    assert comparison['NLL_low'] < comparison['NLL'] < comparison['NLL_high']
    assert comparison.units == units


@pytest.mark.parametrize('protocol', ['pooled', 'paper'])
def test_report_of_tests_that_print_ece_alone_has_gap_and_nll_of_compare(protocol, tmp_path):
    samples = segmented(20)
    a = write_test(tmp_path / 'a', samples, protocol=protocol, metrics=['ECE'])
    b = write_test(tmp_path / 'b', hotter(samples), protocol=protocol, metrics=['ECE'])
    comparison = compare_tests(a, b)
    runs, _ = find_runs([tmp_path])
    for run, expected in zip(runs, (comparison.a, comparison.b), strict=True):
        actual = {name: run.metrics[f'calibration/{name}'] for name in ('gap', 'NLL')}
        assert actual == {name: expected[name] for name in actual}
    (table,) = tables_from_runs(runs)
    assert table.columns[-2:] == ['calibration/gap', 'calibration/NLL']


def test_compare_tests_of_earlier_version_says_what_is_missing(tmp_path):
    samples = classified(50)
    a = write_test(tmp_path / 'a', samples)
    b = write_test(tmp_path / 'b', sharper(samples))
    with np.load(tmp_path / 'a/calibration.npz') as file:
        arrays = {key: file[key] for key in file.files if key not in ('image_sums', 'image_labels')}
    np.savez(tmp_path / 'a/calibration.npz', **arrays)
    comparison = compare_tests(a, b)
    assert comparison.names == ['ECE', 'AECE', 'accuracy', 'gap']
    assert 'NLL and Brier cannot be compared' in str(comparison)


CHANGES = [
    (dict(evaluation=dict(dataset=dict(type='Other', samples=30))), 'of other images: .*Other'),
    (dict(evaluation=dict(data_options=dict(noise=2))), 'tests of other images: .*noise=2'),
    (dict(protocol='image'), 'tests by other protocols: .*protocol=image'),
    (dict(num_bins=25), 'tests by other protocols: .*num_bins=25'),
    (dict(evaluation=dict(ignore_index=3)), 'tests with other ignored labels: .*ignore_index=3'),
]  # fmt: skip


@pytest.mark.parametrize(('changes', 'message'), CHANGES)
def test_compare_tests_evaluated_otherwise_refused(changes, message, tmp_path):
    a = write_test(tmp_path / 'a', segmented(30))
    b = write_test(tmp_path / 'b', segmented(30), **changes)
    with pytest.raises(ValueError, match=message):
        compare_tests(a, b)


@pytest.mark.parametrize(('samples', 'other', 'message'), [
    (classified(30), classified(30, seed=1), 'other images: image 0 has the labels'),
    (segmented(30), segmented(30)[::-1], 'image 0 has 204 and 170 valid predictions'),
    (segmented(30), segmented(29), 'other images: 30 and 29'),
])  # fmt: skip
def test_compare_tests_of_other_images_refused(samples, other, message, tmp_path):
    evaluation = dict(dataset=dict(type='Samples', samples=30))
    a = write_test(tmp_path / 'a', samples, evaluation=evaluation)
    b = write_test(tmp_path / 'b', other, evaluation=evaluation)
    with pytest.raises(ValueError, match=message):
        compare_tests(a, b)


def test_compare_tests_without_files_refused(tmp_path):
    a = write_test(tmp_path / 'a', classified(30))
    with pytest.raises(FileNotFoundError, match=r'no results\.json of a test in'):
        compare_tests(a, str(tmp_path))
    (tmp_path / 'a/calibration.npz').unlink()
    with pytest.raises(ValueError, match='--calibration'):
        compare_tests(a, a)


def test_report_compare_two_tests_of_digits(run, tmp_path):
    """Two real tests: a model with random weights, and the same with another seed."""
    for seed, side in enumerate('ab'):
        torch.manual_seed(seed)
        test_weights(build_runner(small_config(tmp_path / side)))
    paths = [str(tmp_path / side) for side in 'ab']
    output = run('report.py', *paths, '--compare')
    assert 'B − A' in output and 'paired over 20 images' in output
    file = tmp_path / 'comparison.json'
    run('report.py', tmp_path / 'a/results.json', paths[1], '--compare', '--out', file)
    content = json.loads(file.read_text())
    assert content['difference']['NLL'] == content['b']['NLL'] - content['a']['NLL']
    for format_name in ('markdown', 'latex'):
        assert 'NLL' in run('report.py', *paths, '--compare', '--format', format_name)


@pytest.mark.parametrize(('arguments', 'message'), [
    (['--compare'], 'takes two tests, A and B, got 1'),
    (['b', '--compare', '--html', 'page.html'], '--compare has no --html'),
    (['b', '--compare', '--format', 'csv'], 'text, markdown, latex, json, not csv'),
])  # fmt: skip
def test_report_compare_invalid_options_refused(arguments, message, run):
    assert message in run('report.py', 'a', *arguments, code=2)
