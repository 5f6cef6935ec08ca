"""What tools/report.py and tools/visualize.py do with the folders of users."""

import csv
import io
import json
import re

import numpy as np
import pytest
from commands import call_here
from markdown_it import MarkdownIt
from matplotlib.figure import Figure
from matplotlib.text import Text
from records import CE, CIFAR10, MBLS, VOC, member, model, trained, write

from mmcalib.visualization import ConfidenceMaps, ConfidenceView
from mmcalib.visualization.style import looks_of


@pytest.fixture
def report(monkeypatch, capsys):
    """Run tools/report.py and return what it prints."""

    def run(*arguments):
        call_here('report.py', *arguments, monkeypatch=monkeypatch)
        return capsys.readouterr().out

    return run


@pytest.fixture
def drawn_texts(monkeypatch, tmp_path):
    """Run tools/visualize.py and return the texts in its figure."""

    def run(*arguments):
        figures = []

        def keep(figure, path, **_):
            figures.append(figure)
            path.touch()

        monkeypatch.setattr(Figure, 'savefig', keep)
        out = ['--out', tmp_path / 'figure.png']
        call_here('visualize.py', *arguments, *out, monkeypatch=monkeypatch)
        return '\n'.join(text.get_text() for text in figures[0].findobj(Text))

    return run


def test_html_and_out_are_both_written(report, tmp_path):
    write(tmp_path / 'a', 'mbls/digits')
    for name, start in (('t.md', '### digits'), ('t.csv', 'table,loss'), ('t.json', '[')):
        page = tmp_path / f'{name}.html'
        report(tmp_path / 'a', '--html', page, '--out', tmp_path / name)
        assert (tmp_path / name).read_text().startswith(start)
        assert '<h2>digits</h2>' in page.read_text()
    printed = report(tmp_path / 'a', '--html', tmp_path / 'p.html', '--format', 'csv')
    assert printed.startswith('table,loss') and (tmp_path / 'p.html').exists()


def test_names_are_no_markup_in_markdown(report, tmp_path):
    names = ['<img src=x onerror=alert(1)>', '[here](http://example.org)', '**bold** `code` _it_']
    for number, name in enumerate(names):
        loss = dict(type=name, option='a|b', avg_factor=1)
        folder = tmp_path / name.replace('/', '')
        write(folder, f'x/{number}{name.replace("/", "")}', loss=loss)
        write(folder / 'u', f'x/{number}{name.replace("/", "")}', finished=False)
    text = report(tmp_path, '--format', 'markdown')
    html = MarkdownIt('commonmark', {'html': True}).enable('table').render(text)
    assert not re.findall('<(img|a|em|strong|code)', html)
    shown = MarkdownIt('commonmark').enable('table').parse(text)
    cells = [token.children for token in shown if token.type == 'inline']
    texts = [''.join(child.content for child in children) for children in cells]
    for name in names:
        assert f'{name} avg_factor=1 option=a|b' in texts


def test_a_table_is_as_wide_as_it_needs_and_cuts_no_label(report, tmp_path):
    metrics = {
        f'calibration/{name}': 1.0 for name in ('ECE', 'AECE', *(f'm{n}' for n in range(30)))
    }
    loss = MBLS | {f'a_long_option_{n}': 'a long value' for n in range(9)}
    write(tmp_path / 'a', 'mbls/digits', metrics=metrics, loss=loss)
    text = report(tmp_path)
    assert '…' not in text
    label = ' '.join(line[:60].strip() for line in text.splitlines())
    assert all(f'a_long_option_{n}=a long value' in label for n in range(9))
    (tmp_path / 'b').mkdir()
    write(tmp_path / 'b/c', 'mbls/digits')
    table = report(tmp_path / 'b').splitlines()[1:4]
    assert max(map(len, table)) < 60


def test_a_protocol_of_segmentation_keeps_classifiers(report, tmp_path):
    write(tmp_path / 'digits', 'mbls/digits', ece=1.25)
    for protocol, ece in (('pooled', 2.25), ('paper', 3.25)):
        options = dict(dataset=VOC, protocol=protocol)
        write(tmp_path / protocol, 'mbls/voc', quality='mIoU', ece=ece, evaluation=options)
    text = report(tmp_path, '--protocol', 'paper')
    assert '1.25' in text and '3.25' in text and '2.25' not in text
    assert 'No run is left' not in text


def view(name, index=0):
    pixels = np.zeros((4, 6), np.int16)
    conf, valid = np.ones((4, 6), np.float16), np.ones((4, 6), bool)
    table = np.stack([np.full(5, 24), np.full(5, 12), np.full(5, 20)])
    image = np.zeros((4, 6, 3), np.uint8)
    return ConfidenceView(index, name, image, pixels, pixels, conf, valid, table)


def test_images_are_those_of_the_name(drawn_texts, tmp_path):
    for folder in ('a', 'b'):
        (tmp_path / folder).mkdir()
        views = [view(name, index) for index, name in enumerate(['11.png', '1.png', '21.png'])]
        ConfidenceMaps(views, views, ['sky']).save(tmp_path / folder / 'confidence_maps.npz')
    for kind in ('maps', 'worst'):
        for runs in ([tmp_path / 'a'], [tmp_path / 'a', tmp_path / 'b']):
            texts = drawn_texts(kind, *runs, '--images', '1.png')
            assert '1.png' in texts and '11.png' not in texts and '21.png' not in texts


