"""Means and worst cases of tests under shift, in tables, columns and figures."""

import math
import shutil
import statistics
from pathlib import Path

import pytest
from commands import call_here
from drawings import draw_runs
from matplotlib.figure import Figure
from matplotlib.text import Text
from records import CE, member, model, trained
from records import write as write_record

from mmcalib.metrics.keys import ECE, metric_heading, worst
from mmcalib.reports import page as pages
from mmcalib.reports.formats import comma_separated, report, robustness_table
from mmcalib.reports.runs import find_runs
from mmcalib.reports.shifted import shifted_tests
from mmcalib.reports.tables import tables_of
from mmcalib.transforms.corruption_names import BENCHMARK, CORRUPTIONS
from mmcalib.visualization import ShiftedModel, draw_severity_boxes, draw_severity_lines

LOSSES = {'CE': CE, 'LS α=0.1': dict(type='LabelSmoothingLoss', alpha=0.1)}
TEMPERATURE = dict(methods=['temperature'], options={}, split='val', forced=[])


def metrics(quality, ece):
    names = ('AECE', 'NLL', 'AUGRC')
    return {'mIoU': quality, 'calibration/ECE': ece} | {
        f'calibration/{name}': ece / 10 for name in names
    }


def leave(
    folder, label, *, seed=0, corruptions=CORRUPTIONS, severities=(1, 5), ece=1.0, data=(),
    source=(('seed', 0),), checkpoint=None, name=None, limit=None, num_bins=15,
    training=None, nan=(), date='2026-01-01',
):  # fmt: skip
    """Leave the tests of a model as tools/test_robustness.py does."""
    tests = [('clean', 'clean', 0, metrics(80.0, ece))]
    for number, kind in enumerate(corruptions):
        for severity in severities:
            found = metrics(80.0 - number - severity, ece + number * severity)
            if (kind, severity) in nan:
                found['calibration/ECE'] = math.nan
            tests.append(('corruption', kind, severity, found))
    tests += [('data', each, 0, metrics(50.0, 9.0)) for each in data]
    checkpoint = checkpoint or f'{label}{seed}/best.pth'
    base, _, calibrated = label.partition(' + ')
    of_training = dict(training=training or trained(model=dict(type='EncoderDecoder')))
    about = member(
        checkpoint, seed=seed, loss=LOSSES[base], calibration=TEMPERATURE if calibrated else None,
        file=Path(checkpoint).name, digest=name or label + str(seed) + checkpoint, **of_training,
    )  # fmt: skip
    evaluation = dict(dataset=dict(type='VOC', samples=7), num_bins=num_bins, limit=limit)
    for kind, test, severity, found in tests:
        shift = dict(kind=kind, name=test, severity=severity)
        shift |= dict(source) if kind == 'corruption' else {}
        path = (
            folder / f'{name or label}{seed}{checkpoint.replace("/", "_")}' / f'{test}_{severity}'
        )
        path = path.with_name(path.name.replace('clean_0', 'clean'))
        write_record(
            path, 'ce/tiny', metrics=found, model=model(about), date=date,
            evaluation=evaluation | dict(shift=shift),
        )  # fmt: skip
    return folder


def only(folder):
    (found,) = shifted_tests(folder)
    return found


def test_mean_and_worst_are_those_of_a_loop(tmp_path):
    leave(tmp_path, 'CE', data=['night'])
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
    table = robustness_table(shifted_tests(tmp_path))
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
    leave(tmp_path, 'CE', corruptions=['fog', 'snow'], nan=[('fog', 5)])
    (run,) = find_runs([tmp_path])[0]
    assert math.isnan(run.metrics['calibration/ECE mean'])
    assert math.isnan(run.metrics['calibration/ECE worst'])
    assert run.metrics['mIoU worst'] == 74


def test_reports_have_columns_that_name_the_shift(tmp_path, monkeypatch):
    for seed in (0, 1):
        folder = tmp_path / f'seed{seed}'
        leave(folder, 'CE', seed=seed, ece=1.0 + seed)
        leave(folder, 'CE + temperature', seed=seed, ece=0.5)
    leave(tmp_path / 'other', 'LS α=0.1', corruptions=['fog'])
    clean = {'mIoU': 80.0, 'calibration/ECE': 1.0}
    options = dict(training=trained(model=dict(type='EncoderDecoder')), loss=CE)
    evaluation = dict(dataset=dict(type='VOC', samples=7))
    write_record(tmp_path / 'clean', 'ce/tiny', metrics=clean, evaluation=evaluation, **options)
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


@pytest.mark.parametrize(
    ('made', 'said'), [(dict(stored='c'), 'stored set c: '), (dict(seed=3), ', seed 3')]
)
def test_other_images_are_other_data(made, said, tmp_path):
    leave(tmp_path / 'seed0', 'CE')
    leave(tmp_path / 'seed1', 'CE', seed=1, source=made.items())
    runs, _ = find_runs([tmp_path])
    tables = tables_of(runs)
    assert [len(table.rows[0].runs) for table in tables] == [1, 1]
    assert sum(said in table.notes[0] for table in tables) == 1


