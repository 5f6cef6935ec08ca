"""Figures of tested runs: what tools/visualize.py draws of their files, and a report's page."""

import json
import re

import pytest
import torch
from drawings import draw_runs, statistics, sweep, table, view, words
from matplotlib.figure import Figure
from records import CE, CIFAR10, write
from test_shifts import leave as leave_shifted

from mmcalib.metrics import CalibrationStatistics
from mmcalib.reports import figures
from mmcalib.reports import page as report_page
from mmcalib.visualization import ConfidenceMaps, to_rgb

LS = dict(type='LabelSmoothingLoss')


def leave(folder, *images, name='confidence_maps.npz', ece=3.0, **content):
    """Leave all that a test of a segmentor leaves, with maps of some images by their indices."""
    metrics = {'mIoU': 50.0, 'calibration/ECE': ece}
    columns = dict(classes=['sky', '<road>'], ECE=[ece + 40, None])
    columns |= dict(accuracy=[80.0, None], confidence=[90.0, None], count=[1234, 0])
    strata = dict(per_class=dict(calibration=columns))
    write(folder, 'x/demo', metrics=metrics, strata=strata, **content)
    distances = torch.stack([table(5) * (n != 5) for n in range(8)], dim=1)
    found = statistics(table(5), num_bins=5, ECE=ece, AECE=2.0, distance_bins=distances)
    found.save(folder / 'calibration.npz')
    views = [view(index, size=(4, 6), num_classes=2) for index in images]
    ConfidenceMaps(views, views[:1], ['sky', 'road']).save(folder / name)
    return folder


def leave_sweep(folder, ece=3.0, **changes):
    val = dict(evaluation=dict(dataset=dict(CIFAR10, split='val')), split='val', ece=ece)
    write(folder / 'a=1', 'x/swept', name='results_val.json', **val)
    (folder / 'sweep.json').write_text(json.dumps(sweep((1.0, ece), tested=(), **changes)))


@pytest.fixture
def runs(tmp_path):
    return [leave(tmp_path / 'ce', 1, 2, loss=CE), leave(tmp_path / 'ls', 0, 1, ece=4.0, loss=LS)]


def test_visualize_writes_each_format(runs, tmp_path, run):
    options = ['--overlay', '--zoom', '80', '100', '--num-bins', '25', '--names', 'one', 'two']
    for out, *arguments in (
        ('a/b.pdf', 'reliability', *runs, *options),
        ('c.svg', 'reliability', runs[0], '--equal-mass', '--scale', 'logit'),
        ('i.png', 'maps', *runs, '--images', 'image 1'),
    ):
        run('visualize.py', *arguments, '--out', out)
        assert (tmp_path / out).stat().st_size > 1000


@pytest.mark.parametrize(
    ('arguments', 'message'),
    [
        (['reliability', 'none'], 'there is no none/calibration.npz: tools/test.py writes it'),
        (['maps', 'none'], 'there is no none/confidence_maps.npz: .*ConfidenceMapHook'),
        (['robustness', 'no'], 'there is no no: name the work dir of tools/test_robustness.py'),
        (['robustness', 'none'], 'there is no test below none: name the work dir'),
        (['reliability', 'ce', '--names', 'a', 'b'], '1 runs require as many names'),
        (['maps', 'ce', '--images', 'image 9'], "no image 'image 9' .*there are image 1, image 2"),
        (['risk', 'ce', '--zoom', '8', '9'], r'risk \[-h\].* --zoom 8 9, of the kind reliability'),
        (['robustness', 'no', '--image', 'x'], '--image x, of the kind maps or worst'),
    ],
    ids=lambda value: ' '.join(value) if isinstance(value, list) else '',
)
def test_visualize_missing_or_wrong_input_refused(arguments, message, runs, tmp_path, run):
    (tmp_path / 'none').mkdir()
    said = run('visualize.py', *arguments, '--out', 'x.png', code=2)
    assert re.search(message, ' '.join(said.split()))
    assert not (tmp_path / 'x.png').exists()


