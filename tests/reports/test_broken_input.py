"""Reports name the files that they cannot read, leave them out, and go on."""

import json
import re

import pytest
from commands import call_here
from test_run_plots import statistics, view

from mmcalib.reports import html, output_formats
from mmcalib.reports.collect_runs import collect_runs
from mmcalib.reports.group_runs import tables_of
from mmcalib.visualization import ConfidenceMaps

WHOLE = {
    'experiment': 'mbls/resnet50_cifar10',
    'checkpoint': 'work_dirs/best.pth',
    'split': 'test',
    'metrics': {'accuracy/top1': 95.0, 'calibration/ECE': 2.0},
    'seed': 0,
    'loss': {'type': 'MarginLabelSmoothingLoss', 'margin': 6.0, 'alpha': 0.1},
    'trained': {
        'digest': '0123456789abcdef',
        'config': {
            'network': {'type': 'ImageClassifier', 'backbone': {'type': 'ResNet'}},
            'augmentation': [[{'type': 'RandomCrop', 'padding': 4}]],
            'batch_size': 128,
            'loss_schedules': [{'parameter': 'margin', 'factor': -1}],
            'other_losses': {'model.auxiliary_head.loss': {'type': 'CrossEntropyLoss'}},
        },
    },
    'calibration': {'methods': ['temperature'], 'options': {}, 'split': 'val', 'forced': ['so']},
    'averaged': {
        'members': 3,
        'views': 2,
        'mc_dropout': 0,
        'transforms': [[{'type': 'RandomFlip'}]],
        'calibration': {'methods': ['temperature'], 'forced': ['so']},
        'seeds': [0, 1, 2],
        'mean_of': {'members': [{'settings': {'network': 'a'}}]},
        'losses': [{'type': 'CrossEntropyLoss'}, {'type': 'LabelSmoothingLoss', 'alpha': 0.1}],
    },
    'settings': {'data_preprocessor': {'mean': [0.5]}, 'test_cfg': {}, 'network': 'a'},
    'training': {'epochs': 350, 'finished': True, 'epoch': 300, 'checkpoint': 'best'},
    'evaluation': {
        'dataset': {'type': 'CIFAR10', 'split': 'test', 'samples': 10000},
        'data_options': {'noise': 0},
        'pipeline': [[{'type': 'PackInputs'}]],
        'tta': False,
        'protocol': 'pooled',
        'convention': 'mmcalib',
        'num_bins': 15,
        'ignore_index': 255,
        'other_metrics': {'AECE': {'num_bins': 25}},
    },
    'limit': None,
    'date': '2026-01-01T00:00:00+00:00',
    'version': '0.2.0',
}
OF_OTHER_TYPES = (None, True, -3, 'text', [1], {'type': 3})


def places(node, path=()):
    """Where in a nested mapping or list something stands."""
    items = node.items() if isinstance(node, dict) else enumerate(node)
    for key, value in items:
        yield (*path, key)
        if isinstance(value, (dict, list)):
            yield from places(value, (*path, key))


def changed(path, value=None, *, remove=False):
    """A results.json with another value in one place, or without it."""
    content = json.loads(json.dumps(WHOLE))
    node = content
    for key in path[:-1]:
        node = node[key]
    if remove:
        del node[path[-1]]
    else:
        node[path[-1]] = value
    return content


def leave(folder, content):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / 'results.json').write_text(
        content if isinstance(content, str) else json.dumps(content)
    )


def report(folder):
    """The text of all formats."""
    runs, others = collect_runs([folder])
    tables = tables_of(runs)
    return [
        output_formats.text(tables, others),
        output_formats.markdown(tables, others),
        output_formats.comma_separated(tables),
        output_formats.measured(tables),
        html.build_page(tables, others, [folder]),
    ]


