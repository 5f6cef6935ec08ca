"""Means and worst cases of tests under shift, in tables, columns and figures."""

import math
import shutil
import statistics

import pytest
from drawings import draw_runs, words
from records import CE, write
from shifted_records import shifted_metrics, write_shifted_tests

from mmcalib.choices import BENCHMARK, CORRUPTIONS
from mmcalib.metrics.metric_text import ECE
from mmcalib.reports.formats import robustness_table, tables_with_notes
from mmcalib.reports.reported_runs import find_runs
from mmcalib.reports.tables import tables_from_runs

FOG = dict(corruptions=['fog'])
ALL = 'the 15 corruptions of ImageNet-C at severity '


def only_run(folder):
    ((run,), others) = find_runs([folder])
    assert not others
    return run


def test_shift_columns_mean_and_worst_equal_loop(tmp_path):
    write_shifted_tests(tmp_path, 'CE', data=['zurich'])
    mious = []
    eces = []
    for number, name in enumerate(CORRUPTIONS):
        for severity in (1, 5):
            if name in BENCHMARK:  # the held-out four are to choose by
                mious.append(80.0 - number - severity)
                eces.append(1.0 + number * severity)
    expected = {
        'mIoU clean': 80, f'{ECE} clean': 1, 'mIoU mean': statistics.fmean(mious),
        'mIoU worst': min(mious), f'{ECE} mean': statistics.fmean(eces), f'{ECE} worst': max(eces),
        'calibration/NLL zurich': 0.9,
    }  # fmt: skip
    run = only_run(tmp_path)
    assert {key: run.metrics[key] for key in expected} == pytest.approx(expected)
    assert len(run.metrics) == 5 * len(['clean', 'mean', 'worst', 'zurich'])
    table = robustness_table([run])
    assert table.startswith('CE, seed 0, best.pth\n')
    lines = {' '.join(line.split()[:-5]): line.split()[-5:] for line in table.splitlines()}
    assert lines['clean'][:2] == ['80.00', '1.00'] and lines['zurich'][:2] == ['50.00', '9.00']
    assert lines['noise, mean'][0] == f'{statistics.fmean(mious[:6]):.2f}'
    assert lines['overall, worst'][:2] == [f'{min(mious):.2f}', f'{max(eces):.2f}']
    assert lines['holdout, worst'][0] == f'{80 - 18 - 5:.2f}'


def test_shift_columns_nan_or_held_out_alone_handled(tmp_path):
    write_shifted_tests(tmp_path / 'nan', 'CE', corruptions=['fog', 'snow'], nan=[ECE])
    metrics = only_run(tmp_path / 'nan').metrics
    assert math.isnan(metrics[f'{ECE} mean']) and math.isnan(metrics[f'{ECE} worst'])
    assert metrics['mIoU worst'] == 74
    write_shifted_tests(tmp_path / 'held_out', 'CE', corruptions=CORRUPTIONS[-1:])
    assert only_run(tmp_path / 'held_out').metrics['mIoU mean'] == 77


def test_shift_columns_lone_corruption_has_no_worst(tmp_path):
    """It is the mean and the worst."""
    write_shifted_tests(tmp_path / 'lone', 'CE', **FOG, severities=[5], data=['zurich'])
    run = only_run(tmp_path / 'lone')
    (table,) = tables_from_runs([run])
    assert table.columns[:3] == ['mIoU clean', 'mIoU mean', 'mIoU zurich']
    assert 'worst' not in robustness_table([run])
    write_shifted_tests(tmp_path / 'two', 'CE', corruptions=['fog', 'shot_noise'], severities=[5])
    lines = robustness_table([only_run(tmp_path / 'two')])
    assert 'noise, mean' in lines and 'noise, worst' not in lines
    assert 'overall, mean' in lines and 'overall, worst' in lines


def test_tables_under_shift_have_columns_and_notes_of_it(tmp_path):
    for seed in (0, 1):
        for label, ece in (('CE', 1.0 + seed), ('CE + temperature', 0.5)):
            write_shifted_tests(tmp_path / f'seed{seed}', label, seed=seed, ece=ece)
    write_shifted_tests(tmp_path / 'other', 'LS α=0.1', **FOG)
    write_shifted_tests(tmp_path / 'seed3', 'CE', seed=1, source=dict(seed=3).items())
    write_shifted_tests(tmp_path / 'stored', 'CE', seed=1, source=dict(stored='c').items())
    write(
        tmp_path / 'clean',
        'ce/tiny',
        evaluation=dict(dataset=dict(type='VOC')),
        metrics=shifted_metrics(80.0, 1.0),
        loss=CE,
    )
    runs, others = find_runs([tmp_path])
    tables = tables_from_runs(runs)
    assert not others and len(tables) == 5
    shifted = [table for table in tables if 'mIoU clean' in table.columns]
    (both,) = [table for table in shifted if len(table.rows) == 2]
    assert [(row.label, sorted(row.values(f'{ECE} clean'))) for row in both.rows] == [
        ('CE', [1.0, 2.0]), ('CE + temperature', [0.5, 0.5])
    ]  # fmt: skip
    assert both.columns[:3] == ['mIoU clean', 'mIoU mean', 'mIoU worst']
    notes = ' '.join(table.notes[0] for table in shifted)
    for source in ('', 'stored set c: '):
        assert f'under {source}{ALL}1, 5' in notes
    assert ', seed 3' in notes and 'fog at severity 1, 5' in notes and 'shift' not in notes
    text = ' '.join(tables_with_notes(tables, others, 'markdown').split())
    assert '| ECE clean (%) | ECE mean (%) | ECE worst (%) |' in text and '1.50 ± 0.71' in text