def test_severities_of_several_calls_are_said_of_each_corruption(tmp_path):
    leave(tmp_path, 'CE', corruptions=['fog', 'snow'])
    assert only(tmp_path).shifts == 'snow, fog at severity 1, 5'
    leave(tmp_path, 'CE', corruptions=['fog'], severities=[3])
    assert only(tmp_path).shifts == 'snow at severity 1, 5; fog at severity 1, 3, 5'


def test_smoke_runs_are_in_no_table(tmp_path):
    leave(tmp_path, 'CE', limit=5)
    with pytest.raises(FileNotFoundError, match=f'smoke runs with --limit: {tmp_path}'):
        find_runs([tmp_path])


def test_weights_that_were_replaced_are_left_out(tmp_path):
    for date, name in (('2026-01-02', 'new'), ('2026-01-01', 'old')):
        leave(tmp_path, 'CE', name=name, date=date, corruptions=['fog'])
    assert only(tmp_path).clean.model['members'][0]['digest'] == 'new'


@pytest.mark.parametrize('what', ['boxes', 'lines'])
def test_figures_tell_before_from_after(what, tmp_path):
    for number, label in enumerate(['CE', 'CE + temperature', 'LS α=0.1']):
        leave(tmp_path, label, ece=1.0 - number % 2 / 2, date=f'2026-01-0{number + 1}')
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
    leave(tmp_path, 'CE', corruptions=['fog'])
    next(tmp_path.glob('*/fog_1/results.json')).write_text('{"exp')
    with pytest.raises(ValueError, match=r'fog_1/results\.json is no record'):
        shifted_tests(tmp_path)
    with pytest.raises(FileNotFoundError, match=r'no test: tools/test_robustness\.py leaves them'):
        shifted_tests(tmp_path / 'none')


def test_files_of_one_loss_and_seed_are_told_apart(tmp_path):
    for name in ('best.pth', 'last.pth'):
        leave(tmp_path, 'CE', checkpoint=f'some/{name}')
    leave(tmp_path, 'CE', seed=1)
    assert [m.file for m in shifted_tests(tmp_path) if m.clean.seed == 0] == [
        'CE0some_best.pth',
        'CE0some_last.pth',
    ]
    text = robustness_table(shifted_tests(tmp_path))
    for title in (
        'CE, seed 0, CE0some_best.pth',
        'CE, seed 0, CE0some_last.pth',
        'CE, seed 1, best.pth',
    ):
        assert title in text
    said = [t.get_text() for t in draw_runs('robustness', [tmp_path], figure='boxes').findobj(Text)]
    assert {'CE', 'CE, CE0some_best.pth', 'CE, CE0some_last.pth'} <= set(said)


def test_figures_of_some_names_alone(tmp_path):
    for label in ('CE', 'CE + temperature', 'LS α=0.1'):
        leave(tmp_path, label)
    lines = draw_runs('robustness', [tmp_path], figure='lines', only=['LS α=0.1', 'CE']).legends[0]
    assert [text.get_text() for text in lines.get_texts()] == ['LS α=0.1', 'CE']
    with pytest.raises(ValueError, match=r"no checkpoint is named 'LS'; there are .*'LS α"):
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
        dict(num_bins=5),
        dict(training=trained(train_cfg=dict(max_epochs=3))),
        dict(severities=[5]),
        dict(source=[('seed', 3)]),
    ],
)
def test_only_seeds_that_were_tested_alike_share_a_line(change, tmp_path):
    folders = [tmp_path / 'a', tmp_path / 'b']
    leave(folders[0], 'CE')

    def names():
        figure = draw_runs('robustness', folders, figure='lines')
        return [text.get_text().replace('\n', '') for text in figure.legends[0].get_texts()]

    leave(folders[1], 'CE', seed=1)
    assert names() == ['CE']
    shutil.rmtree(folders[1])
    leave(folders[1], 'CE', seed=1, **change)
    assert names() == [f'CE, {folder}' for folder in folders]


def test_nothing_to_draw_is_said(tmp_path, monkeypatch, capsys):
    leave(tmp_path, 'CE', corruptions=[], data=['night'])
    with pytest.raises(ValueError, match='no test on corrupted data to draw'):
        draw_runs('robustness', [tmp_path], figure='boxes')
    with pytest.raises(SystemExit):
        call_here(
            'visualize.py', 'robustness', tmp_path / 'no', '--out', 'x.png', monkeypatch=monkeypatch
        )  # fmt: skip
    assert 'name the work dir of tools/test_robustness.py' in ' '.join(
        capsys.readouterr().err.split()
    )
    with pytest.raises(SystemExit):
        call_here(
            'visualize.py', 'robustness', tmp_path, '--names', 'a', '--out', 'x.png',
            monkeypatch=monkeypatch,
        )  # fmt: skip
    assert '--names is not for robustness' in ' '.join(capsys.readouterr().err.split())
