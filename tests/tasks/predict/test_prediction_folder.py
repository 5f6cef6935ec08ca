"""A folder of predictions that is taken up again: whose images they are, and what goes."""

import csv
import json
import os
from html import escape
from pathlib import Path
from urllib.parse import quote

import pytest
from file_models import CLASSIFIER, write_model, write_photos
from tiny_models import classifier

from mmcalib.checks import UserError
from mmcalib.tasks.predict.predict import predict_to_folder
from mmcalib.tasks.predict.summary import report_in_words

SIZES = [(24, 36), (24, 36)]
TABLES = {'predictions.csv', 'settings.json', 'summary.json', 'gallery.html'}


@pytest.fixture
def model(tmp_path):
    return write_model(tmp_path, CLASSIFIER, classifier(CLASSIFIER['model']['head']))


@pytest.fixture
def photos(tmp_path):
    (tmp_path / 'photos').mkdir()
    return write_photos(tmp_path / 'photos', SIZES)


def rows_in(folder):
    return [json.loads(path.read_text()) for path in sorted((folder / 'scores').rglob('*.json'))]


def files_in(folder):
    return {path.relative_to(folder).as_posix() for path in folder.rglob('*') if path.is_file()}


def test_the_same_name_elsewhere_is_another_image(model, tmp_path, monkeypatch):
    out = tmp_path / 'out'
    for name, there in (('one', (0, 2)), ('other', (2, 3))):
        folder = tmp_path / name / 'photos'
        folder.mkdir(parents=True)
        write_photos(folder, SIZES[: there[1] - there[0]])
        monkeypatch.chdir(folder.parent)
        for before in there:  # and then all are
            report = predict_to_folder(*model, ['photos'], out)
            assert (report.before, report.scores.num_images) == (before, there[1])
            assert report.others == there[0]
    assert '2 of these images are of earlier calls' in report_in_words(report)
    page = (out / 'gallery.html').read_text()
    assert all(f'alt="{row["path"]}"' in page for row in rows_in(out)[:2])
    assert sorted(row['files'] for row in rows_in(out)) == ['0', '0.png', '1']
    (tmp_path / 'third').mkdir()
    write_photos(tmp_path / 'third', SIZES[:1])
    with pytest.raises(UserError, match=r'0\.png and another image would share'):
        predict_to_folder(*model, [tmp_path / 'third'], out)


def test_an_image_that_was_replaced_is_predicted_anew(model, photos, tmp_path):
    out = tmp_path / 'out'
    predict_to_folder(*model, [photos], out)
    before = rows_in(out)
    (photos / '0.png').write_bytes((photos / '1.png').read_bytes())
    os.utime(photos / '0.png', ns=(0, 0))
    assert predict_to_folder(*model, [photos], out).before == 1
    rows = {row['image']: row for row in rows_in(out)}
    assert len(rows) == 2 and files_in(out) == TABLES | {
        f'{kind}/{name}' for n in '01'
        for kind, name in (
            ('arrays', f'{n}.npz'), ('pictures', f'{n}.png'), ('scores', f'{n}.json')
        )
    }  # fmt: skip
    ours = rows[str(photos / '0.png')]
    assert ours['confidence'] == pytest.approx(before[1]['confidence'], abs=1e-6)
    assert ours['confidence'] != before[0]['confidence']


@pytest.mark.parametrize('kind', ['arrays', 'pictures'])
def test_a_file_that_is_wanted_later_comes(model, photos, tmp_path, kind):
    out = tmp_path / 'out'
    predict_to_folder(*model, [photos], out, **{kind: False})
    assert not (out / kind).exists()
    assert predict_to_folder(*model, [photos], out, **{kind: False}).before == 2
    assert predict_to_folder(*model, [photos], out).before == 0
    assert len(list((out / kind).iterdir())) == len(rows_in(out)) == 2
    assert predict_to_folder(*model, [photos], out, **{kind: False}).before == 2


def test_overwriting_leaves_nothing_of_before_and_all_that_is_not_ours(model, photos, tmp_path):
    out = tmp_path / 'out'
    predict_to_folder(*model, [photos], out)
    mine = {'notes.txt', 'arrays/mine.npz', 'masks.csv.npz'}
    for name in mine:
        (out / name).write_text('x')
    (tmp_path / 'text.png').write_text('hello')
    with pytest.raises(ValueError, match='none of the 1 files can be predicted'):
        predict_to_folder(*model, [tmp_path / 'text.png'], out, threshold=0.5, overwrite=True)
    assert files_in(out) == {'settings.json', *mine}
    report = predict_to_folder(*model, [photos], out, threshold=0.5, arrays=False)
    assert report.scores.num_images == 2
    files = {'scores/0.json', 'scores/1.json', 'pictures/0.png', 'pictures/1.png'}
    assert files_in(out) == {*TABLES, *mine, *files}


def test_scores_of_something_else_are_left_alone(model, photos, tmp_path):
    (tmp_path / 'scores').mkdir()
    (tmp_path / 'scores/0.json').write_text('mine')
    for overwrite in (False, True):
        with pytest.raises(UserError, match='scores is not from this tool'):
            predict_to_folder(*model, [photos], tmp_path, overwrite=overwrite)
    assert (tmp_path / 'scores/0.json').read_text() == 'mine'


def test_scores_that_were_cut_off_are_named(model, photos, tmp_path):
    predict_to_folder(*model, [photos], tmp_path)
    (tmp_path / 'scores/0.json').write_text('{')
    with pytest.raises(ValueError, match=r'scores/0.json cannot be read .* remove it, and run'):
        predict_to_folder(*model, [photos], tmp_path)


@pytest.mark.parametrize(
    ('name', 'shown'),
    [
        (b'caf\xe9.png', 'caf\\udce9.png'),
        (b'two\nlines.png', 'two\nlines.png'),
        ('ä\u3000\u2028ö.png'.encode(), 'ä\u3000\u2028ö.png'),
        (b'a & <b> #1.png', 'a & <b> #1.png'),
    ],
    ids=['no text', 'two lines', 'wide spaces', 'marks'],
)
def test_no_name_of_a_file_ends_it(model, photos, tmp_path, name, shown):
    out, odd = tmp_path / 'out', photos / os.fsdecode(name)
    (photos / '0.png').rename(odd)
    (photos / 'wrong').mkdir()
    (photos / 'wrong' / odd.name).write_text('hello')
    report = predict_to_folder(*model, [photos], out)
    assert report.scores.num_images == 2
    assert report_in_words(report).encode().count(b'it is not an image') == 1
    (row,) = (row for row in rows_in(out) if row['image'] == str(odd))
    assert (out / 'arrays' / f'{row["files"]}.npz').is_file()
    link = quote(f'{row["files"]}.png', errors='surrogateescape')
    page = (out / 'gallery.html').read_text(encoding='utf-8')
    assert f'<img alt="{escape(shown)}" loading="lazy" src="pictures/{link}">' in page
    assert (f'{row["name"]}, not above the threshold' in page) == (row['kept'] == 0)
    assert (out / 'pictures' / f'{row["files"]}.png').is_file()
    with (out / 'predictions.csv').open(encoding='utf-8', newline='') as file:
        assert {Path(line['image']).name for line in csv.DictReader(file)} == {shown, '1.png'}
    assert predict_to_folder(*model, [photos], out).before == 2