def test_shift_tests_other_source_or_evaluation_excluded(tmp_path):
    write_shifted_tests(tmp_path, 'CE', corruptions=['fog', 'snow'])
    assert only_run(tmp_path).details == 'under snow, fog at severity 1, 5'
    write_shifted_tests(tmp_path, 'CE', severities=[3], **FOG)  # severities of several calls
    assert only_run(tmp_path).details == 'under snow at severity 1, 5; fog at severity 1, 3, 5'
    later = dict(source=dict(seed=3).items(), date='2026-01-03')
    write_shifted_tests(tmp_path / 'x', 'CE', corruptions=['frost'], num_bins=5, **later)
    for parts in (FOG, dict(corruptions=['snow'], **later)):
        write_shifted_tests(tmp_path / 'x', 'CE', **parts)
    assert only_run(tmp_path / 'x').details == 'under snow at severity 1, 5, seed 3'


def test_find_runs_shift_without_clean_or_cut_off_named(tmp_path):
    for seed in (0, 1):
        write_shifted_tests(tmp_path, 'CE', seed=seed, **FOG)
    (model,) = tmp_path.glob('CE1*')
    shutil.rmtree(model / 'clean')
    (run,), (line,) = find_runs([tmp_path])
    assert run.record.seed == 0
    assert line == f'In no table, under shift, but without its test of clean data: {model}.'
    next(tmp_path.glob('CE0*/fog_1/results.json')).write_text('{"exp')
    with pytest.raises(FileNotFoundError, match=r'fog_1/results\.json is no record'):
        find_runs([tmp_path])


def test_robustness_figure_several_seeds_has_their_mean(tmp_path):
    for number, label in enumerate(['CE', 'CE + temperature', 'LS α=0.1']):
        write_shifted_tests(
            tmp_path, label, ece=1.0 - number % 2 / 2, data=['night']
        )  # no corruption is drawn of it
    write_shifted_tests(tmp_path, 'CE', seed=1, ece=3.0)
    boxes, lines = (draw_runs('robustness', [tmp_path], figure=f) for f in ('boxes', 'lines'))
    for text in ('CE + temperature', 'LS α=0.1', 'clean', 'ECE (%)', 'NLL (nats)', 'severity'):
        assert text in words(boxes) and text in words(lines)
    assert 'mIoU (%)' in words(boxes) and len(boxes.axes[0].patches) == 9  # at three severities
    plain, calibrated, _ = lines.axes[0].lines
    values = [2 + number for number in range(len(BENCHMARK))]
    assert list(plain.get_xdata()) == [0, 1, 5]
    assert list(plain.get_ydata()[:2]) == pytest.approx([2, statistics.fmean(values)])
    assert calibrated.get_ydata()[0] == 0.5


def test_robustness_figure_of_an_unfinished_run_warns(tmp_path):
    write_shifted_tests(tmp_path, 'CE', corruptions=['fog', 'snow'])
    shutil.rmtree(next(tmp_path.glob('*/snow_5')))
    with pytest.warns(UserWarning, match='CE has snow at severity 1; fog at severity 1, 5, so'):
        draw_runs('robustness', [tmp_path], figure='lines')


def names_in_figure(*folders, **options):
    (legend,) = draw_runs('robustness', folders, figure='lines', **options).legends
    return [text.get_text().replace('\n', '') for text in legend.get_texts()]


def test_robustness_figure_checkpoints_distinct_newest_drawn(tmp_path):
    for file in ('best.pth', 'epoch_9.pth'):
        write_shifted_tests(tmp_path, 'CE', file=file, **FOG)
    write_shifted_tests(tmp_path, 'LS α=0.1', **FOG)
    (table,) = tables_from_runs(find_runs([tmp_path])[0])
    names = ['CE', 'CE, checkpoint=epoch_9', 'LS α=0.1']
    assert [row.label for row in table.rows] == names
    assert names_in_figure(tmp_path) == [row.label for row in table.rows]
    assert names_in_figure(tmp_path, only=[names[1]]) == [names[1]]
    with pytest.raises(ValueError, match=r"no checkpoint is named 'LS'; there are .*'LS α"):
        draw_runs('robustness', [tmp_path], only=['LS'])
    write_shifted_tests(tmp_path, 'CE', digest='new', date='2026-01-02', ece=7.0, **FOG)
    (table,) = tables_from_runs(find_runs([tmp_path])[0])
    assert table.rows[0].values(f'{ECE} clean') == [7.0] and 'seed 0 again' in table.notes[-1]


def test_robustness_figure_other_tests_have_own_lines(tmp_path):
    network = dict(type='ImageClassifier', backbone=dict(type='ResNet', depth=18))
    changes = {
        'backbone=ResNet, backbone.depth=18': dict(model=network),
        'backbone=ResNet_CIFAR, backbone.depth=50': {},
        'by_epoch=–, max_epochs=3': dict(train_cfg=dict(max_epochs=3)),
        'num_bins=5': dict(num_bins=5),
        f'tested=under {ALL}1, 5, seed 3': dict(source=[('seed', 3)]),
        f'tested=under {ALL}5': dict(severities=[5]),
    }
    for seed, change in enumerate([{}, *changes.values()]):
        write_shifted_tests(tmp_path / f'{seed}', 'CE', seed=seed, **change)
    assert names_in_figure(tmp_path) == [f'CE, {words}' for words in changes]
