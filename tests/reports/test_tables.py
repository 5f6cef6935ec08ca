"""Tables of runs: which are averaged, which are named, and where the paper's figures stand."""

import csv
import io
import json
import os

import pytest
from commands import ROOT, run_in_process
from markdown_it import MarkdownIt
from records import CE, CIFAR10, MBLS, VOC, member, model, trained, write

from mmcalib.reports import paper_numbers
from mmcalib.reports.metric_columns import HEADLINE
from mmcalib.reports.reported_runs import find_runs
from mmcalib.reports.tables import tables_from_runs
from mmcalib.runs.config import load_config

NAME = 'mbls/resnet50_cifar10'
TEMPERATURE = dict(methods=['temperature'], options={}, split='val', forced=[])


@pytest.fixture
def reported(capsys):
    """Run tools/report.py and return what it prints, each space once."""

    def run(*arguments):
        run_in_process('report.py', *arguments)
        return ' '.join(capsys.readouterr().out.split())

    return run


def only_table(*folders, **options):
    (table,) = tables_from_runs(find_runs(folders)[0], **options)
    return table


def eces(table):
    return [row.values('calibration/ECE') for row in table.rows]


def test_report_every_format_has_seeds_or_their_mean(reported, tmp_path):
    for seed, ece in enumerate([4.0, 6.0]):
        write(tmp_path / f'm/seed{seed}', NAME, seed=seed, ece=ece)
    ce = CE | dict(avg_non_ignore=True)  # as mmseg needs it to count what the paper counts
    write(tmp_path / 'ce', 'ce/resnet50_cifar10', loss=ce)
    row = ['MbLS m=6 α=0.1', '2', '90.00 ± 0.00', '95.25', '5.00 ± 1.41', '1.16']
    ce_row = 'CE 1 90.00 93.20 4.00 5.85 4.00 5.84'
    text = reported(tmp_path)
    assert f'{ce_row} {" ".join(row)}' in text
    assert text.count('± is the standard deviation over the runs of a row.') == 1
    reported(tmp_path, '--out', tmp_path / 'table.md', '--html', tmp_path / 'page.html')
    text = (tmp_path / 'table.md').read_text()
    assert text.startswith('### resnet50_cifar10') and ' | '.join(row) in ' '.join(text.split())
    assert '>5.00 ± 1.41<' in (tmp_path / 'page.html').read_text().replace(' <', '<')
    assert ' & '.join(row[2:]) in reported(tmp_path, '--format', 'latex')
    reported(tmp_path, '--out', tmp_path / 'table.csv')
    lines = [*csv.DictReader(io.StringIO((tmp_path / 'table.csv').read_text()))]
    assert [(line['loss'], line['seed'], float(line['calibration/ECE'])) for line in lines] == [
        ('CE', '0', 4.0), ('MbLS m=6 α=0.1', '0', 4.0), ('MbLS m=6 α=0.1', '1', 6.0)
    ]  # fmt: skip
    (table,) = json.loads(reported(tmp_path, '--format', 'json'))
    runs = table['rows'][1]['runs']
    assert [(run['seed'], run['metrics']['calibration/ECE']) for run in runs] == [(0, 4), (1, 6)]


def test_report_columns_in_order_nan_has_no_deviation(reported, tmp_path):
    metrics = {
        'calibration/NLL': 0.25, 'accuracy/top5': 99.0, 'calibration/ECE': 3.0,
        'calibration/ECE_low': 2.0, 'calibration/ECE_high': 4.5, 'accuracy/top1': 90.0,
        'ece25/ECE': 3.5, 'confusion_matrix/result': [[1, 2], [3, 4]],
    }  # fmt: skip
    write(tmp_path / 'a', NAME, metrics=metrics)
    text = reported(tmp_path, '--format', 'markdown')
    head = '| top-1 (%) | paper | ECE (%) | paper | NLL (nats) | top-5 (%) | ece25/ECE (%) |'
    assert head in text and '| 90.00 | 95.25 | 3.00 [2.00, 4.50] | 1.16 | 0.2500 | 99.00 |' in text
    del metrics['calibration/NLL']
    write(tmp_path / 'b', NAME, seed=1, metrics=metrics | {'calibration/ECE': float('nan')})
    text = reported(tmp_path, '--format', 'markdown')
    assert '| 90.00 ± 0.00 | 95.25 | nan | 1.16 | 0.2500 (1 of 2) |' in text
    write(tmp_path / 'c', NAME, loss=dict(type='BrierLoss'), metrics={'calibration/ECE': 1.5})
    text = reported(tmp_path, '--format', 'markdown')
    assert '| Brier | 1 | – | – | 1.50 | – | – |' in text  # and no published figure


