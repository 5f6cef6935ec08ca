"""Broken files among the results: a report names each of them, and has all others."""

import json
from copy import deepcopy

import pytest
from records import CE, MBLS, record, trained, write
from shifted_records import write_shifted_tests

NAME = 'mbls/resnet50_cifar10'
ECE = 7.6543  # Every report must have this value of the whole record.
COLUMNS = dict(classes=['sky', 'road'], ECE=[1.0, None], accuracy=[2.0, 3.0])
COLUMNS |= dict(confidence=[3.0, 4.0], count=[7, 0])
REPLACEMENTS = (None, 3, -0.5, True, 'text', [], [1], {}, {'type': 'a'}, {'type': [1]})


def whole(**content):
    """A record with all that a record can have."""
    metrics = {'accuracy/top1': 90.0, 'calibration/ECE': 3.0, 'ood/energy/AUROC': 60.0}
    unseen = dict(prefix='ood', scores=['energy'], ood_index=None, counts=dict(ID=7, OOD=3))
    strata = dict(per_class=dict(calibration=COLUMNS))
    calibration = dict(methods=['temperature'], options={}, split='val', forced=[])
    parts = dict(loss=CE, calibration=calibration, strata=strata, evaluation=dict(ood=[unseen]))
    return record('ce/resnet50_cifar10', metrics, **(parts | content))


def changed(content, path, value):
    """A copy with another value at a path of keys, or without it where the value is missing."""
    content = deepcopy(content)
    *above, last = path
    node = content
    for key in above:
        node = node[key]
    if value is ...:
        del node[last]
    else:
        node[last] = value
    return content


def paths_in(node, path=()):
    """The paths of all nodes of nested dicts and lists."""
    items = node.items() if isinstance(node, dict) else ()
    items = enumerate(node) if isinstance(node, list) else items
    for key, item in items:
        yield (*path, key)
        yield from paths_in(item, (*path, key))


def leave(folder, content):
    folder.mkdir(parents=True)
    (folder / 'results.json').write_text(json.dumps(content))


MEMBER = ('model', 'members', 0)
SUM = dict(type='CombinedLoss', losses=['a'])
BROKEN = {
    'no_record': [1, 2],
    'a_number': 3,
    'a_text': 'results',
    'null': None,
    'members_empty': (('model', 'members'), []),
    'members_missing': (('model', 'members'), ...),
    'members_none': (('model', 'members'), None),
    'members_text': (('model', 'members'), 'best.pth'),
    'members_numbers': (('model', 'members'), [1]),
    'model_list': (('model',), []),
    'views_number': (('model', 'views'), 2),
    'views_numbers': (('model', 'views'), [2]),
    'experiment_list': (('experiment',), ['ce', 'digits']),
    'experiment_none': (('experiment',), None),
    'split_number': (('split',), 1),
    'date_number': (('date',), 20260101),
    'date_none': (('date',), None),
    'metrics_list': (('metrics',), [1.0]),
    'metrics_none': (('metrics',), None),
    'evaluation_text': (('evaluation',), 'test'),
    'data_text': (('evaluation', 'dataset'), 'CIFAR10'),
    'samples_text': (('evaluation', 'dataset', 'samples'), 'all'),
    'shift_text': (('evaluation', 'shift'), 'fog'),
    'shift_empty': (('evaluation', 'shift'), {}),
    'unseen_empty': (('evaluation', 'ood'), [{}]),
    'unseen_text': (('evaluation', 'ood', 0, 'counts', 'ID'), 'many'),
    'loss_text': ((*MEMBER, 'loss'), 'CE'),
    'loss_type_list': ((*MEMBER, 'loss', 'type'), ['CE']),
    'loss_untyped': ((*MEMBER, 'loss'), {'alpha': 1}),
    'loss_sum': ((*MEMBER, 'loss'), SUM),
    'checkpoint_list': ((*MEMBER, 'checkpoint'), ['best.pth']),
    'file_none': ((*MEMBER, 'file'), None),
    'seed_list': ((*MEMBER, 'seed'), [0]),
    'training_none': ((*MEMBER, 'training'), None),
    'training_without_model': ((*MEMBER, 'training'), {}),
    'network_list': ((*MEMBER, 'network'), []),
    'finished_missing': ((*MEMBER, 'finished'), ...),
    'calibration_text': ((*MEMBER, 'calibration'), 'temperature'),
    'calibration_empty': ((*MEMBER, 'calibration'), {'options': {}}),
    'strata_list': (('strata',), [1]),
    'class_text': (('strata', 'per_class'), 'all'),
    'class_column': (('strata', 'per_class', 'calibration', 'ECE'), ['1.0', None]),
    'class_short': (('strata', 'per_class', 'calibration', 'ECE'), [1.0]),
    'another_key': (('seeds',), [0]),
}


