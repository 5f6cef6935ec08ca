"""Unseen classes in reports: tables of their own, never beside the AUROC of failures."""

import pytest
from records import CE, write as write_record

from mmcalib.reports.formats import tables_with_notes
from mmcalib.reports.reported_runs import find_runs
from mmcalib.reports.tables import tables_from_runs

COUNTS = dict(ID=700, cifar100=50, svhn=60, dtd=70)
CALIBRATED = {'accuracy/top1': 90.0, 'calibration/ECE': 4.0, 'calibration/AUROC': 70.0}
FIGURES = ('AUROC', 'AUPR_in', 'AUPR_out', 'FPR95')
SCORES = ('energy', 'entropy')


def write(folder, *, counts=None, sets=('',), base=60.0, prefix='ood', index=None, **content):
    """Leave a test with distinct values of each score and set, of those of `counts`."""
    metrics = dict(content.pop('metrics', {}))
    evaluation = {}
    if counts:
        keys = [f'{prefix}/{score}/{part}' for score in SCORES for part in names_for_sets(sets)]
        metrics |= {key: base + number / 10 for number, key in enumerate(keys)}
        metric = dict(prefix=prefix, scores=[*SCORES], ood_index=index, counts=counts)
        data = dict(type='CIFAR10', split='test', samples=880)
        evaluation = dict(ood=[metric], dataset=data)
    write_record(folder, 'ce/tiny', loss=CE, metrics=metrics, evaluation=evaluation, **content)


def names_for_sets(sets):
    return [f'{ood_set}{name}' for ood_set in sets for name in FIGURES]


def tables(folder):
    runs, _ = find_runs([folder])
    return {table.name: table for table in tables_from_runs(runs)}


def test_tables_ood_each_score_is_a_row(tmp_path):
    sets = [f'{name}/' for name in ('near', 'far', 'cifar100', 'svhn', 'dtd')]
    for seed in (0, 1):
        write(tmp_path / f'clean{seed}', metrics=CALIBRATED, seed=seed)
        write(tmp_path / f'ood{seed}', counts=COUNTS, sets=sets, base=60.0 + 2 * seed, seed=seed)
    write(tmp_path / 'left', counts=COUNTS, sets=sets, seed=3, finished=False)
    tables_by_name = tables(tmp_path)
    plain, unseen = tables_by_name.values()
    assert list(tables_by_name) == ['tiny', 'tiny against unseen classes']
    assert plain.columns == [*CALIBRATED]
    assert [(row.label, len(row.runs)) for row in unseen.rows] == [
        ('CE by energy', 2), ('CE by entropy', 2)
    ]  # fmt: skip
    assert len(unseen.columns) == 20 and unseen.columns[4] == 'ood/far/AUROC'
    assert unseen.rows[1].values('ood/svhn/AUPR_in') == pytest.approx([63.3, 65.3])
    assert unseen.notes[0].startswith(
        'Evaluation: 700 samples of CIFAR10 test against 50 of cifar100, 60 of svhn, 70 of dtd'
    )
    # Once, whatever its scores.
    (line,) = find_runs([tmp_path])[1]
    assert line.startswith('In no table, training unfinished (')
    assert line.endswith(f'): {tmp_path / "left"}.')
    text = ' '.join(tables_with_notes([plain, unseen], [], 'markdown').split())
    assert '| OOD AUROC near (%) |' in text and '| AUROC (%) |' in text


def test_tables_ood_label_or_single_set_has_its_columns(tmp_path):
    write(tmp_path / 'pixels', counts=dict(ID=900, OOD=30), index=254)
    (table,) = tables(tmp_path / 'pixels').values()
    assert table.columns == [f'ood/{figure}' for figure in FIGURES]
    assert 'CIFAR10 test against 30 of label 254, 900 others' in table.notes[0]
    write(tmp_path / 'alone', counts=dict(ID=700, svhn=60), sets=['far/', 'svhn/'])
    (table,) = tables(tmp_path / 'alone').values()
    assert table.columns == [f'ood/svhn/{figure}' for figure in FIGURES]  # not the mean of one


def test_tables_ood_other_sets_are_another_table(tmp_path):
    """Also of one test that measures both, under another prefix."""
    write(tmp_path / 'a', counts=dict(ID=5, OOD=2), metrics=CALIBRATED, prefix='new', index=4)
    write(tmp_path / 'b', counts=dict(ID=5, svhn=2), sets=['svhn/'])
    tables_by_name = tables(tmp_path)
    assert len(tables_by_name) == 3 and tables_by_name.pop('tiny').columns == [*CALIBRATED]
    for name, table in tables_by_name.items():
        assert 'against unseen classes, tested=against ' in name
        assert all(key.startswith('ood/') for key in table.columns)