def test_report_names_with_markup_escaped(reported, tmp_path):
    names = ['<img src=x onerror=alert(1)>', '[here](http://example.org)', '**b** `c` _i_', '[red]']
    for number, name in enumerate(names):
        loss = dict(type=name, option='a|b', avg_factor=1)
        folder_name = name.replace('/', '')
        experiment = f'x/{number}{folder_name}'
        write(tmp_path / folder_name, experiment, loss=loss)
        write(tmp_path / f'unfinished{number}', experiment, loss=loss, finished=False)
    labels = {f'{name} avg_factor=1 option=a|b' for name in names}
    plain = reported(tmp_path, '--html', tmp_path / 'page.html')
    assert all(label in plain for label in labels)
    assert '<img src=x' not in (tmp_path / 'page.html').read_text()
    reported(tmp_path, '--out', tmp_path / 'a.md')
    parsed = MarkdownIt('commonmark').enable('table').parse((tmp_path / 'a.md').read_text())
    shown_texts = set()
    for token in parsed:
        if token.type == 'inline':
            shown_texts.add(''.join(child.content for child in token.children))
    assert labels <= shown_texts


def test_report_name_with_new_line_has_one_line(reported, tmp_path, capsys):
    odd = 'two\nlines\x1b[31m | `x`'
    columns = dict(classes=[odd, 'b'], ECE=[1.0, 2.0], accuracy=[3.0, 4.0], confidence=[5.0, 6.0])
    strata = dict(per_class=dict(calibration=dict(columns, count=[7, 8])))
    write(tmp_path / odd, f'x/{odd}', loss=dict(type=odd, option=odd), strata=strata)
    write(tmp_path / 'b', f'x/{odd}', loss=dict(type='Other'))
    write(tmp_path / 'left' / odd, f'x/{odd}', finished=False)
    for kind in ('text', 'markdown', 'latex'):
        run_in_process('report.py', tmp_path, '--format', kind)
        output = capsys.readouterr().out
        assert not any(line.startswith('lines') for line in output.splitlines())
        assert r'two\nlines' in output or kind != 'text'
    reported(tmp_path, '--html', tmp_path / 'page.html')
    assert r'two\nlines' in (tmp_path / 'page.html').read_text()


def test_report_folder_name_no_text_escaped(run, tmp_path):
    folder = tmp_path / os.fsdecode(b'caf\xe9')
    write(folder / 'left', NAME, finished=False)
    write(folder / 'a', NAME, ece=1.25)
    for kind in ('text', 'csv', 'json', 'markdown', 'latex', 'html'):
        output = run('report.py', folder, '--format', kind, '--out', 'out')
        assert 'caf' in output + (tmp_path / 'out').read_text()
        assert 'udce9' in run('report.py', folder, '--format', kind)


def test_report_long_label_wrapped_whole(tmp_path, run):
    options = {f'a_long_option_{n}': 'a long value' for n in range(9)}
    write(tmp_path / 'long', 'mbls/digits', loss=MBLS | options)
    lines = run('report.py', tmp_path / 'long').splitlines()
    label = ' '.join(line[:60].strip() for line in lines)
    assert all(f'{option}=a long value' in label for option in options)
    write(tmp_path / 'short', 'mbls/digits', loss=MBLS)
    lines = run('report.py', tmp_path / 'short').splitlines()
    assert max(map(len, lines[1:4])) < 60