def test_report_broken_records_named_others_kept(tmp_path, run):
    write(tmp_path / 'whole', NAME, loss=MBLS, ece=ECE)
    for name, content in BROKEN.items():
        if isinstance(content, tuple):
            content = changed(whole(), *content)
        leave(tmp_path / 'broken' / name, content)
    for name, text in dict(cut='{"experiment": ', empty='', bytes='\0\0', deep='[' * 99999).items():
        leave(tmp_path / 'broken' / name, None)
        (tmp_path / 'broken' / name / 'results.json').write_text(text)
        BROKEN.setdefault(name, text)
    output = run('report.py', tmp_path, '--html', 'page.html')
    page = (tmp_path / 'page.html').read_text().replace('<wbr>', '')
    assert f'{ECE:.2f}' in output and f'{ECE:.2f}' in page
    for name in BROKEN:
        folder = str(tmp_path / 'broken' / name)
        assert f'{folder} ({folder}/results.json is no record' in output, name
        assert folder in page, name


@pytest.mark.parametrize('kind', ['text', 'markdown', 'latex', 'csv', 'json', 'html'])
def test_report_any_part_replaced_others_kept(kind, tmp_path, run):
    write(tmp_path / 'whole', NAME, loss=MBLS, ece=ECE)
    number = 0
    for content in (whole(), whole(model=None), whole(calibration=None, strata={})):
        for path in paths_in(content):
            for value in (..., *REPLACEMENTS):
                number += 1
                if number % 6 == len(kind) % 6:
                    leave(tmp_path / f'{number}', changed(content, path, value))
    assert number > 900
    output = run('report.py', tmp_path, '--format', kind, '--out', 'out')
    assert f'{ECE:.4g}'[:4] in (tmp_path / 'out').read_text() + output


def test_report_broken_shift_record_others_kept(tmp_path, run):
    for name in ('a', 'b'):
        write_shifted_tests(
            tmp_path / name, 'CE', ece=6.0 if name == 'a' else ECE, corruptions=['fog']
        )
    broken = next((tmp_path / 'a').glob('*/fog_5/results.json'))
    content = json.loads(broken.read_text())
    for value in ({}, None, dict(kind='corruption', name=3, severity='a')):
        broken.write_text(json.dumps(changed(content, ('evaluation', 'shift'), value)))
        output = run('report.py', tmp_path)
        assert f'{ECE:.2f}' in output
    write_shifted_tests(tmp_path / 'c', 'CE', ece=6.0, corruptions=['fog'])


def test_report_nan_among_seeds_named(tmp_path, run):
    for seed, ece in enumerate((1.0, float('nan'), 3.0)):
        write(tmp_path / f'seed{seed}', NAME, seed=seed, ece=ece)
    output = run('report.py', tmp_path)
    assert f'ECE nan, AECE nan of {tmp_path / "seed1"}' in output
    assert f'of {tmp_path / "seed0"}' not in output and f'of {tmp_path / "seed2"}' not in output


def test_report_odd_training_settings_accepted(tmp_path, run):
    """They are a user's config, of which only differences are output."""
    training = trained(optim_wrapper=[dict(type=['a'])], custom_hooks=[3, [dict(type=dict(a=1))]])
    write(tmp_path / 'odd', NAME, training=training, ece=1.25)
    write(tmp_path / 'whole', NAME, ece=2.25)
    output = run('report.py', tmp_path)
    assert '1.25' in output and '2.25' in output


@pytest.mark.parametrize('content', ['{}', '[]', '3', '{"rows": {}}', '{"rows": [{}]}', 'null'])
def test_report_broken_sweep_named_others_kept(content, tmp_path, run):
    write(tmp_path / 'whole', NAME, ece=ECE)
    write(tmp_path / 'sweep/margin=6', NAME, loss=CE)
    (tmp_path / 'sweep/sweep.json').write_text(content)
    output = run('report.py', tmp_path, '--html', 'page.html')
    page = (tmp_path / 'page.html').read_text().replace('<wbr>', '')
    assert f'{ECE:.2f}' in output and f'{tmp_path}/sweep/sweep.json is not of a sweep' in page
    output = run('sweep.py', '--plot', 'sweep', '--out', 'x.png', code=2)
    assert 'sweep/sweep.json is not of a sweep' in output
