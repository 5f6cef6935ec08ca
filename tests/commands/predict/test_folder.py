"""Predictions in a folder: what is written, taken up again, and kept; objects, gallery."""

import csv
import errno
import json
import math
import os
from html import escape
from pathlib import Path
from urllib.parse import quote

import cv2
import numpy as np
import pytest
import torch
from file_models import (
    described,
    write_photos,
    write_record_of,
    write_validation,
)
from forked import call_forked
from sklearn.isotonic import isotonic_regression

import mmcalib
from mmcalib.commands.predict import folder as prediction_folder
from mmcalib.commands.predict.command import predict_to_folder
from mmcalib.commands.predict.words import gallery_of, report_in_words
from mmcalib.errors import UserError
from mmcalib.metrics import CalibrationStatistics

SIZES = [(24, 36), (24, 36), (30, 20)]
TABLES = {'predictions.csv', 'settings.json', 'summary.json', 'gallery.html'}


def files_of(*names):
    kinds = (('arrays', 'npz'), ('pictures', 'png'), ('scores', 'json'))
    return {f'{kind}/{name}.{suffix}' for name in names for kind, suffix in kinds}


@pytest.fixture(scope='module')
def model(classifiers):
    """Config and checkpoint of a classifier."""
    return classifiers[1], classifiers[2][0]


@pytest.fixture
def photos(tmp_path):
    (tmp_path / 'photos').mkdir()
    return write_photos(tmp_path / 'photos', SIZES)


@pytest.fixture
def out(tmp_path):
    return tmp_path / 'out'


def rows_in(folder):
    return [json.loads(path.read_text()) for path in sorted((folder / 'scores').rglob('*.json'))]


def table_in(folder, name='predictions.csv'):
    with (folder / name).open(encoding='utf-8', newline='') as file:
        return list(csv.DictReader(file))


def files_in(folder):
    return {path.relative_to(folder).as_posix() for path in folder.rglob('*') if path.is_file()}


@pytest.fixture
def validation(photos, segmenting, tmp_path):
    """The work dir of a test of the same model, which counted objects."""
    found = mmcalib.predict(*segmenting, photos).images
    folder, model = tmp_path / 'val', described(*segmenting)
    write_validation(folder, model, found, unlabelled=100)
    generator = torch.Generator().manual_seed(0)
    objects = []
    for place in range(300):
        for o in found[place % len(found)].scores.objects:
            iou = float(torch.rand((), generator=generator)) * o.expected_iou
            iou = math.nan if o.object == 2 else iou
            objects.append([place, o.label, o.pixels, o.confidence, o.expected_iou, iou])
    file = folder / 'calibration_val.npz'
    statistics = CalibrationStatistics.load(file)
    statistics.objects = torch.tensor(objects, dtype=torch.float64)
    statistics.save(file)
    write_record_of(folder, model)
    return folder


def test_files_hold_what_python_returns(photos, segmenting, out):
    expected = mmcalib.predict(*segmenting, photos, threshold=0.6).images
    report = predict_to_folder(*segmenting, [photos], out, threshold=0.6)
    assert files_in(out) == {*TABLES, 'objects.csv', *files_of(*'012')}
    objects = table_in(out, 'objects.csv')
    for image, row, line in zip(expected, rows_in(out), table_in(out), strict=True):
        assert row['image'] == line['image'] == image.scores.image
        assert row['confidence'] == float(line['confidence'])
        assert row['confidence'] == pytest.approx(image.scores.confidence)
        ours = [o for o in objects if o['image'] == row['image']]
        for own, found in zip(ours, row['objects'], strict=True):
            assert int(own['object']) == found['object']
            assert float(own['expected_iou']) == found['expected_iou']
            assert [int(own[end]) for end in ('top', 'bottom', 'left', 'right')] == found['box']
            rows, columns = (image.objects == found['object']).nonzero()
            assert found['box'] == [rows.min(), rows.max(), columns.min(), columns.max()]
        with np.load(out / 'arrays' / f'{row["files"]}.npz') as arrays:
            assert arrays['predicted'].dtype == np.uint8
            assert np.array_equal(arrays['predicted'], image.predicted)
            assert np.array_equal(arrays['objects'], image.objects)
            np.testing.assert_allclose(arrays['confidence'], image.confidence, atol=1e-6)
        assert cv2.imread(str(out / 'pictures' / f'{row["files"]}.png')) is not None
    summary, said = json.loads((out / 'summary.json').read_text()), report_in_words(report)
    assert summary['kept'] == report.scores.kept and said.startswith('3 images: mean confidence ')