def test_table_rows_losses_calibrations_ensembles_distinct(tmp_path):
    forced = TEMPERATURE | dict(
        methods=['vector', 'temperature'], forced=['fitted on the test split']
    )
    for loss_type in ('SoftmaxFocalLoss', 'LabelSmoothingLoss'):
        write(tmp_path / loss_type, NAME, loss=dict(type=loss_type))
    write(tmp_path / 'm6', NAME, loss=dict(type=MBLS['type'], margin=6.0))
    write(tmp_path / 'm0', f'{NAME}_m0', loss=MBLS | dict(margin=0.0, alpha=0.05))
    for seed in range(2):
        write(tmp_path / f'{seed}', NAME, seed=seed, ece=4.0 + seed)
        views = model(member(f'{seed}.pth'), views=[[1, 2]])
        write(tmp_path / f'tta{seed}', NAME, seed=seed, ece=2.0, model=views)
    write(tmp_path / 't', NAME, ece=1.0, calibration=TEMPERATURE)
    write(tmp_path / 'v', NAME, ece=0.5, calibration=forced)
    changes = {'x': {}, 'y': dict(calibration=TEMPERATURE), 'z': dict(loss=CE)}
    for name, change in changes.items():
        ensemble = model(member('0.pth'), member('1.pth', **change))
        write(tmp_path / name, NAME, seed=None, model=ensemble)
    table = only_table(tmp_path)
    # Losses are in the paper's order.
    assert [(row.label, len(row.runs), row.paper.get('calibration/ECE')) for row in table.rows] == [
        ('LS', 1, None),
        ('FL', 1, None),
        ('MbLS m=0 α=0.05', 1, 3.72),
        ('MbLS m=6', 1, None),
        ('MbLS m=6 α=0.1', 2, 1.16),
        ('MbLS m=6 α=0.1 + TTA (2)', 2, None),
        ('MbLS m=6 α=0.1 + temperature', 1, None),
        ('MbLS m=6 α=0.1 + vector + temperature, fitted on the test split', 1, None),
        ('MbLS m=6 α=0.1 × 2', 1, None),
        ('MbLS m=6 α=0.1 × 2 (1 of them + temperature)', 1, None),
        ('MbLS m=6 α=0.1 & CE × 2', 1, None),
    ]
    assert eces(table)[4] == [4.0, 5.0]


LOADER = trained()['train_dataloader']
PACK = dict(type='PackInputs')
CROP = dict(type='RandomCrop')
MIXED = trained()['model'] | dict(train_cfg=dict(augments='Mixup'))
NETWORK = dict(type='ImageClassifier', data_preprocessor=dict(mean=[0.3], std=[0.5]))
OTHER_MEAN = NETWORK | dict(data_preprocessor=dict(mean=[9], std=[0.5]))


def read_by(*steps):
    return dict(train_dataloader=dict(LOADER, dataset=dict(LOADER['dataset'], pipeline=[*steps])))


