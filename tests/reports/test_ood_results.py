"""Unseen classes in reports: tables of their own, never beside the AUROC of failures."""

import json

import pytest
from commands import call_here
from records import record

from mmcalib.metrics.keys import metric_heading
from mmcalib.reports import page as pages
from mmcalib.reports.formats import comma_separated, measured, report
from mmcalib.reports.runs import find_runs
from mmcalib.reports.tables import tables_of

CE = dict(type='CrossEntropyLoss')
SETS = dict(near=['cifar100'], far=['svhn', 'dtd'])
COUNTS = dict(ID=700, cifar100=50, svhn=60, dtd=70)
CALIBRATED = {'accuracy/top1': 90.0, 'calibration/ECE': 4.0, 'calibration/AUROC': 70.0}
FIGURES = ('AUROC', 'AUPR_in', 'AUPR_out', 'FPR95')


def ood(scores=('energy', 'entropy'), names=(), base=60.0, prefix='ood'):
    """Distinct figures of each score and set."""
    keys = [
        f'{prefix}/{s}/{n}{figure}' for s in scores for n in names or [''] for figure in FIGURES
    ]
    return {key: base + number / 10 for number, key in enumerate(keys)}


def metric(prefix='ood', counts=COUNTS, ood_index=None, scores=('energy', 'entropy')):
    return dict(prefix=prefix, scores=list(scores), ood_index=ood_index, counts=counts)


def write(folder, metrics, *, unseen=None, seed=0, finished=True, **evaluation):
    folder.mkdir(parents=True)
    evaluation = dict(dataset=dict(type='CIFAR10', split='test', samples=880), **evaluation)
    if unseen is not None:
        evaluation['ood'] = unseen
    else:
        evaluation |= dict(protocol='pooled', num_bins=15)
    content = record('ce/tiny', metrics, seed=seed, loss=CE, finished=finished)
    content['evaluation'] = evaluation
    (folder / 'results.json').write_text(json.dumps(content))


def tables(folder):
    runs, others = find_runs([folder])
    assert not others
    return {table.name: table for table in tables_of(runs)}


def test_each_score_is_a_row_of_a_table_beside_that_of_the_calibration(tmp_path):
    names = [f'{name}/' for name in ('near', 'far', 'cifar100', 'svhn', 'dtd')]
    for seed in (0, 1):
        write(tmp_path / f'clean{seed}', CALIBRATED, seed=seed)
        found = ood(names=names, base=60.0 + 2 * seed)
        write(tmp_path / f'ood{seed}', found, unseen=[metric()], seed=seed)
    found = tables(tmp_path)
    assert list(found) == ['tiny', 'tiny against unseen classes']
    plain, unseen = found.values()
    assert plain.columns == ['accuracy/top1', 'calibration/ECE', 'calibration/AUROC']
    assert [(row.label, len(row.runs)) for row in unseen.rows] == [
        ('CE by energy', 2), ('CE by entropy', 2)
    ]  # fmt: skip
    assert len(unseen.columns) == 20 and unseen.columns[4] == 'ood/far/AUROC'
    assert unseen.rows[1].values('ood/svhn/AUPR_in') == pytest.approx([63.3, 65.3])
    assert unseen.notes == [
        'Evaluation: 700 samples of CIFAR10 test against 50 of cifar100, 60 of svhn, 70 of dtd.'
    ]
    text = ' '.join(report([plain, unseen], {}, 'markdown').split())
    assert '| OOD AUROC near (%) |' in text and '| AUROC (%) |' in text
    assert 'ood/near/AUROC' in comma_separated([unseen])
    (content,) = json.loads(measured([unseen]))
    assert content['rows'][0]['runs'][1]['metrics']['ood/near/AUROC'] == pytest.approx(62.0)
    page = pages.page_of([plain, unseen], {}, [str(tmp_path)])
    assert 'OOD FPR95 far (%)' in page
    after = page.split('tiny against unseen classes')[1]
    assert 'reliability diagram' in page and 'reliability diagram' not in after


def test_pixels_of_a_label_and_a_set_alone(tmp_path):
    pixels = metric(counts=dict(ID=900, OOD=30), ood_index=254)
    write(tmp_path / 'pixels', ood(), unseen=[pixels])
    (table,) = tables(tmp_path / 'pixels').values()
    assert table.columns == [f'ood/{figure}' for figure in FIGURES]
    assert table.notes[0].endswith(
        '880 samples of CIFAR10 test against 30 of label 254, 900 others.'
    )
    alone = metric(counts=dict(ID=700, svhn=60))
    write(tmp_path / 'alone', ood(names=['far/', 'svhn/']), unseen=[alone])
    (table,) = tables(tmp_path / 'alone').values()
    assert table.columns == [f'ood/svhn/{figure}' for figure in FIGURES]  # not the mean of one


def test_a_test_that_is_left_out_is_named_once_whatever_its_scores(tmp_path):
    for name in 'ab':
        unseen = [metric(counts=dict(ID=5, OOD=2))]
        write(tmp_path / name, ood(), unseen=unseen, finished=name == 'a')
    (table,) = tables(tmp_path).values()
    assert table.notes[-1] == f'Left out, training unfinished: {tmp_path / "b"}.'


def test_other_sets_are_another_table_and_other_metrics_stay(tmp_path):
    """Also of one test that measures both, under another prefix."""
    both = CALIBRATED | ood(prefix='new')
    write(tmp_path / 'a', both, unseen=[metric('new', dict(ID=5, OOD=2), 4)], protocol='pooled')
    write(tmp_path / 'b', ood(names=['svhn/']), unseen=[metric(counts=dict(ID=5, svhn=2))])
    found = tables(tmp_path)
    assert len(found) == 3
    assert found['tiny'].columns == ['accuracy/top1', 'calibration/ECE', 'calibration/AUROC']
    assert sum('against unseen classes' in name for name in found) == 2
    for name, table in found.items():
        assert name == 'tiny' or all(key.startswith('ood/') for key in table.columns)


def test_headings_tell_unseen_classes_from_failures():
    assert metric_heading('ood/AUROC') == 'OOD AUROC (%)'
    assert metric_heading('ood/svhn/AUPR_in') == 'OOD AUPR_in svhn (%)'
    assert metric_heading('calibration/AUROC') == 'AUROC (%)'


def test_the_tool_prints_both_tables(tmp_path, monkeypatch, capsys):
    write(tmp_path / 'a', CALIBRATED)
    write(tmp_path / 'b', ood(['energy']), unseen=[metric(counts=dict(ID=5, OOD=2))])
    call_here('report.py', tmp_path, monkeypatch=monkeypatch)
    said = ' '.join(capsys.readouterr().out.split())
    assert 'CE by energy 1 60.00 60.10 60.20 60.30' in said
    assert 'CE 1 90.00 4.00 70.00' in said
