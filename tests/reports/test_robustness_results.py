"""Means and worst cases of tests under shift, in tables, columns and figures."""

import json
import math
import statistics
from copy import deepcopy

import numpy as np
import pytest
from commands import call_here
from drawings import draw_runs
from matplotlib.figure import Figure
from matplotlib.text import Text
from records import record, trained

from mmcalib.metrics.keys import ECE, metric_heading, worst
from mmcalib.reports import page as pages
from mmcalib.reports.formats import comma_separated, report
from mmcalib.reports.robustness_results import (
    files_of,
    read_robustness,
    robustness_table,
    shifts_text,
    write_robustness,
)
from mmcalib.reports.runs import find_runs
from mmcalib.reports.tables import tables_of
from mmcalib.transforms.corruption_names import BENCHMARK, CORRUPTIONS
from mmcalib.visualization import (
    ConfidenceMaps,
    ConfidenceView,
    ShiftedModel,
    draw_severity_boxes,
    draw_severity_lines,
)

LOSSES = {
    'CE': dict(type='CrossEntropyLoss'),
    'LS α=0.1': dict(type='LabelSmoothingLoss', alpha=0.1),
}
TRAINED = trained(model=dict(type='EncoderDecoder'))
TEMPERATURE = dict(methods=['temperature'], options={}, split='val', forced=[])


def metrics(quality, ece):
    names = ('AECE', 'NLL', 'AUGRC')
    return {'mIoU': quality, 'calibration/ECE': ece} | {
        f'calibration/{name}': ece / 10 for name in names
    }


def entry(label, *, seed=0, corruptions=CORRUPTIONS, severities=(1, 5), ece=1.0, data=()):
    base, _, calibrated = label.partition(' + ')
    tests = [dict(kind='clean', name='clean', severity=0, metrics=metrics(80.0, ece))]
    for number, name in enumerate(corruptions):
        for severity in severities:
            found = metrics(80.0 - number - severity, ece + number * severity)
            tests.append(dict(kind='corruption', name=name, severity=severity, metrics=found))
    for name in data:
        tests.append(dict(kind='data', name=name, severity=0, metrics=metrics(50.0, 9.0)))
    evaluation = dict(dataset=dict(type='VOC', samples=7), protocol='pooled', num_bins=15)
    own = dict(loss=LOSSES[base], seed=seed, calibration=TEMPERATURE if calibrated else None)
    about = record('ce/tiny', {}, evaluation=evaluation, training=TRAINED, **own)
    return dict(about, checkpoint='best.pth', label=label, seed=seed, tests=tests)


def write(folder, *entries, limit=None):
    for each in entries:
        each['evaluation'] |= dict(limit=limit)
    content = dict(
        experiment='ce/tiny', split='test', limit=limit, date='', version='',
        checkpoints=list(entries),
    )  # fmt: skip
    write_robustness(folder, content)
    return folder


def test_mean_and_worst_are_those_of_a_loop(tmp_path):
    write(tmp_path, entry('CE', data=['night']))
    (run,) = find_runs([tmp_path])[0]
    mious, eces = [], []
    for number, name in enumerate(CORRUPTIONS):
        for severity in (1, 5):
            if name in BENCHMARK:  # the held-out four are to choose by
                mious.append(80.0 - number - severity)
                eces.append(1.0 + number * severity)
    assert run.metrics['mIoU clean'] == 80 and run.metrics['calibration/ECE clean'] == 1
    assert run.metrics['mIoU mean'] == pytest.approx(statistics.fmean(mious))
    assert run.metrics['mIoU worst'] == min(mious)
    assert run.metrics['calibration/ECE mean'] == pytest.approx(statistics.fmean(eces))
    assert run.metrics['calibration/ECE worst'] == max(eces)
    assert run.metrics['calibration/NLL night'] == 0.9
    table = robustness_table(read_robustness(tmp_path))
    lines = {' '.join(line.split()[:-5]): line.split()[-5:] for line in table.splitlines()}
    assert lines['clean'][:2] == ['80.00', '1.00'] and lines['night'][:2] == ['50.00', '9.00']
    assert lines['noise, mean'][0] == f'{statistics.fmean(mious[:6]):.2f}'
    assert lines['overall, worst'][:2] == [f'{min(mious):.2f}', f'{max(eces):.2f}']
    assert lines['holdout, worst'][0] == f'{80 - 18 - 5:.2f}'