@pytest.mark.parametrize(
    ('training', 'change', 'words'),
    [
        (dict(train_dataloader=dict(LOADER, batch_size=64)), {}, 'batch_size=64'),
        (dict(optim_wrapper=dict(type='Amp')), {}, 'optim_wrapper=Amp'),
        (dict(train_cfg=dict(by_epoch=True, max_epochs=30)), {}, 'max_epochs=30'),
        (dict(load_from='a.pth'), {}, 'load_from=a.pth'),
        (dict(model=MIXED), {}, 'train_cfg.augments=Mixup'),
        (dict(other_losses={'model.aux.loss': CE}), {}, 'model.aux.loss=CrossEntropyLoss'),
        (dict(custom_hooks=[dict(type='SomeHook', factor=-1)]), {}, 'SomeHook'),
        (read_by(PACK), {}, 'dataset.pipeline.RandomCrop=–'),
        (read_by(dict(CROP, padding=2), PACK), {}, 'dataset.pipeline.RandomCrop.padding=2'),
        (read_by(dict(CROP, padding=4), CROP, PACK), {}, 'dataset.pipeline.RandomCrop 2='),
        (read_by(PACK, dict(CROP, padding=4)), {}, 'digest='),
        ({}, dict(file='epoch_1.pth'), 'checkpoint=epoch_1'),
        ({}, dict(file='mine.pth'), 'checkpoint=renamed'),
        ({}, dict(network=OTHER_MEAN), 'mean=[9]'),
        ({}, dict(network=NETWORK | dict(head={})), 'digest='),
    ],
    ids=lambda value: value if isinstance(value, str) else '',
)  # fmt: skip
def test_table_rows_other_training_or_model_labelled(training, change, words, tmp_path):
    for seed in range(3):
        write(tmp_path / f'{seed}', NAME, seed=seed, network=NETWORK)
    write(tmp_path / 'ce', NAME, loss=CE, network=NETWORK)
    changed = dict(network=NETWORK, training=trained(**training)) | change
    write(tmp_path / 'other', NAME, seed=9, ece=9.0, **changed)
    rows = only_table(tmp_path).rows
    assert sorted(len(row.runs) for row in rows) == [1, 1, 3]
    (row,) = [row for row in rows if row.values('calibration/ECE') == [9.0]]
    assert row.label.startswith(f'MbLS m=6 α=0.1, {words}') and '.padding=–' not in row.label
    # A digest tells both rows apart, any other setting is said of the unusual row alone.
    labels_with_words = [row.label for row in rows if words in row.label]
    assert len(labels_with_words) == (2 if words == 'digest=' else 1)


def test_table_rows_ensemble_any_order_of_members_same_row(tmp_path):
    pairs = [[NETWORK, OTHER_MEAN], [OTHER_MEAN, NETWORK], [NETWORK, NETWORK]]
    for number, networks in enumerate(pairs):
        members = [member(f'{number}.pth', network=network) for network in networks]
        write(tmp_path / f'{number}', NAME, seed=None, model=model(*members))
    assert sorted(len(row.runs) for row in only_table(tmp_path).rows) == [1, 2]


@pytest.mark.parametrize(
    ('evaluation', 'reason'),
    [
        (dict(protocol='paper'), 'evaluated otherwise (protocol=paper)'),
        (dict(num_bins=25), 'evaluated otherwise (num_bins=25)'),
        (dict(dataset=CIFAR10 | dict(samples=100)), 'evaluated otherwise (samples=100)'),
        (dict(tta=True), 'evaluated otherwise (tta=True)'),
        (None, 'calibration not measured (mmcalib test CONFIG CHECKPOINT --calibration)'),
    ],
)
def test_table_other_evaluation_excluded_with_reason(evaluation, reason, tmp_path):
    bare = dict(metrics={'accuracy/top1': 90.0}, evaluation=dict(num_bins=None))
    write(tmp_path / 'a', NAME, ece=7.25)
    if evaluation:
        write(tmp_path / 'b', NAME, seed=1, ece=7.25)
    else:  # more of these do not displace the one that measured it
        write(tmp_path / 'other/b', NAME, seed=1, **bare)
    other = dict(ece=50.0, evaluation=evaluation) if evaluation else bare
    write(tmp_path / 'other', NAME, seed=2, **other)
    table = only_table(tmp_path)
    assert eces(table) == [[7.25, 7.25] if evaluation else [7.25]]
    assert table.notes[-1].startswith(f'Left out, {reason}: {tmp_path / "other"}')


def test_report_protocol_keeps_classifiers(reported, tmp_path):
    write(tmp_path / 'digits', 'mbls/digits', ece=1.25)
    for protocol, ece in (('pooled', 2.25), ('pooled', 2.5), ('paper', 3.25)):
        seed = int(4 * ece)
        write(
            tmp_path / f'{seed}',
            'mbls/voc',
            quality='mIoU',
            ece=ece,
            evaluation=dict(dataset=VOC, protocol=protocol),
            seed=seed,
        )
    text = reported(tmp_path, '--protocol', 'paper')
    assert '1.25' in text and '3.25' in text and '2.25' not in text and '2.50' not in text
    assert 'No run is left' not in text
    assert 'No run is left' in reported(tmp_path, '--protocol', 'image')