def test_a_validation_calibrates_objects_and_sorts_the_gallery(photos, segmenting, validation, out):
    options = dict(validation=validation, risk=0.5, probability=0.999)
    images = mmcalib.predict(*segmenting, photos, **options)
    text = report_in_words(predict_to_folder(*segmenting, photos, out, **options))
    statistics = CalibrationStatistics.load(validation / 'calibration_val.npz')
    again = predict_to_folder(*segmenting, photos, out, **options)
    assert again.before == 3 and again.scores == images.scores  # out of the files
    scores, bound = images.scores, images.scores.bound
    for part in (
        f'expected accuracy {100 * scores.expected_accuracy:.1f} %, between ',
        f'threshold {bound.threshold:.6g}: at most 50 % of what it keeps is wrong, on average',
        f'{100 * scores.validation_unlabelled:.2g} % of the validation pixels have no label: '
        'accuracies and errors refer to pixels that would get one',
    ):
        assert part in text

    image, rows = images.images[0], statistics.objects
    scores, ious = rows[~rows[:, 5].isnan()][:, 4:].numpy().T
    # A curve between the objects of the validation that are next in score: no object beyond.
    for of, key in ((ious > 0.5, 'found'), (ious, 'calibrated_iou')):
        levels, place, count = np.unique(scores, return_inverse=True, return_counts=True)
        curve = isotonic_regression(np.bincount(place, of) / count, sample_weight=count)
        expected = np.interp([o.expected_iou for o in image.scores.objects], levels, curve)
        assert [getattr(o, key) for o in image.scores.objects] == pytest.approx(expected)
    assert image.scores.objects[0].score == image.scores.objects[0].found

    page = ' '.join((out / 'gallery.html').read_text().split())
    rows = sorted(table_in(out), key=lambda row: float(row['expected_accuracy']))
    places = [page.index(f'src="pictures/{row["files"]}.png"') for row in rows]
    assert places == sorted(places) and 'http' not in page  # it needs no server
    assert f'expected accuracy {100 * float(rows[0]["expected_accuracy"]):.1f} %' in page
    worst = json.loads((out / 'scores' / f'{rows[0]["files"]}.json').read_text())
    doubtful = [o for o in worst['objects'] if o['found'] < 0.5]
    largest = max(doubtful, key=lambda o: o['pixels'])
    text = f'{len(doubtful)} of {len(worst["objects"])} objects probably have an IoU below 0.5'
    named = f'{largest["name"]} (no. {largest["object"]}, {100 * largest["found"]:.0f} %)'
    assert f'{text}, the largest: {named}' in page

    # Predictions with other evidence do not mix with these.
    call, evidence = (*segmenting, photos, out.parent / 'other'), dict(validation=validation)
    predict_to_folder(*call, **evidence)
    with pytest.raises(UserError, match=r'probability 0\.95 \(here: 0\.9\)'):
        predict_to_folder(*call, **evidence, probability=0.9)
    statistics.objects = statistics.objects[1:]
    statistics.save(validation / 'calibration_val.npz')
    with pytest.raises(UserError, match=r'has predictions with validation \w+ \(here'):
        predict_to_folder(*call, **evidence)


def test_the_tool_says_how_it_ended(photos, segmenting, tmp_path, run):
    (tmp_path / 'text.png').write_text('hello')
    call = 'predict.py', *segmenting
    said = run(*call, photos, '--out', 'out', '--threshold', 1.0)
    assert '0.0 % of the pixels above 1' in said
    said = run(*call, 'text.png', '--out', 'other', code=2)
    assert 'none of the 1 files can be predicted; ' in said
    said = run(*call, photos, '--out', 'text.png', code=2)
    assert 'text.png/settings.json cannot be written' in said


def test_a_mean_has_its_disagreement_in_the_files(photos, classifiers, out, run):
    _, config, checkpoints = classifiers
    run('predict.py', config, *checkpoints, photos, '--out', out, '--disagreement')
    for row in table_in(out):
        with np.load(out / f'arrays/{row["files"]}.npz') as arrays:
            information = float(row['mutual_information'])
            assert arrays['mutual_information'] == pytest.approx(information) != 0
            assert arrays['probabilities'].max() == pytest.approx(float(row['confidence']))


def test_what_a_full_disk_leaves_is_taken_up_again(photos, model, out, tmp_path, monkeypatch, run):
    whole = tmp_path / 'whole'
    predict_to_folder(*model, [photos], whole)
    save, count = np.savez_compressed, [0]

    def full(path, **arrays):
        count[0] += 1
        if count[0] > 2:
            path.write_bytes(b'PK')
            raise OSError(errno.ENOSPC, 'No space left on device')
        save(path, **arrays)

    with monkeypatch.context() as patch:
        patch.setattr(prediction_folder.np, 'savez_compressed', full)
        said = run('predict.py', *model, photos, '--out', out, code=2)
    assert f'{out}/arrays/2.npz' in said and 'No space left' in said
    assert sorted(p.name for p in (out / 'arrays').iterdir()) == ['0.npz', '1.npz']
    (out / 'scores/.2.1234.json').write_text('{"image": "cut o')  # as a killed process leaves it
    report = predict_to_folder(*model, [photos], out)
    assert (report.before, report.scores.num_images) == (2, 3)
    for name in ('scores/0.json', 'scores/2.json', 'summary.json', 'predictions.csv'):
        assert (out / name).read_text() == (whole / name).read_text()
    (out / 'scores/0.json').write_text('{')
    with pytest.raises(ValueError, match=r'scores/0.json cannot be read .* remove it, and run'):
        predict_to_folder(*model, [photos], out)


