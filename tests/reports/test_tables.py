"""Tables of runs: which are averaged, which are named, and where the paper's figures stand."""

import csv
import io
import json

import pytest
from commands import ROOT, call_here
from records import CE, CIFAR10, MBLS, VOC, member, model, trained, write

from mmcalib.metrics.keys import HEADLINE
from mmcalib.reports import formats, paper_numbers
from mmcalib.reports.runs import find_runs
from mmcalib.reports.tables import tables_of
from mmcalib.runs.config import load_config


def markdown(tables, others=()):
    return ' '.join(formats.report(tables, dict(others), 'markdown').split())


def only_table(*folders, **options):
    runs, _ = find_runs(folders)
    (table,) = tables_of(runs, **options)
    return table


def test_seeds_are_averaged_beside_the_published_value(tmp_path):
    for seed, ece in enumerate([4.0, 6.0]):
        write(tmp_path / f'm/seed{seed}', 'mbls/resnet50_cifar10', seed=seed, ece=ece)
    write(tmp_path / 'ce', 'ce/resnet50_cifar10', loss=CE)
    table = only_table(tmp_path)
    assert [row.label for row in table.rows] == ['CE', 'MbLS m=6 α=0.1']
    assert '| MbLS m=6 α=0.1 | 2 | 90.00 ± 0.00 | 95.25 | 5.00 ± 1.41 | 1.16 |' in (
        markdown([table])
    )
    assert '5.00 ± 1.41' in formats.report([table], {})
    lines = list(csv.DictReader(io.StringIO(formats.comma_separated([table]))))
    assert [(line['loss'], line['seed']) for line in lines] == [
        ('CE', '0'), ('MbLS m=6 α=0.1', '0'), ('MbLS m=6 α=0.1', '1')
    ]  # fmt: skip
    assert [float(line['calibration/ECE']) for line in lines[1:]] == [4.0, 6.0]


@pytest.mark.parametrize('value', [float('nan'), float('inf')])
def test_a_metric_that_is_not_finite_in_one_run_has_a_mean_alone(value, tmp_path):
    for seed, ece in enumerate([4.0, value]):
        write(tmp_path / f'{seed}', 'mbls/resnet50_cifar10', seed=seed, ece=ece)
    table = only_table(tmp_path)
    assert f'| 90.00 ± 0.00 | 95.25 | {value} | 1.16 |' in markdown([table])


def test_other_parameters_are_a_row_without_a_published_value(tmp_path):
    write(tmp_path / 'a', 'mbls/resnet50_cifar10')
    write(tmp_path / 'b', 'mbls/resnet50_cifar10', loss=MBLS | dict(margin=8.0))
    write(tmp_path / 'c', 'mbls/resnet50_cifar10_m0', loss=MBLS | dict(margin=0.0, alpha=0.05))
    rows = only_table(tmp_path).rows
    assert [(row.label, row.paper.get('calibration/ECE')) for row in rows] == [
        ('MbLS m=0 α=0.05', 3.72),
        ('MbLS m=6 α=0.1', 1.16),
        ('MbLS m=8 α=0.1', None),
    ]


def test_means_of_several_predictions_are_rows_without_a_published_value(tmp_path):
    for seed in range(2):
        write(tmp_path / f'seed{seed}', 'mbls/resnet50_cifar10', seed=seed)
        mean = model(member(f'{seed}.pth'), views=[[1, 2]])
        folder = tmp_path / f'seed{seed}/tta'
        write(folder, 'mbls/resnet50_cifar10', seed=seed, ece=2.0, model=mean)
    mean = model(member('0.pth'), member('1.pth'))
    write(tmp_path / 'x2', 'mbls/resnet50_cifar10', seed=None, model=mean)
    rows = only_table(tmp_path).rows
    assert [(row.label, len(row.runs), bool(row.paper)) for row in rows] == [
        ('MbLS m=6 α=0.1', 2, True),
        ('MbLS m=6 α=0.1 + TTA (2)', 2, False),
        ('MbLS m=6 α=0.1 × 2', 1, False),
    ]
    assert rows[1].values('calibration/ECE') == [2.0, 2.0]