def test_what_is_worse_and_what_it_is_called():
    for key in ('mIoU', 'accuracy/top1'):
        assert worst(key, [3.0, 1.0, 2.0]) == 1
    for key in ('calibration/ECE', 'calibration/NLL', 'calibration/AUGRC'):
        assert worst(key, [3.0, 1.0, 2.0]) == 3
    assert metric_heading('calibration/ECE worst') == 'ECE worst (%)'
    assert metric_heading('calibration/NLL mean') == 'NLL mean (nats)'
    assert metric_heading('mIoU clean') == 'mIoU clean (%)'


def test_without_a_prediction_there_is_no_mean(tmp_path):
    one = entry('CE', corruptions=['fog', 'snow'])
    one['tests'][2]['metrics']['calibration/ECE'] = math.nan
    (run,) = find_runs([write(tmp_path, one)])[0]
    assert math.isnan(run.metrics['calibration/ECE mean'])
    assert math.isnan(run.metrics['calibration/ECE worst'])
    assert run.metrics['mIoU worst'] == 74


def test_reports_have_columns_that_name_the_shift(tmp_path, monkeypatch):
    for seed in (0, 1):
        write(
            tmp_path / f'seed{seed}', entry('CE', seed=seed, ece=1.0 + seed),
            entry('CE + temperature', seed=seed, ece=0.5),
        )  # fmt: skip
    write(tmp_path / 'other', entry('LS α=0.1', corruptions=['fog']))
    clean = record(
        'ce/tiny', {'mIoU': 80.0, 'calibration/ECE': 1.0}, loss=LOSSES['CE'],
        evaluation=entry('CE')['evaluation'], training=TRAINED,
    )  # fmt: skip
    (tmp_path / 'clean').mkdir()
    (tmp_path / 'clean/results.json').write_text(json.dumps(clean))
    runs, others = find_runs([tmp_path])
    assert not others and len(runs) == 6
    tables = tables_of(runs)
    of_columns = {tuple(table.columns[:2]): table for table in tables}
    assert ('mIoU', 'calibration/ECE') in of_columns
    shifted = [table for table in tables if 'mIoU clean' in table.columns]
    assert len(tables) == 3 and len(shifted) == 2
    (both,) = [table for table in shifted if len(table.rows) == 2]
    assert [(row.label, len(row.runs)) for row in both.rows] == [
        ('CE', 2), ('CE + temperature', 2)
    ]  # fmt: skip
    assert both.columns[:3] == ['mIoU clean', 'mIoU mean', 'mIoU worst']
    assert any('under the 15 corruptions of ImageNet-C at severity 1, 5' in n for n in both.notes)
    text = ' '.join(report(tables, others, 'markdown').split())
    assert '| ECE clean (%) | ECE mean (%) | ECE worst (%) |' in text
    assert '1.50 ± 0.71' in text and 'fog at severity 1, 5' in text
    assert 'calibration/ECE worst' in comma_separated(tables)
    monkeypatch.setattr(pages, 'DPI', 30)
    page = pages.page_of(tables, others, [str(tmp_path / name) for name in ('seed0', 'other')])
    assert 'Under shift' in page and 'reliability diagram' not in page.split('Under shift')[1]
    for folder in ('seed0', 'other'):
        assert f'Corruptions by severity, {tmp_path / folder}' in page
    assert 'One image under' not in page  # which is of segmentation