def test_images_of_other_data_are_not_drawn_as_the_same(tmp_path, monkeypatch, capsys):
    for name, image in (('confidence_maps.npz', 'a.png'), ('confidence_maps_val.npz', 'b.png')):
        ConfidenceMaps([view(image)], [], ['sky']).save(tmp_path / name)
    out = tmp_path / 'x.png'
    files = [tmp_path / 'confidence_maps.npz', tmp_path / 'confidence_maps_val.npz']
    with pytest.raises(SystemExit):
        call_here('visualize.py', 'maps', *files, '--out', out, monkeypatch=monkeypatch)
    assert 'no image in common' in capsys.readouterr().err


def test_two_seeds_of_a_loss_keep_its_name_and_its_colour(drawn_texts, tmp_path):
    runs = []
    for name, content in {
        'ce0': dict(loss=CE, seed=0),
        'ce1': dict(loss=CE, seed=1),
        'mbls': dict(),
        'x': dict(loss=dict(type='LabelSmoothingLoss', alpha=0.05)),
        'y': dict(loss=dict(type='LabelSmoothingLoss', alpha=0.05)),
    }.items():
        folder = tmp_path / name
        write(folder, 'any/digit_scenes', **content)
        ConfidenceMaps([view('1.png')], [], ['sky']).save(folder / 'confidence_maps.npz')
        runs.append(folder)
    texts = drawn_texts('maps', *runs).splitlines()
    names = ['CE, seed 0', 'CE, seed 1', 'MbLS m=6 α=0.1', f'LS α=0.05, {runs[3]}']
    for name in names:
        assert any(f'{name}, 1.png' in text for text in texts) or len(name) > 30
    first, _, mbls, ls = looks_of(names)
    for look, loss in (first, 'CE'), (ls, 'LS'), (mbls, 'MbLS'):
        assert look['color'] == looks_of([loss])[0]['color']


def test_a_long_path_is_no_name_of_a_figure(report, tmp_path):
    folder = tmp_path.joinpath(*['a_folder_of_forty_letters_' * 2] * 8, 'sweep')
    folder.mkdir(parents=True)
    rows = [
        dict(value=v, val=[{'mIoU': 50.0, 'calibration/ECE': v}], test=[], chosen=v == 1.0)
        for v in (1.0, 2.0)
    ]
    sweep = dict(experiment='ls/demo', loss='LS', parameter='alpha', rows=rows)
    (folder / 'sweep.json').write_text(json.dumps(sweep))
    write(tmp_path / 'run', 'mbls/digits')
    figures = tmp_path / 'figures'
    report(tmp_path, '--html', tmp_path / 'p.html', '--figures', figures, '--figure-format', 'svg')
    assert len(list(figures.iterdir())) == 1


def test_the_values_of_a_sweep_are_in_a_table(report, tmp_path):
    sweep, val = tmp_path / 'sweep', dict(dataset=CIFAR10 | dict(split='val'))
    for margin in (2.0, 6.0):
        loss = MBLS | dict(margin=margin)
        folder = sweep / f'margin={margin:g}'
        name = 'results_val.json'
        write(folder, 'mbls/digits', loss=loss, ece=margin, name=name, split='val', evaluation=val)
    write(sweep / 'margin=2', 'mbls/digits', loss=MBLS | dict(margin=2.0), ece=7.0)
    (sweep / 'sweep.json').write_text('{}')
    text = report(tmp_path)
    assert 'In no table' not in text
    tables = [
        [line.split()[:5] for line in part.splitlines() if line.startswith('MbLS')]
        for part in text.split('\n\n')
    ]
    tested, validated = sorted(filter(None, tables), key=len)
    assert [(row[1], row[4]) for row in validated] == [('m=2', '90.00'), ('m=6', '90.00')]
    assert len(tested) == 1 and '7.00' in text
    # A run that was only validated, and is of no sweep, is not the result of a test.
    write(tmp_path / 'other', 'mbls/digits', name='results_val.json', split='val')
    assert f'not tested, only validated: {tmp_path / "other"}' in report(tmp_path)


def test_ensembles_with_a_calibrated_member_are_another_row(report, tmp_path):
    calibration = dict(methods=['temperature'], options={}, split='val', forced=[])
    plain, calibrated = member('b.pth'), member('b.pth', calibration=calibration)
    for name, second, ece in (('x', plain, 5.0), ('y', calibrated, 1.0)):
        mean = model(member('a.pth'), second)
        write(tmp_path / name, 'ce/digits', loss=CE, seed=None, model=mean, ece=ece)
    rows = list(csv.reader(io.StringIO(report(tmp_path, '--format', 'csv'))))[1:]
    assert {row[1] for row in rows} == {'CE × 2', 'CE × 2 (1 of them + temperature)'}


def test_other_trainings_are_still_averaged(report, tmp_path):
    for seed in range(2):
        write(tmp_path / f'{seed}', 'ce/digits', loss=CE, seed=seed, training=trained())
    assert re.search(r'CE +2 +90\.00 ± 0\.00', report(tmp_path))


def test_a_test_without_calibration_does_not_displace_those_that_measured_it(report, tmp_path):
    for name in 'ab':
        write(tmp_path / name, 'mbls/digits', metrics={'accuracy/top1': 90.0}, seed=ord(name))
        (tmp_path / name / 'results.json').write_text(
            (tmp_path / name / 'results.json').read_text().replace('"num_bins": 15, ', '')
        )
    write(tmp_path / 'a' / 'epoch_3', 'mbls/digits', ece=7.25, seed=ord('a'))
    text = report(tmp_path)
    assert '7.25' in text
    assert 'calibration not measured' in text and 'evaluated otherwise' not in text
