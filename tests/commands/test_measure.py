"""Predictions in files of numpy, csv and pyarrow are measured as the library measures arrays."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from overconfident import draw_labels
from PIL import Image

import mmcalib
from mmcalib.posthoc import load_scaler
from mmcalib.predictions.files import open_columns

NAMES = ('cat', 'dog', 'cow', 'pig')


@pytest.fixture(scope='module')
def logits():
    return 2 * np.random.default_rng(0).normal(size=(300, 4))


@pytest.fixture(scope='module')
def labels(logits):
    return draw_labels(logits / 2, np.random.default_rng(1))


@pytest.fixture(scope='module')
def probs(logits):
    return torch.as_tensor(logits).softmax(1).numpy()


@pytest.fixture
def files(tmp_path, monkeypatch, logits, labels, probs):
    """Files of one set of predictions, in the folder of a test."""
    monkeypatch.chdir(tmp_path)
    np.savez('probs.npz', probs=probs, labels=labels)
    np.savez('logits.npz', logits=logits, labels=labels)
    np.savez('both.npz', logits=logits, probs=probs, labels=labels)
    np.save('probs.npy', probs)
    np.save('logits.npy', logits)
    np.save('labels.npy', labels)
    np.save('groups.npy', np.arange(300) // 3)
    write_table('names.csv', [f'p_{name}' for name in NAMES], probs, [NAMES[y] for y in labels])
    order = [2, 0, 3, 1]
    write_table('numbers.csv', [f'p_{k + 1}' for k in order], probs[:, order], labels + 1)
    write_table('one.csv', ['p'], probs[:, :1], (labels == 0).astype(int))
    return tmp_path


def write_table(path, headings, columns, labels):
    with open(path, 'w', newline='') as file:
        writer = csv.writer(file)
        writer.writerow(['id', *headings, 'label', 'patient'])
        for index, (row, label) in enumerate(zip(columns, labels, strict=True)):
            writer.writerow([index, *row, label, f'patient {index // 3}'])


def measured(run, *arguments):
    """Return the metrics that a command line writes as JSON."""
    run('measure.py', *arguments, '--json', 'found.json')
    with open('found.json') as file:
        return json.load(file)['metrics']


COLUMNS = ('--predictions', 'p_*', '--labels', 'label')


@pytest.mark.parametrize(
    'arguments',
    [
        ('probs.npz',),
        ('logits.npz',),
        ('both.npz', '--predictions', 'probs'),
        ('both.npz', '--predictions', 'logits', '--logits'),
        ('probs.npy', 'labels.npy'),
        ('logits.npy', 'labels.npy', '--logits'),
        ('names.csv', *COLUMNS),
        ('names.csv', '--predictions', *(f'p_{n}' for n in NAMES), '--labels', 'number'),
        ('names.csv', '--predictions', *(f'p_{n}' for n in NAMES), '--labels', 'label'),
        ('numbers.csv', *COLUMNS),
    ],
    ids=' '.join,
)
def test_measure_files_equal_measure_of_arrays(arguments, run, files, probs, labels):
    if 'number' in arguments:
        text = (files / 'names.csv').read_text()
        for number, name in enumerate(NAMES):
            text = text.replace(f',{name},', f',{number},')
        (files / 'names.csv').write_text(text.replace(',label,', ',number,'))
    expected = mmcalib.measure(probs, labels, ['ECE', 'NLL', 'gap'], interval=0.95)
    actual = measured(run, *arguments, '--metrics', 'ECE', 'NLL', 'gap')
    assert actual == pytest.approx(dict(expected), abs=1e-6)


@pytest.mark.parametrize(
    'arguments',
    [
        ('probs.npy', 'labels.npy', 'groups.npy'),
        ('names.csv', *COLUMNS, '--groups', 'patient'),
    ],
    ids=' '.join,
)
def test_measure_groups_are_units_of_intervals(arguments, run, files, probs, labels):
    groups = np.arange(300) // 3
    expected = mmcalib.measure(probs, labels, ['NLL'], interval=0.95, groups=groups)
    assert measured(run, *arguments, '--metrics', 'NLL') == pytest.approx(dict(expected), abs=1e-6)


def test_measure_parquet_equals_csv(run, files, probs, labels):
    import pyarrow
    from pyarrow import parquet

    columns = {f'p_{name}': probs[:, k] for k, name in enumerate(NAMES)}
    table = pyarrow.table(columns | {'label': [NAMES[y] for y in labels]})
    parquet.write_table(table, 'names.parquet')
    expected = measured(run, 'names.csv', *COLUMNS)
    assert measured(run, 'names.parquet', *COLUMNS) == pytest.approx(expected, abs=1e-9)


def test_measure_one_column_shows_ece_of_p_first(run, files, probs, labels):
    output = run('measure.py', 'one.csv', '--predictions', 'p', '--labels', 'label')
    rows = output.splitlines()
    assert rows[2].startswith('ECE of P(y = 1) (%)')
    expected = mmcalib.measure(probs[:, 0], (labels == 0).astype(int), 'ClasswiseECE')
    assert f' {expected:.2f} ' in rows[2]
    assert 'Confidences are too high by' in output


@pytest.mark.parametrize(
    ('limit', 'code'),
    [('ECE<100', 0), ('accuracy>0', 0), ('ECE<0.1', 1), ('accuracy>100', 1), ('gap_size<0.1', 1)],
)
def test_measure_require_decides_exit_status(limit, code, run, files):
    output = run('measure.py', 'probs.npz', '--require', limit, code=code)
    assert (f'{limit} is not met: ' in output) == bool(code)


def test_measure_require_compares_end_of_interval(run, files, probs, labels):
    expected = mmcalib.measure(probs, labels, ['ECE'], interval=0.95)
    between = (expected['ECE'] + expected['ECE_high']) / 2
    output = run('measure.py', 'probs.npz', '--require', f'ECE<{between}', code=1)
    assert f'the upper end of its interval is {expected["ECE_high"]:.2f}' in output
    run('measure.py', 'probs.npz', '--require', f'ECE<{expected["ECE_high"] + 0.01}')


def test_measure_require_nan_is_not_met(run, files, probs, labels):
    right = probs.argmax(1) == labels
    np.savez('right.npz', probs=probs[right], labels=labels[right])
    output = run('measure.py', 'right.npz', '--require', 'AUROC>1', code=1)
    assert 'AUROC>1 is not met: its value is nan' in output


@pytest.mark.parametrize('source', ['probs.npz', 'logits.npz'])
def test_measure_calibrate_writes_scaler_that_lowers_nll(source, run, files, logits, labels):
    output = run('measure.py', source, '--calibrate', 'temperature', '--out', 'scaler.json')
    assert 'Temperature 2.' in output
    assert 'Apply it by mmcalib measure FILE --scaler scaler.json --out NEW.npz' in output
    assert 'model' not in output.split('Temperature')[1]
    after = mmcalib.measure(load_scaler('scaler.json').predict_proba(logits), labels, 'NLL')
    assert after < mmcalib.measure(torch.as_tensor(logits).softmax(1), labels, 'NLL') - 0.1


@pytest.mark.parametrize('source', ['probs.npz', 'logits.npz', 'logits.npy labels.npy --logits'])
def test_measure_scaler_measures_and_writes_scaled_predictions(source, run, files, logits, labels):
    run('measure.py', 'logits.npz', '--calibrate', 'vector', '--out', 'scaler.json')
    expected = load_scaler('scaler.json').predict_proba(logits)
    arguments = (*source.split(), '--scaler', 'scaler.json')
    actual = measured(run, *arguments, '--out', 'calibrated.npz')
    assert actual['NLL'] == pytest.approx(mmcalib.measure(expected, labels, 'NLL'))
    with np.load('calibrated.npz') as stored:
        np.testing.assert_allclose(stored['probs'], expected)
        np.testing.assert_array_equal(stored['labels'], labels)


@pytest.mark.parametrize('kind', ['classes', 'sigmoid', 'labels'])
def test_measure_scaler_of_predictions_without_labels_writes_them(kind, run, files, logits, labels):
    if kind == 'sigmoid':
        logits, labels = logits[:, 0], (logits[:, 0] > 0).astype(int)
        labels[::5] = 1 - labels[::5]
    if kind == 'labels':
        labels = (logits > 0).astype(int)
        labels[::5] = 1 - labels[::5]
    np.savez('held_out.npz', logits=logits, labels=labels)
    np.savez('new.npz', probs=1 / (1 + np.exp(-logits)), logits=logits)
    run('measure.py', 'held_out.npz', '--calibrate', 'temperature', '--out', 'scaler.json')
    expected = load_scaler('scaler.json').predict_proba(
        logits[:, None] if kind == 'sigmoid' else logits
    )
    if kind == 'sigmoid':
        expected = expected[:, 1]
    line = 'measure.py new.npz --predictions logits --logits --scaler scaler.json --out out.npz'
    run(*line.split())
    with np.load('out.npz') as stored:
        assert stored.files == ['probs']
        np.testing.assert_allclose(stored['probs'], expected, rtol=1e-6)
    if kind != 'classes':  # The sigmoids of several labels have any sum.
        run(
            *[
                'measure.py',
                'new.npz',
                '--predictions',
                'probs',
                '--scaler',
                'scaler.json',
                '--out',
                'out.npz',
            ]
        )
        with np.load('out.npz') as stored:
            np.testing.assert_allclose(stored['probs'], expected, rtol=1e-6)


@pytest.fixture
def rare(files):
    """A file of rare positives, whose P(y = 1) is four times too high below one half."""
    rng = np.random.default_rng(0)
    p = rng.uniform(0, 0.06, 3000)
    write_table('rare.csv', ['p'], 4 * p[:, None], (rng.random(3000) < p).astype(int))
    return ('rare.csv', '--predictions', 'p', '--labels', 'label')


def test_measure_gate_of_confidences_alone_names_a_wrong_rate(rare, run):
    output = run('measure.py', *rare, '--require', 'ECE<12', '--json', 'gate.json')
    assert 'Nothing is required of P(y = 1), which may be wrong' in output
    assert 'and rate_gap is ' in output
    with open('gate.json') as file:
        record = json.load(file)
    (requirement,) = record['requirements']
    assert requirement['compared'] == record['metrics']['ECE_high']
    assert requirement['value'] == record['metrics']['ECE']
    assert requirement['is_met'] is True and requirement['limit'] == 12
    gate = ('--require', 'rate_gap<1', '--json', 'gate.json')
    output = run('measure.py', *rare, *gate, code=1)
    assert 'Nothing is required' not in output
    with open('gate.json') as file:
        assert json.load(file)['requirements'][0]['is_met'] is False


def test_measure_sentences_name_classes_as_columns_do(run, files, logits, labels):
    shifted = torch.as_tensor(logits + np.array([2, 0, 0, 0])).softmax(1).numpy()
    write_table('shifted.csv', [f'p_{n}' for n in NAMES], shifted, [NAMES[y] for y in labels])
    output = run('measure.py', 'shifted.csv', *COLUMNS)
    assert 'rate_gap (%)' in output
    assert 'not the frequency of the classes cat (' in output
    two = np.stack([1 - shifted[:, 0], shifted[:, 0]], axis=1)
    write_table('two.csv', ['p_bad', 'p_good'], two, np.array(['bad', 'good'])[(labels == 0) * 1])
    output = run('measure.py', 'two.csv', *COLUMNS)
    assert 'P(good) is ' in output and ' % of the labels are good: ' in output


def test_measure_advice_fits_what_was_done(run, files, logits, labels, probs):
    run('measure.py', 'probs.npz', '--calibrate', 'temperature', '--out', 's.json')
    np.savez('sharp.npz', logits=3 * logits, labels=labels)
    assert 'fit a scaling to held-out' in run('measure.py', 'sharp.npz')
    scaled = run('measure.py', 'sharp.npz', '--scaler', 's.json')
    assert 'points on average after s.json: fit the scaling to data like these.' in scaled
    np.savez('one_class.npz', logits=3 * logits, labels=np.zeros_like(labels))
    assert 'Confidences are too' not in run('measure.py', 'one_class.npz')
    p = np.full(20000, 0.006)
    y = np.zeros(20000, dtype=int)
    y[0] = 1
    np.savez('near.npz', probs=p, labels=y)
    assert 'points on average, which is little: keep the model.' in run('measure.py', 'near.npz')


SWAPPED = [f'p_{name}' for name in ('pig', 'cat', 'cow', 'dog')]


@pytest.mark.parametrize(
    ('fitted', 'named', 'has_labels'),
    [
        (['p_*'], ['p_*'], True),
        (['p_*'], SWAPPED, False),
        ([f'p_{name}' for name in NAMES], SWAPPED[::-1], True),
        ([f'p_{name}' for name in NAMES], ['p_*'], False),
    ],
)
def test_measure_scaler_finds_columns_of_its_classes_in_any_order(
    fitted, named, has_labels, run, files, probs, labels
):
    fit = ('--calibrate', 'vector', '--out', 's.json')
    run('measure.py', 'names.csv', '--predictions', *fitted, '--labels', 'label', *fit)
    write_table('swapped.csv', SWAPPED, probs[:, [3, 0, 2, 1]], [NAMES[y] for y in labels])
    labelled = ('--labels', 'label') if has_labels else ()
    scale = ('--scaler', 's.json', '--out', 'new.npz')
    run('measure.py', 'swapped.csv', '--predictions', *named, *labelled, *scale)
    expected = load_scaler('s.json').predict_proba(np.log(probs))
    with np.load('new.npz') as new:
        assert new['probs'] == pytest.approx(expected, abs=1e-9)
        assert not has_labels or (new['labels'] == labels).all()


def test_measure_scaler_adds_columns_to_the_table(run, files, probs):
    fit = ('--calibrate', 'vector', '--out', 's.json')
    run('measure.py', 'names.csv', *COLUMNS, *fit)
    write_table('swapped.csv', SWAPPED, probs[:, [3, 0, 2, 1]], [NAMES[0]] * len(probs))
    options = '--predictions p_* --scaler s.json --out new.csv'
    run('measure.py', 'swapped.csv', *options.split())
    before = open_columns('swapped.csv').arrays
    after = open_columns('new.csv').arrays
    assert all((after[name] == before[name]).all() for name in before)
    expected = load_scaler('s.json').predict_proba(np.log(probs))
    for name, column in zip(NAMES, expected.T, strict=True):
        assert after[f'calibrated_p_{name}'].astype(float) == pytest.approx(column, abs=1e-9)
    again = options.replace('new.csv', 'newer.csv').split()
    assert 'has the column calibrated_p_' in run('measure.py', 'new.csv', *again, code=2)
    assert 'no table whose rows' in run('measure.py', 'probs.npz', *options.split()[2:], code=2)


@pytest.mark.parametrize(
    ('file', 'values', 'message'),
    [
        ('nan.csv', [0.4, 0.3, 0.3, np.nan], 'values outside [0, 1], such as nan'),
        ('sum.csv', [0.5, 0.3, 0.2, 0.3], 'rows that do not sum to 1, such as 1.3'),
        ('round.csv', [0.33, 0.33, 0.33, 0.0], 'if they are rounded, divide each row by its sum'),
    ],
)
def test_measure_scaler_refuses_what_a_measurement_refuses(file, values, message, run, files):
    run('measure.py', 'names.csv', *COLUMNS, '--calibrate', 'temperature', '--out', 's.json')
    rows = [[0.25] * 4, values]
    write_table(file, [f'p_{name}' for name in NAMES], rows, ['cat', 'dog'])
    scale = ('--predictions', 'p_*', '--scaler', 's.json', '--out', 'new.csv')
    assert message in run('measure.py', file, *scale, code=2)
    assert message in run('measure.py', file, *COLUMNS, code=2)
    assert not Path('new.csv').exists()


@pytest.mark.parametrize(
    'line',
    [
        'measure.py probs.npz --json ./probs.npz',
        'measure.py probs.npz --scaler s.json --out probs.npz',
        'measure.py probs.npz --scaler s.json --json s.json',
        'compare.py probs.npz logits.npz --json logits.npz',
    ],
)
def test_file_that_is_read_is_not_overwritten(line, run, files):
    run('measure.py', 'probs.npz', '--calibrate', 'temperature', '--out', 's.json')
    before = {path: path.read_bytes() for path in files.iterdir()}
    assert 'is read, and would be overwritten' in run(*line.split(), code=2)
    assert {path: path.read_bytes() for path in files.iterdir()} == before


@pytest.mark.parametrize(
    ('line', 'words'),
    [
        ('measure.py probs.npz --json s.json', '--json s.json is a scaling'),
        ('measure.py probs.npz --json ./d.png --diagram d.png', 'name one file: ./d.png, d.png'),
    ],
)
def test_measure_output_that_would_be_lost_refused(line, words, run, files):
    run('measure.py', 'probs.npz', '--calibrate', 'temperature', '--out', 's.json')
    before = {path: path.read_bytes() for path in files.iterdir()}
    assert words in run(*line.split(), code=2)
    assert {path: path.read_bytes() for path in files.iterdir()} == before


def test_measure_require_gap_of_one_side_says_so(run, files):
    open_side = run('measure.py', 'probs.npz', '--require', 'gap<99')
    assert 'gap of under-confidence has no limit: add one, as --require "gap>-3"' in open_side
    both = run('measure.py', 'probs.npz', '--require', 'gap<99', '--require', 'gap>-99')
    assert 'no limit' not in both


def test_measure_requires_risk_at_coverage(run, files):
    line = ('measure.py', 'probs.npz', '--require', 'risk@coverage_0.8<0.1')
    assert 'risk@coverage_0.8<0.1 is not met' in run(*line, code=1)


def test_measure_boolean_texts_are_labels_of_two_classes(run, files, probs, labels):
    write_table('bool.csv', ['p'], probs[:, :1], labels == 0)
    named = ('--predictions', 'p', '--labels', 'label')
    assert measured(run, 'bool.csv', *named) == measured(run, 'one.csv', *named)
    both = np.stack([probs[:, 0], 1 - probs[:, 0]], axis=1)
    write_table('bools.csv', ['p_True', 'p_False'], both, labels == 0)
    found = measured(run, 'bools.csv', *COLUMNS)
    assert found['NLL'] == pytest.approx(measured(run, 'one.csv', *named)['NLL'], abs=1e-6)


def test_measure_no_scaling_chosen_ends_with_1_and_keeps_the_file(run, files):
    np.savez('calibrated.npz', probs=[[0.8, 0.2]] * 50, labels=([0] * 4 + [1]) * 10)
    (files / 'scaler.json').write_text('of another fit')
    line = 'measure.py calibrated.npz --calibrate auto --out scaler.json'
    output = run(*line.split(), code=1)
    assert 'No scaling is chosen, so scaler.json is not written.' in output
    assert (files / 'scaler.json').read_text() == 'of another fit'


def test_measure_require_takes_the_name_that_the_table_shows(run, files):
    line = ['measure.py', 'one.csv', '--predictions', 'p', '--labels', 'label']
    output = run(*line, '--require', 'ECE of P(y = 1)<0.1', code=1)
    assert 'ECE of P(y = 1)<0.1 is not met: the upper end of its interval is' in output


def test_measure_diagram_is_a_picture(run, files):
    run('measure.py', 'probs.npz', '--diagram', 'diagram.png')
    with Image.open('diagram.png') as picture:
        assert picture.width > 200


@pytest.mark.parametrize('file', ['two.npz', 'one.npz'])
def test_measure_two_classes_shows_ece_of_p_first_for_any_form(file, run, files, logits):
    """Its confidences are calibrated, and P(y = 1) is not."""
    p = 1 / (1 + np.exp(-logits[:, 0]))
    np.savez('one.npz', probs=p, labels=p > 0.7)
    np.savez('two.npz', probs=np.stack([1 - p, p], axis=1), labels=p > 0.7)
    output = run('measure.py', file)
    expected = mmcalib.measure(p, (p > 0.7).astype(int), 'ClasswiseECE')
    assert f'ECE of P(y = 1) (%) {expected:.2f}' in ' '.join(output.split())
    assert 'of the labels are 1' in output
    assert 'ECE of P(y = 1)' in run('compare.py', file, file)


REFUSED = {
    'nowhere.npz': 'nowhere.npz cannot be read: No such file',
    'probs.npy': 'come as predictions, labels',
    'probs.npz labels.npy': 'got 2 files: give one .npz',
    'probs.npy labels.npy --labels y': "an .npy file has no names, so 'y' names nothing",
    'text.txt': 'give .npy, .npz, .csv or .parquet files',
    'broken.npz': 'broken.npz cannot be read',
    'objects.npz': "key 'probs' holds Python objects",
    'both.npz': 'has probs and logits: say which, --predictions probs',
    'logits.npy labels.npy': 'outside [0, 1], such as',
    'probs.npz --logits': 'are probabilities, which sum to 1, and no logits: leave --logits out',
    'names.csv': 'has no column probs or logits: name the predictions by --predictions',
    'names.csv --predictions q_* --labels label': "no column like 'q_*': it has id, p_cat",
    'names.csv --predictions p_*': "no column 'labels': name one by --labels; it has id,",
    'names.csv --predictions p_* --labels patient': "the label 'patient 0', and the predictions",
    'names.csv --predictions patient --labels label': "'patient 0' in row 1, which is no number",
    'names.csv --predictions p_* --labels label --groups g': "no column 'g': name one by --groups",
    'ragged.csv --predictions a --labels b': 'has 2 headings, and 3 cells in row 1',
    'empty.csv --predictions a --labels b': 'has no rows below its headings',
    'gaps.csv --predictions a --labels b': "column 'a' has '' in row 2, which is no number",
    'halves.csv --predictions a --labels b': "column 'b' has the label 0.5",
    'one_name.csv --predictions p_cat --labels label': 'write labels as 0 and 1, since',
    'unnamed.csv --predictions p_* --labels label': 'which of the columns of pos, neg is class 0',
    'no_label.csv --predictions p --labels label': "column 'label' is empty in row 2: leave such",
    'no_group.csv --predictions p --labels y --groups g': '1 of 2 groups are empty, which says not',
    'semicolons.csv --predictions p --labels y': "separate cells by a comma, not ';'",
    'tabs.csv --predictions p --labels y': "separate cells by a comma, not '\\t'",
    'one.csv --predictions p --labels label --logits': 'as probabilities do and logits hardly',
    'probs.npz --metrics ECE,NLL': 'separate names by a space, --metrics ECE NLL',
    'probs.npz --metrics AECE': 'measure another metric besides, --metrics AECE NLL',
    'probs.npz --calibrate sigmoid': 'did you mean platt?',
    'probs.npz --calibrate platt --out x.npz': 'name a .json file for the scaling of --calibrate',
    'y.npy p.npy': 'probs come first, and then labels',
    'probs.npz --require ECE3': "'ECE3' is no requirement: give a metric, < or >, and a number",
    'probs.npz --require ECE<nan': 'is no requirement',
    'probs.npz --require EEC<3': 'did you mean ECE?',
    'probs.npz --diagram a.txt': 'name a .png, .pdf, .svg file',
    'probs.npz --out scaler.json': '--out is for the scaling of --calibrate METHOD',
    'probs.npz --calibrate platt --scaler four.json': 'leave --scaler out',
    'probs.npz --scaler four.json --out a.json': 'name an .npz or .csv file for what --scaler',
    'probs.npz --scaler text.txt': 'text.txt is not a scaler that save() wrote',
    'p.npy y.npy --scaler four.json': 'was fitted to 4 logits of a prediction, got (3, 1)',
    'several.npz --scaler four.json': 'is a scaling of classes, and the predictions are of several',
    'p.npy --scaler four.json': '.npy files come as predictions, labels',
    'numbers.csv --predictions p_* --labels label --scaler names.json': (
        'are of 3, 1, 4, 2: give --predictions the columns of the classes that it was fitted to'
    ),
    'rows.csv --predictions rat rog row rig --labels label --scaler names.json': (
        'and the predictions are of rat, rog, row, rig'
    ),
    'probs.npz --calibrate temprature': 'did you mean temperature?',
    'zeros.npz --calibrate temperature': 'put 0.05, half of the smallest positive one, in place',
}


@pytest.mark.parametrize('line', REFUSED)
def test_measure_mistake_is_one_line(line, run, files):
    (files / 'text.txt').write_text('text')
    (files / 'broken.npz').write_bytes(b'PK')
    (files / 'ragged.csv').write_text('a,b\n1,2,3\n')
    (files / 'empty.csv').write_text('a,b\n')
    (files / 'gaps.csv').write_text('a,b\n0.5,1\n,0\n')
    (files / 'halves.csv').write_text('a,b\n0.5,1\n0.2,0.5\n')
    (files / 'unnamed.csv').write_text('p_pos,p_neg,label\n0.5,0.5,1\n0.2,0.8,0\n')
    (files / 'no_label.csv').write_text('p,label\n0.5,1\n0.2,\n')
    (files / 'no_group.csv').write_text('p,y,g\n0.5,1,a\n0.2,0,\n')
    (files / 'semicolons.csv').write_text('p;y\n0.5;1\n0.2;0\n')
    (files / 'tabs.csv').write_text('p\ty\n0.5\t1\n0.2\t0\n')
    np.save('y.npy', np.array([0, 1, 1]))
    np.save('p.npy', np.array([0.2, 0.7, 0.8]))
    write_table('one_name.csv', ['p_cat'], [[0.5], [0.2]], ['p_cat', 'dog'])
    np.savez('objects.npz', probs=np.array([None, 1]), labels=np.array([0, 1]))
    np.savez('zeros.npz', probs=[[0.0, 1.0], [0.1, 0.9], [0.4, 0.6]], labels=[1, 1, 0])
    for scaler, source in (('four.json', ['probs.npz']), ('names.json', ['names.csv', *COLUMNS])):
        if scaler in line:
            run('measure.py', *source, '--calibrate', 'temperature', '--out', scaler)
    write_table('rows.csv', ['rat', 'rog', 'row', 'rig'], np.full((2, 4), 0.25), [0, 1])
    np.savez('several.npz', probs=np.full((3, 4), 0.5), labels=np.eye(3, 4, dtype=int))
    output = run('measure.py', *line.split(), code=2)
    assert REFUSED[line] in output.splitlines()[-1]


def test_compare_files_equals_compare_of_arrays(run, files, probs, labels):
    np.save('half.npy', np.full_like(probs, 0.25))
    arguments = ('probs.npy', 'half.npy', 'labels.npy', '--json', 'c.json')
    output = run('compare.py', *arguments)
    expected = mmcalib.compare(probs, np.full_like(probs, 0.25), labels)
    assert str(expected) in output
    failure = run('compare.py', *arguments, '--require', 'NLL<0', code=1)
    assert 'Of B − A, NLL<0 is not met: the upper end' in failure
    with open('c.json') as file:
        record = json.load(file)
    (verdict,) = record.pop('requirements')
    assert verdict['is_met'] is False
    assert record == expected.to_dict()


def test_compare_requirements_of_two_classes(run, files, probs, labels):
    """A gate of confidences alone may miss a wrong P(y = 1), and its verdicts are in the file."""
    np.savez('a.npz', probs=probs[:, 0], labels=labels == 0)
    np.savez('b.npz', probs=probs[:, 0] ** 2, labels=labels == 0)
    output = run('compare.py', 'a.npz', 'b.npz', '--json', 'c.json', '--require', 'accuracy>-99')
    assert 'Of B − A: Nothing is required of P(y = 1)' in output
    limited = run('compare.py', 'a.npz', 'b.npz', '--require', 'ClasswiseECE<-90', code=1)
    assert 'Nothing is required' not in limited
    (verdict,) = json.loads(Path('c.json').read_text())['requirements']
    assert verdict['requirement'] == 'accuracy>-99'
    assert verdict['is_met'] is True


def test_compare_logits_with_probs_finds_no_difference(run, files):
    output = run('compare.py', 'probs.npz', 'logits.npz', '--require', 'NLL<0.001')
    assert 'Not told apart: ECE, NLL, Brier, accuracy.' in output


def test_compare_reads_own_keys_of_what_measure_has_written(run, files):
    scaled = ('--scaler', 's.json', '--out', 'new.npz', '--groups', 'patient')
    run('measure.py', 'names.csv', *COLUMNS, '--calibrate', 'temperature', '--out', 's.json')
    run('measure.py', 'names.csv', *COLUMNS, *scaled)
    for pair in (('names.csv', 'new.npz'), ('new.npz', 'names.csv')):
        output = run('compare.py', *pair, *COLUMNS, '--groups', 'patient')
        assert 'over 100 groups' in output
    refusal = run('compare.py', 'names.csv', 'logits.npz', *COLUMNS, code=2)
    assert "logits.npz has no key like 'p_*'" in refusal


def test_compare_other_labels_refused(run, files, probs, labels):
    np.savez('other.npz', probs=probs, labels=labels[::-1])
    assert 'have other labels' in run('compare.py', 'probs.npz', 'other.npz', code=2)
    assert 'the files of two models' in run('compare.py', 'probs.npz', code=2)


def test_measure_calibrate_probability_of_one_says_what_stands_for_it(files, run):
    p = np.linspace(0.1, 0.9, 60)
    p[-1] = 1
    np.savez('ones.npz', p=p, y=np.arange(60) % 3 > 0)
    options = '--predictions p --labels y --calibrate platt --out scaler.json'
    output = run('measure.py', 'ones.npz', *options.split(), code=2)
    assert 'in place of 0, and 1 - 0.05 in place of 1' in output