@pytest.mark.parametrize(
    ('made', 'said'), [(dict(stored='c'), 'stored set c: '), (dict(seed=3), ', seed 3')]
)
def test_other_images_are_other_data(made, said, tmp_path):
    for seed in (0, 1):
        each = entry('CE', seed=seed)
        for test in each['tests'][1:]:
            test |= made if seed else dict(seed=0)
        write(tmp_path / f'seed{seed}', each)
    runs, _ = find_runs([tmp_path])
    tables = tables_of(runs)
    assert [len(table.rows[0].runs) for table in tables] == [1, 1]
    assert sum(said in table.notes[0] for table in tables) == 1


def test_severities_of_several_calls_are_said_of_each_corruption():
    one = entry('CE', corruptions=['fog', 'snow'])
    assert shifts_text(one) == 'fog, snow at severity 1, 5'
    one['tests'].append({**one['tests'][1], 'severity': 3})
    assert shifts_text(one) == 'fog at severity 1, 3, 5; snow at severity 1, 5'


def test_smoke_runs_are_in_no_table(tmp_path):
    write(tmp_path, entry('CE'), limit=5)
    with pytest.raises(FileNotFoundError, match=f'smoke runs with --limit: {tmp_path}'):
        find_runs([tmp_path])


@pytest.mark.parametrize('what', ['boxes', 'lines'])
def test_figures_tell_before_from_after(what, tmp_path):
    write(tmp_path, entry('CE'), entry('CE + temperature', ece=0.5), entry('LS α=0.1'))
    figure = draw_runs('robustness', [tmp_path], figure=what)
    assert isinstance(figure, Figure)
    said = ' '.join(text.get_text() for text in figure.findobj(Text))
    for text in ('CE + temperature', 'LS α=0.1', 'clean', 'ECE (%)', 'NLL (nats)', 'severity'):
        assert text in said
    if what == 'boxes':
        boxes = figure.axes[0].patches
        assert len(boxes) == 9
        colours = [box.get_facecolor() for box in boxes]
        assert colours[0] == colours[3] != colours[6]  # three severities each
        assert [bool(box.get_hatch()) for box in boxes] == [*[False] * 3, *[True] * 3, *[False] * 3]
    else:
        plain, warm, _ = figure.axes[0].lines
        assert (plain.get_linestyle(), warm.get_linestyle()) == ('-', '--')
        assert plain.get_color() == warm.get_color()
        values = [1 + number for number in range(len(BENCHMARK))]
        assert plain.get_ydata()[1] == pytest.approx(statistics.fmean(values))
        assert list(plain.get_xdata()) == [0, 1, 5]


def test_a_file_that_was_cut_off_is_named(tmp_path):
    (tmp_path / 'robustness.json').write_text('{"exp')
    with pytest.raises(ValueError, match=r'run tools/test_robustness\.py again'):
        read_robustness(tmp_path)
    with pytest.raises(FileNotFoundError, match=r'unreadable robustness\.json'):
        find_runs([tmp_path])


def test_files_of_one_loss_and_seed_are_told_apart(tmp_path):
    both = [entry('CE', ece=ece) for ece in (1.0, 2.0)]
    for name, each in zip(('best.pth', 'last.pth'), both, strict=True):
        each['checkpoint'] = f'some/{name}'
    write(tmp_path, *both, entry('CE', seed=1))
    assert files_of(both) == ['best.pth', 'last.pth']
    runs, _ = find_runs([tmp_path])
    (table,) = tables_of(runs)
    labels = [row.label for row in table.rows]
    assert labels == ['CE', 'CE, best.pth', 'CE, last.pth']
    assert not any('again' in note for note in table.notes)
    text = robustness_table(read_robustness(tmp_path))
    for title in ('CE, seed 0, best.pth', 'CE, seed 0, last.pth', 'CE, seed 1, best.pth'):
        assert title in text
    figure = draw_runs('robustness', [tmp_path], figure='boxes')
    said = [text.get_text() for text in figure.findobj(Text)]
    assert {'CE', 'CE, best.pth', 'CE, last.pth'} <= set(said)
    both[1]['checkpoint'] = 'other/best.pth'
    assert files_of(both) == ['some/best.pth', 'other/best.pth']