def test_predictions_of_other_settings_do_not_mix(photos, classifiers, out):
    _, config, checkpoints = classifiers
    options = dict(config=config, images=[photos], out=out, pictures=False)
    two = dict(checkpoint=checkpoints[:2], tta=True)
    predict_to_folder(**options, **two)
    # Members have no order.
    assert predict_to_folder(**options, checkpoint=checkpoints[1::-1], tta=True).before == 3
    for other, text in (
        (two | dict(threshold=0.5), r'threshold 0\.9 \(here: 0\.5\): name'),
        (dict(checkpoint=checkpoints[:2]), 'views'),
        (dict(checkpoint=checkpoints, tta=True), 'members'),
        (two | dict(disagreement=True), 'disagreement False'),
        (two | dict(cfg_options={'model.head.topk': (1,)}), 'network'),
        (two | dict(cfg_options={'data_preprocessor.std': [1.0] * 3}), r'std\.0 60 \(here: 1\)'),
    ):
        with pytest.raises(ValueError, match=rf'has predictions with [\w.]*{text}'):
            predict_to_folder(**options, **other)
    report = predict_to_folder(**options, **two, threshold=0.5, overwrite=True)
    assert (report.before, report.scores.num_images) == (0, 3)


def test_the_same_name_elsewhere_is_another_image(model, out, tmp_path, monkeypatch):
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


def test_an_image_that_was_replaced_is_predicted_anew(model, photos, out):
    predict_to_folder(*model, [photos], out)
    before = rows_in(out)
    (photos / '0.png').write_bytes((photos / '1.png').read_bytes())
    os.utime(photos / '0.png', ns=(0, 0))
    (photos / '2.png').write_text('hello')
    (photos.parent / 'text.png').write_text('hello')  # so that the names begin further up
    report = predict_to_folder(*model, [photos, photos.parent / 'text.png'], out)
    assert (report.before, len(report.unreadable)) == (1, 2)
    (ours, other) = rows_in(out)
    assert (ours['files'], other['files']) == ('0', '1')
    assert ours['confidence'] == pytest.approx(before[1]['confidence'], abs=1e-6)
    assert ours['confidence'] != before[0]['confidence']
    os.utime(photos / '1.png', ns=(0, 0))
    assert predict_to_folder(*model, [photos], out).before == 1


@pytest.mark.parametrize('kind', ['arrays', 'pictures'])
def test_a_file_that_is_wanted_later_comes(model, photos, out, kind):
    for wanted, before in ((False, 0), (False, 3), (True, 0), (False, 3)):
        assert predict_to_folder(*model, [photos], out, **{kind: wanted}).before == before
        assert (out / kind).exists() == (wanted or (before == 3 and (out / kind).exists()))
    assert len(list((out / kind).iterdir())) == len(rows_in(out)) == 3


def test_overwriting_leaves_nothing_of_before_and_all_that_is_not_ours(
    model, photos, out, tmp_path
):
    predict_to_folder(*model, [photos], out)
    mine = {'notes.txt', 'arrays/mine.npz', 'masks.csv.npz'}
    for name in mine:
        (out / name).write_text('x')
    (tmp_path / 'text.png').write_text('hello')
    with pytest.raises(ValueError, match='none of the 1 files can be predicted'):
        predict_to_folder(*model, [tmp_path / 'text.png'], out, threshold=0.5, overwrite=True)
    assert files_in(out) == {'settings.json', *mine}
    # Scores of something else are left alone.
    (tmp_path / 'scores').mkdir()
    (tmp_path / 'scores/0.json').write_text('mine')
    for overwrite in (False, True):
        with pytest.raises(UserError, match='scores is not from this tool'):
            predict_to_folder(*model, [photos], tmp_path, overwrite=overwrite)
    assert (tmp_path / 'scores/0.json').read_text() == 'mine'


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
def test_no_name_of_a_file_ends_it(model, photos, out, name, shown, monkeypatch):
    captions, draw = [], prediction_folder.draw_classification

    def drawn(*arrays, **texts):
        captions.extend(texts['captions'])
        return draw(*arrays, **texts)

    monkeypatch.setattr(prediction_folder, 'draw_classification', drawn)
    odd = photos / os.fsdecode(name)
    (photos / '0.png').rename(odd)
    (photos / 'wrong').mkdir()
    (photos / 'wrong' / odd.name).write_text('hello')
    report = predict_to_folder(*model, [photos], out)
    assert report.scores.num_images == 3
    assert report_in_words(report).encode().count(b'it is not an image') == 1
    (row,) = (row for row in rows_in(out) if row['image'] == str(odd))
    assert files_in(out) >= files_of(row['files'])
    score = f'{row["name"]}, {100 * row["confidence"]:.1f} %, {"not " * (not row["kept"])}above 0.9'
    assert sum(line.endswith(f': {score}') for line in captions) == 1
    assert not any('\n' in line for line in captions)
    link = quote(f'{row["files"]}.png', errors='surrogateescape')
    page = (out / 'gallery.html').read_text(encoding='utf-8')
    assert f'<img alt="{escape(shown)}" loading="lazy" src="pictures/{link}">' in page
    assert (f'{row["name"]}, not above the threshold' in page) == (row['kept'] == 0)
    assert {Path(line['image']).name for line in table_in(out)} == {shown, '1.png', '2.png'}
    assert predict_to_folder(*model, [photos], out).before == 3


