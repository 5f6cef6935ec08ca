"""The page of a report: what it draws, and that it goes on without broken files."""

import re

from matplotlib.figure import Figure
from records import CE
from run_folders import write_segmentor_test, write_sweep
from shifted_records import write_shifted_tests

from mmcalib.metrics import CalibrationStatistics
from mmcalib.reports import page as report_page
from mmcalib.reports.figures.from_files import draw_figure
from mmcalib.visualization import ConfidenceMaps

LS = dict(type='LabelSmoothingLoss')
ECES = {'CE, seed=0': 3.0, 'LS': 4.0}
MAPS = {'CE, seed=0': [1, 2], 'LS': [0, 1]}
SHIFTED = {'CE': [6.0, 7.0], 'LS α=0.1': [8.0]}
# A caption, and the kind, values and options of its figure.
FIGURES = {
    'Reliability, CE, seed=0 (1 of 2 runs)': ('reliability', {'CE, seed=0': 3.0}),
    'Reliability, LS': ('reliability', {'LS': 4.0}),
    'The same in one panel': ('reliability', ECES, True),
    'ECE by distance from the nearest boundary': ('boundary', ECES),
    'Confidence maps, one run of each loss': ('maps', MAPS),
    'Worst-calibrated test images, CE, seed=0 (1 of 2 runs)': ('worst', {'CE, seed=0': [1, 2]}),
    'Worst-calibrated test images, LS': ('worst', {'LS': [0, 1]}),
    'Corruptions by severity': ('robustness', SHIFTED, 'boxes'),
    'Mean over corruptions by severity': ('robustness', SHIFTED, 'lines'),
    'Sweep, s0': ('sweep', {'LS': 5.0}),
    'Sweep, s1': ('sweep', {'LS': 6.0}),
}
# The runs behind each caption: the folder of one, the titles of several.
BOTH = ': CE, seed=0 (1 of 2 runs); LS'
SHOWN = [': ce', ': ls', BOTH, BOTH, BOTH, ': ce', ': ls', '', '', '', '']


def identifying_values(content):
    """Return what differs between runs: an ECE, image indices, a value, or ECEs of tests."""
    if isinstance(content, CalibrationStatistics):
        return content.metrics['ECE']
    if isinstance(content, ConfidenceMaps):
        return [view.index for view in content.views]
    if isinstance(content, dict):
        return content['rows'][-1]['value']
    return [run.tests[0]['metrics']['calibration/ECE'] for run in content]


def test_report_page_has_each_run_and_no_links(runs, tmp_path, monkeypatch, run):
    # Nothing is drawn of this second seed.
    write_segmentor_test(tmp_path / 'second', 5, 6, ece=9.0, loss=CE, seed=1)
    long_name = 'a_folder_of_forty_letters_' * 2
    for number in range(2):
        write_sweep(tmp_path.joinpath(*[long_name] * 8, f's{number}'), 5.0 + number)
    for label, seed, ece in (('CE', 0, 6.0), ('CE', 1, 7.0), ('LS α=0.1', 0, 8.0)):
        write_shifted_tests(tmp_path / 'shift', label, seed=seed, ece=ece, corruptions=['fog'])
    drawn = []

    def draw(kind, runs, **options):
        values = {name: identifying_values(content) for name, content in runs.items()}
        drawn.append((kind, values, *options.values()))
        return Figure(figsize=(len(drawn), 1))

    monkeypatch.setattr(report_page, 'draw_figure', draw)
    out = tmp_path / 'page.html'
    run('report.py', tmp_path, '--html', out, '--figures', 'pictures', '--figure-format', 'svg')
    assert drawn == [*FIGURES.values()]
    assert 'forty_<wbr>letters_<wbr>' in out.read_text()
    html = out.read_text().replace('<wbr>', '')
    captions = re.findall('<figcaption>(.*?)<.*?width="(.*?)"', html, re.DOTALL)
    captions = [
        (re.sub(r'([:,]) /.*/', r'\1 ', caption), int(width)) for caption, width in captions
    ]
    shown = [f'{name}{runs}' for name, runs in zip(FIGURES, SHOWN, strict=True)]
    # Each drawn figure has a width of its own, in inches of 96 pixels.
    assert captions == [(name, 96 * width) for width, name in enumerate(shown, 1)]
    assert html.count('<img') == html.count('src="data:image/png;base64,') == len(FIGURES)
    assert 'http' not in html and '<h2>demo</h2>' in html
    pictures = sorted(path.name for path in (tmp_path / 'pictures').iterdir())
    assert len(pictures) == len(FIGURES)
    assert pictures[0] == '01_reliability_ce_seed_0_1_of_2_runs.svg'


def test_report_page_has_classes_of_first_run_of_each_row(runs, tmp_path, monkeypatch, run):
    monkeypatch.setattr(report_page, 'draw_figure', lambda *_, **__: Figure())
    write_segmentor_test(tmp_path / 'second', 5, 6, ece=9.0, loss=CE, seed=1)
    run('report.py', tmp_path, '--html', 'page.html')
    html = (tmp_path / 'page.html').read_text().replace('<wbr>', '')
    titles = re.findall(r'Each predicted class, (.*?)</summary>.*?</details>', html, re.DOTALL)
    assert titles == ['CE, seed=0 (1 of 2 runs)', 'LS']
    cells = [cell.strip() for cell in re.findall('<td.*?>(.*?)</td>', html)]
    assert [cell for cell in cells if cell in ('43.00', '44.00')] == ['43.00', '44.00']
    assert cells[cells.index('&lt;road&gt;') + 1] == 'nan' and '1,234' in cells


def test_report_page_broken_files_named_others_drawn(runs, tmp_path, monkeypatch, run):
    for number, name in enumerate(('cut', 'other', 'bare')):
        write_segmentor_test(tmp_path / name, 1, loss=dict(LS, alpha=number / 10))
        for file in (tmp_path / name).glob('*.npz'):
            if name == 'bare':
                file.unlink()
            else:
                file.write_bytes(file.read_bytes()[:300] if name == 'cut' else b'hello')
    # The second seed of this loss is drawn, since the file of the first is cut off.
    write_segmentor_test(tmp_path / 'second', 1, ece=9.0, loss=dict(LS, alpha=0.0), seed=1)
    write_sweep(tmp_path / 'empty', rows=[])
    write_sweep(tmp_path / 'torn')
    (tmp_path / 'torn/sweep.json').write_text('{"rows": [')
    drawn = []

    def draw(kind, runs, **options):
        drawn.append((kind, [*runs]))
        return draw_figure(kind, runs, **options) if kind == 'sweep' else Figure()

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