def test_tables_split_by_data_and_network(tmp_path):
    small = trained(
        model=dict(type='ImageClassifier', backbone=dict(type='ResNet_CIFAR', depth=18))
    )
    noisy = dict(evaluation=dict(data_options=dict(noise=9)))
    write(tmp_path / 'a', 'ce/cifar', loss=CE)
    write(tmp_path / 'b', 'other/name', seed=1, loss=CE)
    write(tmp_path / 'c', 'ce/cifar', training=small)
    write(tmp_path / 'd', 'ce/cifar', **noisy)
    write(tmp_path / 'e', 'ce/cifar', loss=CE, **noisy)
    tables = tables_from_runs(find_runs([tmp_path])[0])
    assert [(table.name, [len(row.runs) for row in table.rows]) for table in tables] == [
        ('cifar & name', [2]), ('cifar, backbone.depth=18', [1]), ('cifar, noise=9', [1, 1])
    ]  # fmt: skip


def test_table_several_configs_titled_by_all(tmp_path):
    names = ['z_first', 'resnet50_cifar10', 'mine', 'yours']
    margins = [6.0, 6.0, 8.0, 9.0]
    for number, (name, margin) in enumerate(zip(names, margins, strict=True)):
        write(tmp_path / f'{number}', f'x/{name}', loss=dict(MBLS, margin=margin))
    (table,) = tables_from_runs(find_runs([tmp_path])[0])
    assert table.name.startswith('z_first & resnet50_cifar10 & mine & 1 more')
    # And the published figures are those of the config that has some.
    assert len([row for row in table.rows if row.paper]) == 1


def test_find_runs_excluded_runs_named(tmp_path, reported):
    write(tmp_path / 'a', NAME, ece=9.0)
    write(tmp_path / 'again', NAME, ece=3.0, date='2026-02-02')
    write(tmp_path / 'unfinished', NAME, seed=1, finished=False)
    write(tmp_path / 'smoke', NAME, seed=1, limit=8)
    write(tmp_path / 'a/earlier_1', NAME, seed=2)
    for path, content in (
        ('stopped/last_checkpoint', 'epoch_3.pth'), ('validated/results_val.json', '{}'),
        ('cut/results.json', '{"experiment": '), ('list/results.json', '[1, 2]'),
        ('no_metrics/results.json', '{"metrics": {}, "seed": 1}'),
    ):  # fmt: skip
        (tmp_path / path).parent.mkdir()
        (tmp_path / path).write_text(content)
    # A folder that is given twice counts once.
    runs, (unreadable, *excluded) = find_runs([tmp_path, tmp_path / 'a'])
    reasons = {
        'smoke': 'smoke runs with --limit',
        'stopped': 'unfinished or not tested (mmcalib train CONFIG --resume ends and tests it)',
        'unfinished': 'training unfinished (mmcalib train CONFIG --resume ends and tests it)',
        'validated': 'not tested, only validated',
    }
    assert excluded == [
        f'In no table, {reason}: {tmp_path / name}.' for name, reason in reasons.items()
    ]
    assert unreadable.startswith('In no table, unreadable results.json: ')
    errors = {'cut': 'Expecting value', 'list': 'no record of a', 'no_metrics': 'no record of a'}
    for name, error in errors.items():
        assert str(tmp_path / name) in unreadable and error in unreadable
    (table,) = tables_from_runs(runs)
    older = f'MbLS m=6 α=0.1, seed 0 again, older than {tmp_path / "again"}: {tmp_path / "a"}'
    assert eces(table) == [[3.0]] and table.notes[-1] == f'Left out, {older}.'
    report = reported(tmp_path).replace(f'{ROOT}/tools/train.py', 'mmcalib train')
    assert all(' '.join(line.split()) in report for line in (*excluded, table.notes[-1]))
    with pytest.raises(FileNotFoundError, match=r'no results\.json .*smoke runs with --limit'):
        find_runs([tmp_path / 'smoke'])