def test_another_length_is_a_row_and_said(tmp_path):
    network, shorter = dict(type='ImageClassifier'), dict(by_epoch=True, max_epochs=30)
    write(
        tmp_path / 'a', 'mbls/resnet50_cifar10',
        training=trained(model=network, train_cfg=shorter),
    )  # fmt: skip
    table = only_table(tmp_path)
    assert 'Epochs: 30, where the paper has 350.' in table.notes
    write(tmp_path / 'b', 'mbls/resnet50_cifar10')
    labels = [row.label for row in only_table(tmp_path).rows]
    assert labels == ['MbLS m=6 α=0.1, max_epochs=30', 'MbLS m=6 α=0.1, max_epochs=350']


@pytest.mark.parametrize(
    ('evaluation', 'reason'),
    [
        (dict(protocol='paper'), 'protocol=paper'),
        (dict(num_bins=25), 'num_bins=25'),
        (dict(dataset=CIFAR10 | dict(samples=100)), 'samples=100'),
        (dict(tta=True), 'tta=True'),
    ],
)
def test_another_protocol_is_named_and_not_averaged(evaluation, reason, tmp_path):
    for seed in range(2):
        write(tmp_path / f's{seed}', 'mbls/resnet50_cifar10', seed=seed)
    write(tmp_path / 'other', 'mbls/resnet50_cifar10', seed=2, ece=50.0, evaluation=evaluation)
    table = only_table(tmp_path)
    assert [len(row.runs) for row in table.rows] == [2]
    (note,) = [note for note in table.notes if 'evaluated otherwise' in note]
    assert reason in note and str(tmp_path / 'other') in note


LOADER, PACK = trained()['train_dataloader'], dict(type='PackInputs')


def read_by(*steps):
    return dict(train_dataloader=dict(LOADER, dataset=dict(LOADER['dataset'], pipeline=[*steps])))


@pytest.mark.parametrize(
    ('parts', 'words'),
    [
        (dict(train_dataloader=dict(LOADER, batch_size=64)), 'batch_size=64'),
        (dict(optim_wrapper=dict(type='AmpOptimWrapper')), 'optim_wrapper=AmpOptimWrapper'),
        (dict(train_cfg=dict(by_epoch=True, max_epochs=30)), 'max_epochs=30'),
        (dict(selection=dict(min_accuracy=0.98)), 'min_accuracy=0.98'),
        (dict(load_from='a.pth'), 'load_from=a.pth'),
        (dict(other_losses={'model.aux.loss': CE}), 'model.aux.loss=CrossEntropyLoss'),
        (
            dict(custom_hooks=[dict(type='LossScheduleHook', parameter='margin', factor=-1)]),
            'LossScheduleHook',
        ),
        (read_by(PACK), 'dataset.pipeline.RandomCrop=–'),
        (read_by(dict(type='RandomCrop', padding=2), PACK), 'dataset.pipeline.RandomCrop.padding'),
        (read_by(PACK, dict(type='RandomCrop', padding=4)), 'digest='),
    ],
    ids=lambda value: value if isinstance(value, str) else '',
)
def test_another_training_is_a_row_and_said(parts, words, tmp_path):
    name = 'mbls/resnet50_cifar10'
    write(tmp_path / 'a', name, training=trained())
    write(tmp_path / 'b', name, training=trained(**parts))
    first, second = only_table(tmp_path).rows
    assert len(first.runs) == len(second.runs) == 1 and first.label != second.label
    (other,) = [row for row in (first, second) if row.runs[0].path == str(tmp_path / 'b')]
    assert other.label.startswith(f'MbLS m=6 α=0.1, {words}')
    for seed in (1, 2):  # most trainings need no words, but have them in a note
        write(tmp_path / f'a{seed}', name, seed=seed, loss=CE, training=trained())
    table = only_table(tmp_path)
    labels = [row.label for row in table.rows]
    assert labels[0] == 'CE' and sum(words in label for label in labels) == (
        2 if words == 'digest=' else 1
    )


