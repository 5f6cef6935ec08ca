import json
import re
import shutil

import numpy as np
import pytest
import torch
from commands import call_here
from drawings import draw_runs
from matplotlib.text import Text
from records import record

from mmcalib.metrics import CalibrationStatistics
from mmcalib.metrics.counts import bin_of, table_of
from mmcalib.reports import figures
from mmcalib.reports.page import page_of
from mmcalib.reports.runs import find_runs
from mmcalib.reports.tables import tables_of
from mmcalib.visualization import ConfidenceMaps, ConfidenceView

LOSSES = {'CrossEntropyLoss': 'CE', 'LabelSmoothingLoss': 'LS'}


def statistics(images=20, pixels=30, bins=5, seed=0, **options):
    generator = torch.Generator().manual_seed(seed)
    conf = torch.rand(images, pixels, generator=generator)
    correct = torch.rand(conf.shape, generator=generator) < conf
    rows = [table_of(bin_of(c, bins), c, k, bins) for c, k in zip(conf, correct, strict=True)]
    values, index = conf.flatten().double().unique(return_inverse=True)
    ones = torch.stack([torch.ones(len(index)), correct.flatten(), conf.flatten()]).double()
    cells = torch.zeros(3, len(values), dtype=torch.float64).index_add_(1, index, ones)
    defaults = dict(metrics={'ECE': 3.0, 'AECE': 2.0}, protocol='pooled', num_bins=bins)
    return CalibrationStatistics(
        **{**defaults, **options}, narrow_bins=cells, image_bins=torch.stack(rows)
    )


def with_strata(saved):
    """The same, as if its images were of two classes, and its pixels at distances in turn."""
    parts = saved.image_bins.unflatten(0, (2, -1)).sum(dim=1)
    saved.class_bins = torch.stack([*parts, torch.zeros_like(parts[0])], dim=1)
    saved.classes = ['sky', '<road>', 'never']
    saved.distance_bins = torch.stack([parts[n % 2] * (n != 5) for n in range(8)], dim=1)
    return saved


def view(index):
    pixels = np.full((4, 6), index % 2, np.int16)
    return ConfidenceView(
        index, f'image {index}', np.zeros((4, 6, 3), np.uint8), pixels, pixels,
        np.ones((4, 6), np.float16), pixels >= 0, statistics(images=1).image_bins[0].numpy(),
    )  # fmt: skip


@pytest.fixture
def runs(tmp_path):
    """Two tested runs of a data set, with all that their tests leave."""
    paths = []
    for seed, (loss, folder) in enumerate(LOSSES.items()):
        path = tmp_path / folder
        path.mkdir()
        with_strata(statistics(seed=seed)).save(path / 'calibration.npz')
        images = [view(index) for index in ((0, 1) if seed else (1, 2))]
        ConfidenceMaps(images, images[:1], ['sky', 'road']).save(path / 'confidence_maps.npz')
        metrics = {'mIoU': 50.0, 'calibration/ECE': 3.0}
        result = record(f'{folder.lower()}/demo', metrics, loss={'type': loss})
        (path / 'results.json').write_text(json.dumps(result))
        paths.append(path)
    return paths


def test_runs_are_called_by_their_loss(runs, tmp_path):
    assert figures.names_of(runs) == ['CE', 'LS']
    assert figures.names_of([runs[0] / 'calibration.npz', runs[1]]) == ['CE', 'LS']
    assert figures.names_of([runs[0], runs[0]]) == [f'CE, {runs[0]}'] * 2
    assert figures.names_of(runs, ['a', 'b']) == ['a', 'b']
    with pytest.raises(ValueError, match='2 runs require as many names'):
        figures.names_of(runs, ['a'])
    with pytest.raises(FileNotFoundError, match=r'no .*calibration\.npz: tools/test\.py writes it'):
        figures.load('reliability', tmp_path)
    with pytest.raises(FileNotFoundError, match=r'no .*confidence_maps\.npz: .*ConfidenceMapHook'):
        figures.load('maps', tmp_path)


def test_only_shared_images_are_put_side_by_side(runs, monkeypatch):
    drawn = []
    monkeypatch.setattr(figures, 'draw_confidence_maps', lambda views, **_: drawn.extend(views))
    draw_runs('maps', runs)
    assert [view.name for view in drawn] == ['CE, image 1', 'LS, image 1']
    with pytest.raises(ValueError, match='no image in common'):
        draw_runs('maps', runs, images=['image 2'])