def test_predict_names_of_classes_with_a_new_line_are_escaped(
    photos, model, segmenting, tmp_path, run
):
    classes = ['two\nlines', '_background_', '$5 or $6', 'tab\t\x1b[31m', 'no text \udce9']
    for number, (config, checkpoint) in enumerate((model, segmenting)):
        content = torch.load(checkpoint, weights_only=False)
        content['meta']['dataset_meta'] = {'classes': classes[: 5 - number]}
        torch.save(content, tmp_path / f'{number}.pth')
        command = 'predict.py', config, tmp_path / f'{number}.pth', photos
        said = run(*command, '--out', f'out{number}')
        assert '3 images: mean confidence' in said and '\nlines' not in said
        assert len(list((tmp_path / f'out{number}/pictures').iterdir())) == 3
        names = {row['name'] for row in rows_in(tmp_path / f'out{number}')} - {None, ''}
        assert names <= {*classes}  # files keep them as they are
        said = run(*command, '--out', f'out{number}')
        assert '3 images (3 of them before)' in said


@pytest.mark.parametrize('found', [None, 0.25])
@pytest.mark.parametrize(
    ('ious', 'text'),
    [
        ([0.25], '1 of 1 object {} an {}IoU below 0.5: sky'),
        ([0.25, 0.75], '1 of 2 objects {} an {}IoU below 0.5: sky'),
        ([0.25, 0.25], '2 of 2 objects {} an {}IoU below 0.5, the largest: sky'),
    ],
)
def test_gallery_one_object_has_its_verb(ious, text, found):
    objects = [
        dict(name='sky', object=n, pixels=9, expected_iou=iou, found=iou if found else None)
        for n, iou in enumerate(ious, 1)
    ]
    row = dict(files='0', path='/0.png', objects=objects, label=None)
    page = gallery_of([row | dict(expected_accuracy=None, confidence=0.5)])
    verb = 'has' if text[0] == '1' else 'have'
    expected = text.format(f'probably {verb}' if found else verb, '' if found else 'expected ')
    assert expected in ' '.join(page.split()) and '1 image,' in page
    # The whole picture is on the page, and a click shows it at its size.
    assert '<a class="fitted" href="pictures/0.png"><img' in page


def test_two_processes_equal_one(photos, segmenting, tmp_path, free_port, run):
    """With 3 at the end, since two files are left out."""
    whole = (photos / '0.png').read_bytes()
    for name, content in (('cut.png', whole[:200]), ('text.png', b'hello')):
        (tmp_path / name).write_bytes(content)
    files = [photos / '0.png', tmp_path / 'cut.png', tmp_path / 'text.png', photos]
    run('predict.py', *segmenting, *files, '--out', 'one', code=3)
    arguments = [*segmenting, *files, '--out', tmp_path / 'two']
    with pytest.raises(AssertionError) as ended:
        call_forked('predict.py', *arguments, cwd=tmp_path, ranks=2, port=free_port)
    assert str(ended.value).count('2 files without a prediction:') == 1
    folders = [tmp_path / name for name in ('one', 'two')]
    assert files_in(folders[0]) == files_in(folders[1])
    for ours, theirs in zip(*map(table_in, folders), strict=True):
        assert ours['image'] == theirs['image']
        assert float(ours['confidence']) == pytest.approx(float(theirs['confidence']), abs=1e-6)
    summaries = [json.loads((folder / 'summary.json').read_text()) for folder in folders]
    for summary in summaries:
        names = [Path(item['image']).name for item in summary['unreadable']]
        assert names == ['cut.png', 'text.png']
    both = (summary['confidence'] for summary in summaries)
    assert next(both) == pytest.approx(next(both), abs=1e-6)
