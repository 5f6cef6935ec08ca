"""Reports name the files that they cannot read, leave them out, and go on."""

import json
import re

import pytest
from commands import call_here
from records import MBLS, record
from test_figures import statistics, view

from mmcalib.reports.runs import find_runs
from mmcalib.visualization import ConfidenceMaps

METRICS = {'accuracy/top1': 95.0, 'calibration/ECE': 2.0}
WHOLE = record('mbls/resnet50_cifar10', METRICS)


def with_margin(margin):
    """A record of another loss."""
    return record('mbls/resnet50_cifar10', METRICS, loss={**MBLS, 'margin': margin})


def leave(folder, content):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / 'results.json').write_text(
        content if isinstance(content, str) else json.dumps(content)
    )


@pytest.mark.parametrize(
    ('content', 'reason'),
    [
        (json.dumps(WHOLE)[:300], 'Unterminated|delimiter|Expecting'),
        ('', 'Expecting value'),
        ('[1]', 'no record of a test'),
        (json.dumps({**WHOLE, 'metrics': []}), 'no metrics of a test'),
        ('{"metrics": {}, "seed": 1}', "argument 'seed'.*test again"),
        (json.dumps({**WHOLE, 'model': {}}), 'members'),
        (json.dumps({key: WHOLE[key] for key in ('metrics', 'model')}), 'experiment'),
    ],
)
def test_a_broken_file_is_named_with_what_is_wrong(content, reason, tmp_path):
    leave(tmp_path / 'good', WHOLE)
    leave(tmp_path / 'bad', content)
    _, others = find_runs([tmp_path])
    (line,) = others['unreadable results.json']
    assert str(tmp_path / 'bad') in line
    assert re.search(reason, line)


def test_a_page_goes_on_without_broken_figures(tmp_path, monkeypatch):
    for seed, name in enumerate(('whole', 'cut', 'other')):
        leave(tmp_path / name, with_margin(float(seed)))
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