@pytest.mark.parametrize('seed', ['', 'seed3'])
def test_find_runs_sweep_values_have_a_table(seed, tmp_path):
    for margin in (2.0, 6.0):
        write(
            tmp_path / f'margin={margin:g}' / seed,
            NAME,
            name='results_val.json',
            split='val',
            loss=MBLS | dict(margin=margin),
            ece=margin,
            evaluation=dict(dataset=CIFAR10 | dict(split='val')),
        )
    write(tmp_path / 'margin=2' / seed, NAME, loss=MBLS | dict(margin=2.0), ece=7.0)
    (tmp_path / 'sweep.json').write_text('{}')
    runs, excluded = find_runs([tmp_path])
    assert not excluded
    assert sorted(map(eces, tables_from_runs(runs)), key=len) == [[[7.0]], [[2.0], [6.0]]]


SMALL = dict(type='ImageClassifier', backbone=dict(type='ResNet', depth=50))


@pytest.mark.parametrize(
    ('training', 'evaluation', 'reason'),
    [
        (dict(model=SMALL), {}, 'backbone.type=ResNet, where the paper has ResNet_CIFAR'),
        ({}, dict(num_bins=25), 'evaluation.num_bins=25, where the paper has 15'),
        ({}, dict(protocol='paper'), 'evaluation.protocol=paper'),
        ({}, dict(tta=True), 'evaluation.tta=True'),
        ({}, dict(other_metrics=dict(AECE=dict(num_bins=25))), 'evaluation.other_metrics={'),
        ({}, dict(dataset=CIFAR10 | dict(type='Mine')), 'dataset.type=Mine'),
        ({}, dict(dataset=CIFAR10 | dict(samples=9)), 'dataset.samples=9'),
    ],
    ids=lambda value: value if isinstance(value, str) else '',
)
def test_table_unlike_paper_has_no_published_value(training, evaluation, reason, tmp_path):
    write(tmp_path / 'a', NAME, training=trained(**training), evaluation=evaluation)
    table = only_table(tmp_path)
    assert not table.rows[0].paper
    assert f'No published value stands beside these: {reason}' in table.notes[1]


def test_table_nearly_like_paper_has_remarks(tmp_path):
    write(
        tmp_path / 'a',
        'acls/resnet50_tinyimagenet',
        loss=dict(type='ACLSLoss', margin=10.0, alpha=1.0),
        evaluation=dict(dataset=dict(type='TinyImageNet', split='val', samples=10000)),
        training=trained(train_cfg=dict(max_epochs=30)),
    )
    table = only_table(tmp_path)
    assert table.rows[0].paper['calibration/ECE'] == 1.05
    assert table.notes[1] == 'train_cfg.max_epochs=30, where the paper has 100.'
    assert table.notes[2].startswith('Published figures of ACLS: Park et al. (ICCV 2023)')


def test_published_values_fit_shipped_configs():
    tables = paper_numbers.published()['experiments']
    assert len(tables) == 10
    for name, entry in tables.items():
        backbone = load_config(str(ROOT / 'configs/ce' / f'{name}.py')).model.backbone
        assert dict(backbone, **entry['conditions']['backbone']) == backbone
        assert 'MbLS' in entry['values']
        for figures in entry['values'].values():
            assert set(figures) <= set(HEADLINE)
            assert all(0 < value < 100 for value in figures.values())


def test_table_loss_told_by_config_has_a_note(tmp_path):
    write(tmp_path / 'own', NAME, model=model(member(told_by='checkpoint')))
    assert 'tells the loss' not in ' '.join(only_table(tmp_path).notes)
    write(tmp_path / 'other', NAME, seed=1, model=model(member(seed=1, told_by='config')))
    (note,) = [note for note in only_table(tmp_path).notes if 'tells the loss' in note]
    assert str(tmp_path / 'other') in note and str(tmp_path / 'own') not in note