def test_visualize_maps_shared_images_and_worst_of_each(runs):
    for kind, expected in (('maps', {'CE': 1, 'LS': 1}), ('worst', {'CE': 1, 'LS': 0})):
        drawn = [axes.get_xlabel() for axes in draw_runs(kind, runs).axes]
        captions = [text.split(':')[0] for text in drawn if ': ECE' in text]
        assert captions == [f'{name}, image {n}' for name, n in expected.items()]
    leave(runs[0], 3, name='confidence_maps_val.npz')
    with pytest.raises(ValueError, match='no image in common'):
        draw_runs('maps', [runs[1], runs[0] / 'confidence_maps_val.npz'])


def test_run_names_are_losses_seeds_or_paths(runs, tmp_path):
    assert figures.run_names([runs[0] / 'calibration.npz', runs[1]]) == ['CE', 'LS']
    more = [*runs, leave(tmp_path / 'ce1', loss=CE, seed=1), leave(tmp_path / 'ls0', loss=LS)]
    names = figures.run_names(more)
    assert names == ['CE, seed=0', 'LS, path=ls', 'CE, seed=1', 'LS, path=ls0']
    assert figures.run_names(more[:2], ['a', 'b']) == ['a', 'b']
    (tested,) = leave_shifted(tmp_path / 'shift', 'LS α=0.1', corruptions=['fog']).glob('*/fog_1')
    assert figures.run_names([tested]) == ['LS α=0.1']
    assert 'CE, seed=1' in words(draw_runs('reliability', more))


def test_run_names_long_paths_shortened(tmp_path):
    def named(*paths):
        return figures.run_names([tmp_path.joinpath(path) for path in paths])

    folders = [f'{"experiments/of_a_year/" * 3}{name}/a_network/seed0' for name in 'abcdef']
    assert named(*folders) == [*'abcdef']
    assert named(f'{folders[0]}/calibration.npz') == [f'{tmp_path}/{folders[0]}/calibration.npz']
    assert named('a', 'a/temperature', 'b/a') == ['a', 'a/temperature', 'b/a']
    assert named('a/a', 'a') == ['a/a', 'a'] and named('a/b/a', 'a/a') == ['b/a', 'a']
    for folder in folders:
        statistics(ECE=3.0, AECE=2.0).save(tmp_path / folder / 'calibration.npz')
    figure = draw_runs('reliability', [tmp_path / each for each in folders], overlay=True)
    to_rgb(figure)
    assert figure.legends[0].get_window_extent().height < figure.axes[0].bbox.height


def content_of(found):
    """What tells the runs of a figure apart: errors, images, severities or values of a sweep."""
    if isinstance(found, CalibrationStatistics):
        return found.metrics['ECE']
    if isinstance(found, ConfidenceMaps):
        return [view.index for view in found.views]
    if isinstance(found, dict):
        return found['rows'][-1]['value']
    return [run.tests[0]['metrics']['calibration/ECE'] for run in found]