def test_tables_are_of_data_and_network_not_of_names(tmp_path):
    small = dict(type='ImageClassifier', backbone=dict(type='ResNet', depth=18))
    write(tmp_path / 'a', 'ce/cifar', loss=CE, training=trained())
    write(tmp_path / 'b', 'other/name', seed=1, loss=CE, training=trained())
    write(tmp_path / 'c', 'ce/cifar', loss=CE, training=trained(model=small))
    clean = dict(data_options=dict(noise=0))
    write(tmp_path / 'd', 'ce/cifar', loss=CE, training=trained(), evaluation=clean)
    tables = tables_of(find_runs([tmp_path])[0])
    assert [(table.name, len(table.rows[0].runs)) for table in tables] == [
        ('cifar', 2),
        ('cifar, backbone.depth=18', 1),
        ('cifar, noise=0', 1),
    ]


def test_every_metric_is_a_column(tmp_path):
    metrics = {
        'calibration/NLL': 0.25, 'accuracy/top5': 99.0, 'calibration/ECE': 3.0,
        'calibration/ECE_low': 2.0, 'calibration/ECE_high': 4.5, 'accuracy/top1': 90.0,
        'ece25/ECE': 3.5, 'confusion_matrix/result': [[1, 2], [3, 4]],
    }  # fmt: skip
    write(tmp_path / 'a', 'mbls/resnet50_cifar10', metrics=metrics)
    text = markdown([only_table(tmp_path)])
    assert (
        '| loss | runs | top-1 (%) | paper | ECE (%) | paper | NLL (nats) | top-5 (%) |'
        ' ece25/ECE (%) |' in text
    )
    assert '| 90.00 | 95.25 | 3.00 [2.00, 4.50] | 1.16 | 0.2500 | 99.00 | 3.50 |' in text
    (line,) = csv.DictReader(io.StringIO(formats.comma_separated([only_table(tmp_path)])))
    assert line['calibration/ECE_low'] == '2.0'
    (table,) = json.loads(formats.measured([only_table(tmp_path)]))
    assert table['rows'][0]['runs'][0]['metrics'] == {
        key: value for key, value in metrics.items() if 'confusion' not in key
    }


def test_names_are_no_markup(tmp_path):
    loss = dict(type='My[/bold]Loss', option='a|b')
    write(tmp_path / '[red]', 'x/[blink]data', loss=loss)
    write(tmp_path / '[dim]', 'x/[blink]data', loss=loss, finished=False)
    (tmp_path / '[i]').mkdir()
    (tmp_path / '[i]/results_val.json').write_text('{}')
    runs, others = find_runs([tmp_path])
    text = formats.report(tables_of(runs), others)
    for part in ('My[/bold]Loss option=a|b', '[blink]data', '[i]', '[dim]'):
        assert part in text
    assert 'My[/bold]Loss option=a&#124;b |' in markdown(tables_of(runs), others)


NETWORK = dict(type='ImageClassifier', data_preprocessor=dict(mean=[0.3], std=[0.5]))
SETTINGS = NETWORK
OTHER_MEAN = SETTINGS | dict(data_preprocessor=dict(mean=[9], std=[0.5]))


@pytest.mark.parametrize(
    ('file', 'settings', 'words'),
    [
        ('epoch_1.pth', SETTINGS, ', checkpoint=epoch_1'),
        ('epoch_350.pth', SETTINGS, ', checkpoint=epoch_350'),
        ('mine.pth', SETTINGS, ', checkpoint=renamed'),
        ('best.pth', OTHER_MEAN, ', mean=[9]'),
        ('best.pth', SETTINGS | dict(head={}), ', digest='),
    ],
)
def test_another_model_of_a_training_is_a_row_and_said(file, settings, words, tmp_path):
    about = dict(training=trained(model=NETWORK))
    for seed in range(2):
        write(tmp_path / f'{seed}', 'mbls/resnet50_cifar10', seed=seed, network=SETTINGS, **about)
    other = dict(file=file, network=settings, **about)
    write(tmp_path / 'other', 'mbls/resnet50_cifar10', seed=2, ece=9.0, **other)
    rows = only_table(tmp_path).rows
    assert sorted(len(row.runs) for row in rows) == [1, 2]
    (row,) = [row for row in rows if len(row.runs) == 1]
    assert words in row.label and row.values('calibration/ECE') == [9.0]