def test_figures_of_some_names_alone(tmp_path):
    write(tmp_path, entry('CE'), entry('CE + temperature'), entry('LS α=0.1'))
    lines = draw_runs('robustness', [tmp_path], figure='lines', only=['LS α=0.1', 'CE']).legends[0]
    assert [text.get_text() for text in lines.get_texts()] == ['LS α=0.1', 'CE']
    with pytest.raises(ValueError, match=r"no checkpoint is named 'LS'; there are \['CE', .*'LS α"):
        draw_runs('robustness', [tmp_path], figure='lines', only=['LS'])


def test_twenty_models_look_different():
    tests = {severity: [metrics(50, 5.0)] for severity in (0, 1)}
    names = [f'{number}{more}' for number in range(10) for more in ('', ' + temperature')]
    models = [ShiftedModel(name, name.split()[0], tests) for name in names]
    boxes = draw_severity_boxes(models, [ECE]).legends[0].get_patches()
    assert len({(box.get_facecolor(), box.get_hatch()) for box in boxes}) == 20
    lines = draw_severity_lines(models, [ECE]).legends[0].get_lines()
    looks = {(line.get_color(), line.get_marker(), line.get_linestyle()) for line in lines}
    assert len(looks) == 20


@pytest.mark.parametrize(
    'change',
    [
        lambda e: e['evaluation'].update(num_bins=5),
        lambda e: e['model']['members'][0].update(training=trained()),
        lambda e: e['tests'].pop(1),
        lambda e: e['tests'][1].update(seed=3),
    ],
)
def test_only_seeds_that_were_tested_alike_share_a_line(change, tmp_path):
    first, second = entry('CE'), deepcopy(entry('CE', seed=1))
    folders = [write(tmp_path / 'a', first), write(tmp_path / 'b', second)]

    def names():
        figure = draw_runs('robustness', folders, figure='lines')
        return [text.get_text().replace('\n', '') for text in figure.legends[0].get_texts()]

    assert names() == ['CE']
    change(second)
    write(tmp_path / 'b', second)
    assert names() == [f'CE, {folder}' for folder in folders]


def test_a_sheet_is_of_a_severity_that_was_tested(tmp_path):
    label = np.ones((4, 4), np.int16)
    view = ConfidenceView(
        0, 'a.jpg', np.zeros((4, 4, 3), np.uint8), label, label, np.full((4, 4), 0.5, np.float16),
        label > 0, np.array([[16.0], [16.0], [8.0]]),
    )  # fmt: skip
    ConfidenceMaps([view], [], ['a', 'b']).save(tmp_path / 'map.npz')
    one = entry('CE', corruptions=['fog'], severities=(1, 5))
    for test in one['tests']:
        test['map'] = 'map.npz'
    write(tmp_path, one)
    with pytest.raises(ValueError, match='no map for severity 3, only for 1, 5'):
        draw_runs('robustness', [tmp_path], figure='sheet', severity=3)
    said = [t.get_text() for t in draw_runs('robustness', [tmp_path], figure='sheet').findobj(Text)]
    assert 'fog 1' in said


def test_nothing_to_draw_is_said(tmp_path, monkeypatch, capsys):
    write(tmp_path, entry('CE', corruptions=[], data=['night']))
    with pytest.raises(ValueError, match='no test on corrupted data to draw'):
        draw_runs('robustness', [tmp_path], figure='boxes')
    with pytest.raises(SystemExit):
        call_here(
            'visualize.py', 'robustness', tmp_path / 'no', '--out', 'x.png', monkeypatch=monkeypatch
        )  # fmt: skip
    assert 'tools/test_robustness.py writes it' in ' '.join(capsys.readouterr().err.split())
    with pytest.raises(SystemExit):
        call_here(
            'visualize.py', 'robustness', tmp_path, '--names', 'a', '--out', 'x.png',
            monkeypatch=monkeypatch,
        )  # fmt: skip
    assert '--names is not for robustness' in ' '.join(capsys.readouterr().err.split())