@pytest.mark.parametrize(
    ('kind', 'options', 'out'),
    [
        ('reliability', ['--overlay', '--zoom', '80', '100', '--num-bins', '25'], 'a/b.pdf'),
        ('reliability', ['--equal-mass', '--names', 'one', 'two'], 'c.png'),
        ('risk', ['--overlay'], 'r.pdf'),
        ('boundary', ['--names', 'one', 'two'], 'n.png'),
        ('maps', [], 'd.png'),
        ('maps', ['--images', 'image 1'], 'i.png'),
        ('worst', [], 'e.svg'),
    ],
)
def test_the_tool_writes_files(kind, options, out, runs, tmp_path, monkeypatch):
    out = tmp_path / out
    call_here('visualize.py', kind, *runs, '--out', out, *options, monkeypatch=monkeypatch)
    assert out.stat().st_size > 1000


def test_the_tool_says_what_is_missing(tmp_path, monkeypatch, capsys):
    for arguments, message in (
        (['reliability', tmp_path, '--out', 'x.png'], 'there is no '),
        (['maps', tmp_path, '--out', 'x.png'], 'there is no '),
    ):
        with pytest.raises(SystemExit):
            call_here('visualize.py', *arguments, monkeypatch=monkeypatch)
        assert message in capsys.readouterr().err


def test_only_some_images(runs):
    figure = draw_runs('maps', runs[:1], images=['image 2'])
    drawn = ' '.join(text.get_text() for text in figure.findobj(Text))
    assert 'image 2' in drawn and 'image 1' not in drawn
    with pytest.raises(ValueError, match="no image 'image 9' was drawn; there are image 1, image"):
        draw_runs('maps', runs[:1], images=['image 1', 'image 9'])


def test_without_distances_there_is_no_boundary_to_draw(tmp_path, monkeypatch, capsys):
    statistics().save(tmp_path / 'calibration.npz')
    with pytest.raises(SystemExit):
        call_here('visualize.py', 'boundary', tmp_path, '--out', 'x.png', monkeypatch=monkeypatch)
    assert 'CalibrationMetric(per_distance=True)' in capsys.readouterr().err


def test_a_page_needs_nothing_else(runs, tmp_path, monkeypatch):
    rows = [
        dict(value=v, val=[{'mIoU': 50.0, 'calibration/ECE': v}], test=[], chosen=v == 1.0)
        for v in (1.0, 2.0)
    ]
    (tmp_path / 'sweep').mkdir()
    (tmp_path / 'sweep/sweep.json').write_text(
        json.dumps(dict(experiment='ls/demo', loss='LS', parameter='alpha', rows=rows))
    )
    out = tmp_path / 'page.html'
    pictures = ['--figures', tmp_path / 'pictures', '--figure-format', 'svg']
    call_here('report.py', tmp_path, '--html', out, *pictures, monkeypatch=monkeypatch)
    html = out.read_text()
    for part in ('<h2>demo</h2>', '3.00', 'Worst-calibrated', '<h2>Sweeps</h2>'):
        assert part in html
    assert html.count('<img') == html.count('src="data:image/png;base64,') == 8
    assert html.count('<details><summary>Each predicted class, one run of ') == 2
    cells = [cell.strip() for cell in re.findall('<td.*?>(.*?)</td>', html)]
    assert 'LS' in cells and '&lt;road&gt;' in cells
    assert cells[cells.index('never') + 1] == 'nan'
    assert 'ECE by distance from the nearest boundary' in html
    assert 'http' not in html
    written = sorted(path.name for path in (tmp_path / 'pictures').iterdir())
    assert len(written) == 8
    assert written[0] == '01_reliability_ce.svg'


def test_a_page_names_the_runs_that_lack_files(runs, tmp_path):
    (runs[1] / 'calibration.npz').unlink()
    (runs[1] / 'confidence_maps.npz').unlink()
    shutil.copytree(runs[0], tmp_path / 'more' / '<b>')
    found, others = find_runs([tmp_path])
    text = page_of(tables_of(found), others, [tmp_path], title='a < b')
    assert (
        'No reliability diagram, since calibration was not measured, or the file is missing: LS.'
        in text
    )
    assert '<title>a &lt; b</title>' in text and '<b>' not in text


@pytest.mark.parametrize(
    ('kind', 'option'),
    [
        ('risk', ['--zoom', '80', '100']),
        ('risk', ['--num-bins', '5']),
        ('boundary', ['--overlay']),
        ('maps', ['--equal-mass']),
        ('reliability', ['--images', 'image 1']),
        ('worst', ['--only', 'CE']),
        ('reliability', ['--figure', 'lines']),
    ],
)
def test_an_option_of_another_kind_is_refused(kind, option, runs, tmp_path, monkeypatch, capsys):
    out = tmp_path / 'x.png'
    with pytest.raises(SystemExit):
        call_here('visualize.py', kind, *runs, '--out', out, *option, monkeypatch=monkeypatch)
    assert f'{option[0]} is not for {kind}' in capsys.readouterr().err and not out.exists()