def test_report_page_has_each_run_and_no_links(runs, tmp_path, monkeypatch, run):
    leave(tmp_path / 'second', 5, 6, ece=9.0, loss=CE, seed=1)  # of which nothing is drawn
    for number, long in enumerate(['a_folder_of_forty_letters_' * 2] * 2):
        leave_sweep(tmp_path.joinpath(*[long] * 8, f's{number}'), 5.0 + number)
    for label, seed, ece in (('CE', 0, 6.0), ('CE', 1, 7.0), ('LS α=0.1', 0, 8.0)):
        leave_shifted(tmp_path / 'shift', label, seed=seed, ece=ece, corruptions=['fog'])
    drawn = []

    def draw(kind, runs, **options):
        told = {str(name).split('/')[-1]: content_of(found) for name, found in runs.items()}
        drawn.append((kind, told, *options.values()))
        return Figure(figsize=(len(drawn), 1))

    monkeypatch.setattr(report_page, 'draw_figure', draw)
    out = tmp_path / 'page.html'
    run('report.py', tmp_path, '--html', out, '--figures', 'pictures', '--figure-format', 'svg')
    # Of a row of several runs, the figure says which one it is of.
    both, maps = {'CE, seed=0': 3.0, 'LS': 4.0}, {'CE, seed=0': [1, 2], 'LS': [0, 1]}
    shifted = {'CE': [6.0, 7.0], 'LS α=0.1': [8.0]}
    expected = {
        'Reliability, CE, seed=0 (1 of 2 runs)': ('reliability', {'CE, seed=0': 3.0}),
        'Reliability, LS': ('reliability', {'LS': 4.0}),
        'The same in one panel': ('reliability', both, True),
        'ECE by distance from the nearest boundary': ('boundary', both),
        'Confidence maps, one run of each loss': ('maps', maps),
        'Worst-calibrated test images, CE, seed=0 (1 of 2 runs)': (
            'worst',
            {'CE, seed=0': maps['CE, seed=0']},
        ),
        'Worst-calibrated test images, LS': ('worst', {'LS': maps['LS']}),
        'Corruptions by severity': ('robustness', shifted, 'boxes'),
        'Mean over corruptions by severity': ('robustness', shifted, 'lines'),
        'Sweep s0': ('sweep', {'LS': 5.0}),
        'Sweep s1': ('sweep', {'LS': 6.0}),
    }
    assert drawn == [*expected.values()]
    assert 'forty_<wbr>letters_<wbr>' in out.read_text()
    html = out.read_text().replace('<wbr>', '')
    captions = re.findall('<figcaption>(.*?)<.*?width="(.*?)"', html, re.DOTALL)
    captions = [(re.sub(r', /.*/', ' ', caption), int(width)) for caption, width in captions]
    assert captions == [(name, 96 * n) for n, name in enumerate(expected, 1)]  # each its own
    assert html.count('<img') == html.count('src="data:image/png;base64,') == len(expected)
    assert 'http' not in html and '<h2>demo</h2>' in html
    details = re.findall(r'Each predicted class, (.*?)</summary>.*?</details>', html, re.DOTALL)
    cells = [cell.strip() for cell in re.findall('<td.*?>(.*?)</td>', html)]
    assert details == ['CE, seed=0 (1 of 2 runs)', 'LS']
    assert [c for c in cells if c in ('43.00', '44.00')] == ['43.00', '44.00']
    assert cells[cells.index('&lt;road&gt;') + 1] == 'nan' and '1,234' in cells
    written = sorted(path.name for path in (tmp_path / 'pictures').iterdir())
    assert (
        len(written) == len(expected) and written[0] == '01_reliability_ce_seed_0_1_of_2_runs.svg'
    )


def test_report_page_broken_files_named_others_drawn(runs, tmp_path, monkeypatch, run):
    for number, name in enumerate(('cut', 'other', 'bare')):
        leave(tmp_path / name, 1, loss=dict(LS, alpha=number / 10))
        for file in (tmp_path / name).glob('*.npz'):
            if name == 'bare':
                file.unlink()
            else:
                file.write_bytes(file.read_bytes()[:300] if name == 'cut' else b'hello')
    leave(tmp_path / 'second', 1, ece=9.0, loss=dict(LS, alpha=0.0), seed=1)  # the first is cut
    leave_sweep(tmp_path / 'empty', rows=[])
    leave_sweep(tmp_path / 'torn')
    (tmp_path / 'torn/sweep.json').write_text('{"rows": [')
    drawn, draw_really = [], figures.draw_figure

    def draw(kind, runs, **options):
        drawn.append((kind, [*runs]))
        return draw_really(kind, runs, **options) if kind == 'sweep' else Figure()

    monkeypatch.setattr(report_page, 'draw_figure', draw)
    run('report.py', tmp_path, '--html', 'page.html')
    page = (tmp_path / 'page.html').read_text().replace('<wbr>', '')
    assert ('maps', ['CE', 'LS', 'LS α=0, seed=1']) in drawn
    for part in (
        f'{tmp_path}/cut/calibration.npz cannot be read', f'{tmp_path}/other/calibration.npz',
        f'{tmp_path}/cut/confidence_maps.npz', f'{tmp_path}/other/confidence_maps.npz',
        'the file is missing: LS α=0.1, LS α=0.2',
        f'{tmp_path}/empty is not drawn', f'{tmp_path}/torn/sweep.json cannot be read',
    ):  # fmt: skip
        assert part in page, part