def test_means_of_members_with_other_settings_are_rows_of_their_own(tmp_path):
    for seed, settings in enumerate(
        [[SETTINGS, OTHER_MEAN], [OTHER_MEAN, SETTINGS], [SETTINGS] * 2]
    ):
        mean = model(*(member(network=each) for each in settings))
        write(tmp_path / f'{seed}', 'mbls/resnet50_cifar10', seed=seed, model=mean)
    assert sorted(len(row.runs) for row in only_table(tmp_path).rows) == [1, 2]


def test_a_second_run_of_a_seed_is_named(tmp_path):
    write(tmp_path / 'a', 'mbls/resnet50_cifar10', ece=9.0)
    write(tmp_path / 'b', 'mbls/resnet50_cifar10', ece=3.0, date='2026-02-02')
    table = only_table(tmp_path)
    assert table.rows[0].values('calibration/ECE') == [3.0]
    assert any('seed 0 again' in note and str(tmp_path / 'a') in note for note in table.notes)


def test_unfinished_runs_are_named(tmp_path):
    write(tmp_path / 'a', 'mbls/resnet50_cifar10')
    write(tmp_path / 'b', 'mbls/resnet50_cifar10', seed=1, finished=False)
    (tmp_path / 'c').mkdir()
    (tmp_path / 'c/last_checkpoint').write_text('epoch_3.pth')
    (tmp_path / 'e').mkdir()
    (tmp_path / 'e/results_val.json').write_text('{}')
    (tmp_path / 'f').mkdir()
    (tmp_path / 'f/results.json').write_text('{"experiment": ')
    (tmp_path / 'g').mkdir()
    (tmp_path / 'g/results.json').write_text('[1, 2]')
    runs, others = find_runs([tmp_path, tmp_path / 'a'])
    assert len(runs) == 2  # a folder given twice counts once
    (table,) = tables_of(runs)
    assert len(table.rows[0].runs) == 1
    assert any(
        'training unfinished' in note and str(tmp_path / 'b') in note for note in table.notes
    )
    unreadable = others['unreadable results.json']
    assert others == {
        'unfinished or not tested, no results.json': [str(tmp_path / 'c')],
        'not tested, only validated': [str(tmp_path / 'e')],
        'unreadable results.json': unreadable,
    }
    assert 'Expecting value' in unreadable[0] and 'is no record of a test' in unreadable[1]


def test_metrics_of_other_options_are_said(tmp_path):
    options = dict(other_metrics={'AECE': dict(protocol='pooled', num_bins=25)})
    write(tmp_path / 'a', 'mbls/resnet50_cifar10', evaluation=options)
    first, second = only_table(tmp_path).notes
    assert 'num_bins=15' in first and 'AECE.num_bins=25' in first
    assert 'No published value stands beside these: evaluation.other_metrics=' in second


def test_smoke_runs_are_named(tmp_path):
    write(tmp_path / 'a', 'mbls/resnet50_cifar10')
    write(tmp_path / 'b', 'mbls/resnet50_cifar10', seed=1, limit=8)
    runs, others = find_runs([tmp_path])
    assert [run.path for run in runs] == [str(tmp_path / 'a')]
    assert others == {'smoke runs with --limit': [str(tmp_path / 'b')]}


def test_a_calibrated_checkpoint_is_a_row_without_a_published_value(tmp_path):
    done = dict(methods=['temperature'], options={}, split='val', forced=[])
    write(tmp_path / 'a', 'mbls/resnet50_cifar10')
    write(tmp_path / 'b', 'mbls/resnet50_cifar10', ece=1.0, calibration=done)
    forced = dict(done, methods=['vector', 'temperature'], forced=['fitted on the test split'])
    write(tmp_path / 'c', 'mbls/resnet50_cifar10', ece=0.5, calibration=forced)
    rows = only_table(tmp_path).rows
    assert [row.label for row in rows] == [
        'MbLS m=6 α=0.1',
        'MbLS m=6 α=0.1 + temperature',
        'MbLS m=6 α=0.1 + vector + temperature, fitted on the test split',
    ]
    assert [bool(row.paper) for row in rows] == [True, False, False]