@pytest.mark.parametrize('path', list(places(WHOLE)), ids=lambda path: '.'.join(map(str, path)))
def test_a_value_of_another_type_ends_no_report(path, tmp_path):
    leave(tmp_path / 'good', changed(('loss', 'margin'), 8.0))
    for value in OF_OTHER_TYPES:
        leave(tmp_path / 'bad', changed(path, value))
        for text in report(tmp_path):
            assert '95.0' in text
    leave(tmp_path / 'bad', changed(path, remove=True))
    assert all('95.0' in text for text in report(tmp_path))


@pytest.mark.parametrize(
    ('content', 'reason'),
    [
        (json.dumps(WHOLE)[:500], 'Unterminated|delimiter|Expecting'),
        ('', 'Expecting value'),
        ('[' * 100_000, 'nested'),
        (changed(('experiment',), remove=True), 'it has no experiment'),
        (changed(('metrics', 'calibration/ECE'), '2.0'), "its metric calibration/ECE is '2.0'"),
        (changed(('loss',), dict(type='CombinedLoss', losses=3)), "its loss is {'type': 'Combi"),
        (changed(('loss',), dict(type='CombinedLoss', losses=[{}])), "its loss is {'type': 'Combi"),
        (changed(('seed',), '0'), "its seed is '0'"),
        (changed(('evaluation', 'num_bins'), True), r'its evaluation\.num_bins is True'),
    ],
)
def test_a_broken_file_is_named_with_what_is_wrong(content, reason, tmp_path):
    leave(tmp_path / 'good', WHOLE)
    leave(tmp_path / 'bad', content)
    _, others = collect_runs([tmp_path])
    (line,) = others['unreadable results.json']
    assert str(tmp_path / 'bad') in line
    assert re.search(reason, line)


def test_a_page_goes_on_without_broken_figures(tmp_path, monkeypatch):
    for seed, name in enumerate(('whole', 'cut', 'other')):
        leave(tmp_path / name, changed(('loss', 'margin'), float(seed)))
        statistics(seed=seed).save(tmp_path / name / 'calibration.npz')
        ConfidenceMaps([view(1)], [view(1)], ['a', 'b']).save(
            tmp_path / name / 'confidence_maps.npz'
        )
    for kind in ('calibration', 'confidence_maps'):
        path = tmp_path / f'cut/{kind}.npz'
        path.write_bytes(path.read_bytes()[:300])
        (tmp_path / f'other/{kind}.npz').write_text('hello')
    for name, rows in (
        ('unfinished', [dict(value=1.0, val=[], test=[], missing=['a=1'], chosen=False)]),
        ('empty', []),
    ):
        content = dict(experiment='a/b', parameter='margin', loss='MbLS', rows=rows)
        leave(tmp_path / name, '')
        (tmp_path / name / 'sweep.json').write_text(json.dumps(content))
        (tmp_path / name / 'results.json').unlink()
    (tmp_path / 'cut/sweep.json').write_text('{"rows": [')
    out = tmp_path / 'page.html'
    call_here('report.py', tmp_path, '--html', out, monkeypatch=monkeypatch)
    page = out.read_text()
    assert page.count('<img') == 3  # of the whole run: a diagram, a map, and the worst
    for part in (
        f'{tmp_path}/cut/calibration.npz cannot be read', f'{tmp_path}/other/calibration.npz',
        f'{tmp_path}/cut/confidence_maps.npz', f'{tmp_path}/other/confidence_maps.npz',
        f'{tmp_path}/unfinished is not drawn', f'{tmp_path}/empty is not drawn',
        f'{tmp_path}/cut/sweep.json cannot be read',
    ):  # fmt: skip
        assert part in page, part


def test_a_broken_file_of_a_figure_is_named(tmp_path, monkeypatch, capsys):
    leave(tmp_path, '{')
    for kind, name in (('reliability', 'calibration.npz'), ('maps', 'confidence_maps.npz')):
        (tmp_path / name).write_bytes(b'PK')
        with pytest.raises(SystemExit):
            call_here('visualize.py', kind, tmp_path, '--out', 'x.png', monkeypatch=monkeypatch)
        assert f'{tmp_path}/{name}' in capsys.readouterr().err