def test_voc_has_published_values_by_the_papers_protocol_only(tmp_path):
    loss = MBLS | dict(margin=10.0)
    for protocol in ('pooled', 'paper'):
        write(
            tmp_path / protocol, 'mbls/deeplabv3_r50_voc', loss=loss, quality='mIoU',
            evaluation=dict(dataset=VOC, protocol=protocol),
        )  # fmt: skip
    pooled = only_table(tmp_path, protocol='pooled')
    assert pooled.rows[0].paper == {}
    assert any(
        'evaluation.protocol=pooled, where the paper has paper' in note for note in pooled.notes
    )
    paper = only_table(tmp_path, protocol='paper')
    assert paper.rows[0].paper == {'mIoU': 71.2, 'calibration/ECE': 7.94, 'calibration/AECE': 7.99}


def test_another_test_set_has_no_published_value(tmp_path):
    data = CIFAR10 | dict(type='CustomDataset')
    write(tmp_path / 'jpeg', 'mbls/resnet50_cifar10', evaluation=dict(dataset=data))
    write(tmp_path / 'held', 'mbls/resnet101_cub_heldout')
    first, second = tables_of(find_runs([tmp_path])[0])
    assert not first.rows[0].paper and not second.rows[0].paper
    assert any(
        'dataset.type=CustomDataset, where the paper has CIFAR10' in note for note in second.notes
    )


def test_another_network_has_no_published_value(tmp_path):
    write(tmp_path / 'a', 'mbls/resnet50_cifar10', training=trained())
    table = only_table(tmp_path)
    assert not table.rows[0].paper
    assert any(
        'backbone.type=ResNet, where the paper has ResNet_CIFAR' in note for note in table.notes
    )
    network = dict(type='ImageClassifier', backbone=dict(type='ResNet_CIFAR', depth=50))
    write(tmp_path / 'b', 'mbls/resnet50_cifar10', training=trained(model=network))
    assert [bool(t.rows[0].paper) for t in tables_of(find_runs([tmp_path])[0])] == [False, True]


def test_the_published_figures_are_of_our_configs():
    root = ROOT / 'configs'
    tables = paper_numbers.published()['experiments']
    assert len(tables) == 10
    for name, entry in tables.items():
        cfg = load_config(str(root / 'ce' / f'{name}.py'))
        assert dict(cfg.model.backbone, **entry['backbone']) == cfg.model.backbone
        assert 'MbLS' in entry['values']
        for figures in entry['values'].values():
            assert set(figures) <= set(HEADLINE)
            assert all(0 < value < 100 for value in figures.values())


def test_figures_of_another_paper_say_so(tmp_path):
    acls = dict(type='ACLSLoss', margin=10.0, alpha=1.0)
    tiny = dict(dataset=dict(type='TinyImageNet', split='val', samples=10000))
    network = dict(type='ImageClassifier', backbone=dict(type='ResNet_CIFAR', depth=50))
    write(
        tmp_path / 'a',
        'acls/resnet50_tinyimagenet',
        loss=acls,
        evaluation=tiny,
        training=trained(model=network),
    )
    table = only_table(tmp_path)
    assert table.rows[0].paper['calibration/ECE'] == 1.05
    assert any('figures of ACLS: Park et al. (ICCV 2023)' in note for note in table.notes)


def test_the_command_writes_all_formats(tmp_path, monkeypatch, capsys):
    for seed in range(2):
        write(tmp_path / f'seed{seed}', 'mbls/digits', seed=seed)
    out = tmp_path / 'table.md'
    call_here('report.py', tmp_path, '--out', out, monkeypatch=monkeypatch)
    assert out.read_text().startswith('### digits')
    call_here('report.py', tmp_path, monkeypatch=monkeypatch)
    assert 'MbLS m=6' in capsys.readouterr().out
    call_here('report.py', tmp_path, '--format', 'csv', monkeypatch=monkeypatch)
    output = capsys.readouterr()
    assert 'digits,MbLS m=6 α=0.1,1,' in output.out and 'pooled' in output.err
    with pytest.raises(SystemExit):
        call_here('report.py', tmp_path / 'seed9', monkeypatch=monkeypatch)
    assert 'no results.json' in capsys.readouterr().err
