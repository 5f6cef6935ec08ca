"""Predictions in a folder: what is written, taken up again, and kept; objects, gallery."""

import csv
import errno
import json
import math
import os
import re
from html import escape
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import quote

import cv2
import numpy as np
import pytest
import torch
from file_models import model_record, write_photos, write_test_record, write_validation
from forked import run_forked
from sklearn.isotonic import isotonic_regression

import mmcalib
from mmcalib.cli.predict import PredictFolderOptions
from mmcalib.commands.predict import command as predict_command, folder as prediction_folder
from mmcalib.commands.predict.command import INCOMPLETE, predict_folder
from mmcalib.commands.predict.rows import gallery_page
from mmcalib.errors import UserError
from mmcalib.members import split_members
from mmcalib.metrics import CalibrationStatistics

SIZES = [(24, 36), (24, 36), (30, 20)]
TABLES = {'predictions.csv', 'settings.json', 'summary.json', 'gallery.html'}


def image_files(*names):
    """Return the files of images in a folder of predictions."""
    suffixes = {'arrays': 'npz', 'pictures': 'png', 'scores': 'json'}
    return {f'{kind}/{name}.{suffix}' for name in names for kind, suffix in suffixes.items()}


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


@pytest.fixture
def predict_into(capsys):
    """Predict into a folder as the command does; return its text, summary and earlier images."""

    def predict_into(config, checkpoint, images, out, **options):
        checkpoints = [checkpoint] if isinstance(checkpoint, str) else checkpoint
        status = 0
        capsys.readouterr()
        try:
            predict_folder(
                PredictFolderOptions(
                    members=tuple(split_members(config, checkpoints)),
                    images=[images] if isinstance(images, (str, Path)) else images,
                    out=out,
                    **options,
                )
            )
        except SystemExit as end:
            status = end.code
        text = capsys.readouterr().out
        summary = json.loads((out / 'summary.json').read_text())
        assert status == (INCOMPLETE if summary['unreadable'] else 0)
        earlier = re.search(r'images? \((\d+) of them before\)', text)
        return SimpleNamespace(
            text=text, summary=summary, num_earlier=int(earlier[1]) if earlier else 0
        )

    return predict_into


def read_rows(folder):
    return [json.loads(path.read_text()) for path in sorted((folder / 'scores').rglob('*.json'))]


def read_table(folder, name='predictions.csv'):
    with (folder / name).open(encoding='utf-8', newline='') as file:
        return list(csv.DictReader(file))


def list_files(folder):
    return {path.relative_to(folder).as_posix() for path in folder.rglob('*') if path.is_file()}


@pytest.fixture
def validation(photos, segmenting, tmp_path):
    """The work dir of a test of the same model, which counted objects."""
    images = mmcalib.predict(*segmenting, photos).images
    folder = tmp_path / 'val'
    model = model_record(*segmenting)
    write_validation(folder, model, images, unlabelled=100)
    generator = torch.Generator().manual_seed(0)
    objects = []
    for image_index in range(300):
        for item in images[image_index % len(images)].objects:
            iou = float(torch.rand((), generator=generator)) * item['expected_iou']
            if item['object'] == 2:  # It has no label.
                iou = math.nan
            columns = [item[key] for key in ('label', 'pixels', 'confidence', 'expected_iou')]
            objects.append([image_index, *columns, iou])
    file = folder / 'calibration_val.npz'
    statistics = CalibrationStatistics.load(file)
    statistics.objects = torch.tensor(objects, dtype=torch.float64)
    statistics.save(file)
    write_test_record(folder, model)
    return folder


def test_predict_folder_equals_function(photos, segmenting, out, predict_into):
    expected = mmcalib.predict(*segmenting, photos, threshold=0.6)
    actual = predict_into(*segmenting, photos, out, threshold=0.6)
    assert list_files(out) == {*TABLES, 'objects.csv', *image_files(*'012')}
    objects = read_table(out, 'objects.csv')
    rows = read_rows(out)
    for image, row, line in zip(expected.images, rows, read_table(out), strict=True):
        assert image.row == {key: row[key] for key in image.row}
        assert row['image'] == line['image']
        assert row['confidence'] == float(line['confidence'])
        lines = [item for item in objects if item['image'] == row['image']]
        for object_line, item in zip(lines, row['objects'], strict=True):
            assert int(object_line['object']) == item['object']
            assert float(object_line['expected_iou']) == item['expected_iou']
            box = [int(object_line[end]) for end in ('top', 'bottom', 'left', 'right')]
            assert box == item['box']
            y, x = (image.arrays['objects'] == item['object']).nonzero()
            assert box == [y.min(), y.max(), x.min(), x.max()]
        with np.load(out / 'arrays' / f'{row["files"]}.npz') as arrays:
            assert arrays['predicted'].dtype == np.uint8
            for name in ('predicted', 'objects', 'confidence'):
                np.testing.assert_array_equal(arrays[name], image.arrays[name])
        assert cv2.imread(str(out / 'pictures' / f'{row["files"]}.png')) is not None
    assert actual.summary == expected.summary
    assert actual.text.startswith('3 images: mean confidence ')


def test_predict_with_validation_calibrates_objects_and_sorts_the_gallery(
    photos, segmenting, validation, out, predict_into
):
    options = dict(validation=validation, risk=0.5, probability=0.999)
    expected = mmcalib.predict(*segmenting, photos, **options)
    text = predict_into(*segmenting, photos, out, **options).text
    statistics = CalibrationStatistics.load(validation / 'calibration_val.npz')
    repeated = predict_into(*segmenting, photos, out, **options)
    assert repeated.num_earlier == 3
    assert repeated.summary == expected.summary  # now made from the files
    summary = expected.summary
    for part in (
        f'expected accuracy {100 * summary["expected_accuracy"]:.1f} %, between ',
        f'threshold {summary["bound"]["threshold"]:.6g}: at most 50 % of what it keeps is wrong',
        f'{100 * summary["validation_unlabelled"]:.2g} % of the validation pixels have no label: '
        'accuracies and errors refer to pixels that would get one',
    ):
        assert part in text

    has_iou = ~statistics.objects[:, 5].isnan()
    expected_ious, ious = statistics.objects[has_iou, 4:].numpy().T
    # Between the objects of the validation that are next in score, a curve is a line.
    levels, level_index, counts = np.unique(expected_ious, return_inverse=True, return_counts=True)
    objects = expected.rows[0]['objects']
    for key, values in (('found', ious > 0.5), ('calibrated_iou', ious)):
        means = np.bincount(level_index, values) / counts
        curve = isotonic_regression(means, sample_weight=counts)
        scores = np.interp([item['expected_iou'] for item in objects], levels, curve)
        assert [item[key] for item in objects] == pytest.approx(scores)

    page = ' '.join((out / 'gallery.html').read_text().replace('&nbsp;', ' ').split())
    rows = sorted(read_table(out), key=lambda row: float(row['expected_accuracy']))
    positions = [page.index(f'src="pictures/{row["files"]}.png"') for row in rows]
    assert positions == sorted(positions)
    assert 'http' not in page  # It needs no server.
    assert f'expected accuracy {100 * float(rows[0]["expected_accuracy"]):.1f} %' in page
    worst = json.loads((out / 'scores' / f'{rows[0]["files"]}.json').read_text())
    doubtful = [item for item in worst['objects'] if item['found'] < 0.5]
    largest = max(doubtful, key=lambda item: item['pixels'])
    sentence = f'{len(doubtful)} of {len(worst["objects"])} objects probably have an IoU below 0.5'
    name = f'{largest["name"]} (no. {largest["object"]}, {100 * largest["found"]:.0f} %)'
    assert f'{sentence}, the largest: {name}' in page


def test_predict_into_folder_of_other_evidence_refused(
    photos, segmenting, validation, out, predict_into
):
    arguments = (*segmenting, photos, out)
    predict_into(*arguments, validation=validation)
    with pytest.raises(UserError, match=r'probability 0\.95 \(here: 0\.9\)'):
        predict_into(*arguments, validation=validation, probability=0.9)
    file = validation / 'calibration_val.npz'
    statistics = CalibrationStatistics.load(file)
    statistics.objects = statistics.objects[1:]
    statistics.save(file)
    with pytest.raises(UserError, match=r'has predictions with validation \w+ \(here'):
        predict_into(*arguments, validation=validation)


def test_predict_tool_reports_its_end(photos, segmenting, tmp_path, run):
    (tmp_path / 'text.png').write_text('hello')
    command = ('predict.py', *segmenting)
    text = run(*command, photos, '--out', 'out', '--threshold', 1.0)
    assert '0.0 % of the pixels above 1' in text
    text = run(*command, 'text.png', '--out', 'other', code=2)
    assert 'none of the 1 files can be predicted; ' in text
    text = run(*command, photos, '--out', 'text.png', code=2)
    assert 'text.png/settings.json cannot be written' in text


def test_predict_disagreement_is_in_the_files(photos, classifiers, out, run):
    _, config, checkpoints = classifiers
    run('predict.py', config, *checkpoints, photos, '--out', out, '--disagreement')
    for row in read_table(out):
        with np.load(out / f'arrays/{row["files"]}.npz') as arrays:
            information = float(row['mutual_information'])
            assert arrays['mutual_information'] == pytest.approx(information) != 0
            assert arrays['probabilities'].max() == pytest.approx(float(row['confidence']))


def test_predict_after_full_disk_goes_on(
    photos, model, out, tmp_path, monkeypatch, run, predict_into
):
    uninterrupted = tmp_path / 'uninterrupted'
    predict_into(*model, photos, uninterrupted)
    save = np.savez_compressed
    num_saved = 0

    def save_two(path, **arrays):
        nonlocal num_saved
        num_saved += 1
        if num_saved > 2:
            path.write_bytes(b'PK')
            raise OSError(errno.ENOSPC, 'No space left on device')
        save(path, **arrays)

    with monkeypatch.context() as patch:
        patch.setattr(prediction_folder.np, 'savez_compressed', save_two)
        text = run('predict.py', *model, photos, '--out', out, code=2)
    assert f'{out}/arrays/2.npz' in text and 'No space left' in text
    assert sorted(path.name for path in (out / 'arrays').iterdir()) == ['0.npz', '1.npz']
    # A killed process leaves its temporary file.
    (out / 'scores/.2.abcdef-1234-0123abcd.json').write_text('{"image": "cut o')
    actual = predict_into(*model, photos, out)
    assert (actual.num_earlier, actual.summary['num_images']) == (2, 3)
    for name in ('scores/0.json', 'scores/2.json', 'summary.json', 'predictions.csv'):
        assert (out / name).read_text() == (uninterrupted / name).read_text()
    (out / 'scores/0.json').write_text('{')
    with pytest.raises(ValueError, match=r'scores/0.json cannot be read .* remove it, and run'):
        predict_into(*model, photos, out)


def test_predict_into_folder_of_other_settings_refused(photos, classifiers, out, predict_into):
    _, config, checkpoints = classifiers
    options = dict(config=config, images=photos, out=out, pictures=False)
    two = dict(checkpoint=checkpoints[:2], tta=True)
    predict_into(**options, **two)
    # Members have no order.
    reversed_members = predict_into(**options, checkpoint=checkpoints[1::-1], tta=True)
    assert reversed_members.num_earlier == 3
    for other, text in (
        (two | dict(threshold=0.5), r'threshold 0\.9 \(here: 0\.5\): name'),
        (dict(checkpoint=checkpoints[:2]), 'views'),
        (dict(checkpoint=checkpoints, tta=True), 'members'),
        (two | dict(disagreement=True), 'disagreement False'),
        (two | dict(cfg_options={'model.head.topk': (1,)}), 'network'),
        (two | dict(cfg_options={'data_preprocessor.std': [1.0] * 3}), r'std\.0 60 \(here: 1\)'),
    ):
        with pytest.raises(ValueError, match=rf'has predictions with [\w.]*{text}'):
            predict_into(**options, **other)
    actual = predict_into(**options, **two, threshold=0.5, overwrite=True)
    assert (actual.num_earlier, actual.summary['num_images']) == (0, 3)


def test_predict_same_name_in_another_folder_is_another_image(
    model, out, tmp_path, monkeypatch, predict_into
):
    # Each folder is predicted twice; the second time, all images are predicted already.
    for name, sizes, num_earlier, num_images in (
        ('one', SIZES[:2], 0, 2),
        ('other', SIZES[:1], 2, 3),
    ):
        folder = tmp_path / name / 'photos'
        folder.mkdir(parents=True)
        write_photos(folder, sizes)
        monkeypatch.chdir(folder.parent)
        for expected_earlier in (num_earlier, num_images):
            actual = predict_into(*model, 'photos', out)
            assert actual.num_earlier == expected_earlier
            assert actual.summary['num_images'] == num_images
            is_named = f'{num_earlier} of these images are of earlier calls' in actual.text
            assert is_named == (num_earlier > 0)
    page = (out / 'gallery.html').read_text()
    assert all(f'alt="{row["path"]}"' in page for row in read_rows(out)[:2])
    assert sorted(row['files'] for row in read_rows(out)) == ['0', '0.png', '1']
    (tmp_path / 'third').mkdir()
    write_photos(tmp_path / 'third', SIZES[:1])
    with pytest.raises(UserError, match=r'0\.png and another image would share'):
        predict_into(*model, tmp_path / 'third', out)


def test_predict_replaced_image_predicted_again(model, photos, out, predict_into):
    predict_into(*model, photos, out)
    before = read_rows(out)
    (photos / '0.png').write_bytes((photos / '1.png').read_bytes())
    os.utime(photos / '0.png', ns=(0, 0))
    (photos / '2.png').write_text('hello')
    # With a file further up, the names of all files begin there.
    (photos.parent / 'text.png').write_text('hello')
    actual = predict_into(*model, [photos, photos.parent / 'text.png'], out)
    assert (actual.num_earlier, len(actual.summary['unreadable'])) == (1, 2)
    replaced, unchanged = read_rows(out)
    assert (replaced['files'], unchanged['files']) == ('0', '1')
    assert replaced['confidence'] == pytest.approx(before[1]['confidence'], abs=1e-6)
    assert replaced['confidence'] != before[0]['confidence']
    os.utime(photos / '1.png', ns=(0, 0))
    assert predict_into(*model, photos, out).num_earlier == 1


@pytest.mark.parametrize('kind', ['arrays', 'pictures'])
def test_predict_files_asked_for_later_are_written(model, photos, out, kind, predict_into):
    arguments = (*model, photos, out)
    assert predict_into(*arguments, **{kind: False}).num_earlier == 0
    assert predict_into(*arguments, **{kind: False}).num_earlier == 3
    assert not (out / kind).exists()
    assert predict_into(*arguments, **{kind: True}).num_earlier == 0
    assert predict_into(*arguments, **{kind: False}).num_earlier == 3
    assert len(list((out / kind).iterdir())) == len(read_rows(out)) == 3


def test_predict_overwrite_removes_all_but_files_of_others(
    model, photos, out, tmp_path, predict_into
):
    predict_into(*model, photos, out)
    others = {'notes.txt', 'arrays/mine.npz', 'masks.csv.npz'}
    for name in others:
        (out / name).write_text('x')
    (tmp_path / 'text.png').write_text('hello')
    with pytest.raises(ValueError, match='none of the 1 files can be predicted'):
        predict_into(*model, tmp_path / 'text.png', out, threshold=0.5, overwrite=True)
    assert list_files(out) == {'settings.json', *others}
    # Scores of something else are left alone.
    (tmp_path / 'scores').mkdir()
    (tmp_path / 'scores/0.json').write_text('mine')
    for overwrite in (False, True):
        with pytest.raises(UserError, match='scores is not from this tool'):
            predict_into(*model, photos, tmp_path, overwrite=overwrite)
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
def test_predict_odd_file_name_is_written(
    model, photos, out, name, shown, monkeypatch, predict_into
):
    captions = []
    draw = predict_command.draw_classification

    def draw_and_keep_captions(*arrays, **texts):
        captions.extend(texts['captions'])
        return draw(*arrays, **texts)

    monkeypatch.setattr(predict_command, 'draw_classification', draw_and_keep_captions)
    odd = photos / os.fsdecode(name)
    (photos / '0.png').rename(odd)
    (photos / 'wrong').mkdir()
    (photos / 'wrong' / odd.name).write_text('hello')
    actual = predict_into(*model, photos, out)
    assert actual.summary['num_images'] == 3
    assert actual.text.encode().count(b'it is not an image') == 1
    (row,) = (row for row in read_rows(out) if row['image'] == str(odd))
    assert list_files(out) >= image_files(row['files'])
    side = 'above' if row['kept'] else 'not above'
    score = f'{row["name"]}, {100 * row["confidence"]:.1f} %, {side} 0.9'
    assert sum(line.endswith(f': {score}') for line in captions) == 1
    assert not any('\n' in line for line in captions)
    link = quote(f'{row["files"]}.png', errors='surrogateescape')
    page = (out / 'gallery.html').read_text(encoding='utf-8')
    assert f'<img alt="{escape(shown)}" loading="lazy" src="pictures/{link}">' in page
    assert (f'{row["name"]}, not above the threshold' in page) == (row['kept'] == 0)
    assert {Path(line['image']).name for line in read_table(out)} == {shown, '1.png', '2.png'}
    assert predict_into(*model, photos, out).num_earlier == 3


def test_predict_names_of_classes_with_a_new_line_are_escaped(
    photos, model, segmenting, tmp_path, run
):
    classes = ['two\nlines', '_background_', '$5 or $6', 'tab\t\x1b[31m', 'no text \udce9']
    for index, (config, checkpoint) in enumerate((model, segmenting)):
        content = torch.load(checkpoint, weights_only=False)
        content['meta']['dataset_meta'] = {'classes': classes[: 5 - index]}
        torch.save(content, tmp_path / f'{index}.pth')
        command = ('predict.py', config, tmp_path / f'{index}.pth', photos)
        text = run(*command, '--out', f'out{index}')
        assert '3 images: mean confidence' in text and '\nlines' not in text
        assert len(list((tmp_path / f'out{index}/pictures').iterdir())) == 3
        names = {row['name'] for row in read_rows(tmp_path / f'out{index}')} - {None, ''}
        assert names <= {*classes}  # Files keep them as they are.
        text = run(*command, '--out', f'out{index}')
        assert '3 images (3 of them before)' in text


@pytest.mark.parametrize('has_found', [False, True])
@pytest.mark.parametrize(
    ('ious', 'text'),
    [
        ([0.25], '1 of 1 object {} an {}IoU below 0.5: sky'),
        ([0.25, 0.75], '1 of 2 objects {} an {}IoU below 0.5: sky'),
        ([0.25, 0.25], '2 of 2 objects {} an {}IoU below 0.5, the largest: sky'),
    ],
)
def test_gallery_one_object_has_its_verb(ious, text, has_found):
    objects = []
    for number, iou in enumerate(ious, 1):
        item = dict(name='sky', object=number, pixels=9, expected_iou=iou)
        item['found'] = iou if has_found else None
        objects.append(item)
    row = dict(files='0', path='/0.png', objects=objects, label=None)
    page = gallery_page([row | dict(expected_accuracy=None, confidence=0.5)])
    verb = 'has' if text[0] == '1' else 'have'
    words = (f'probably {verb}', '') if has_found else (verb, 'expected ')
    expected = text.format(*words)
    assert expected in ' '.join(page.split()) and '1 image,' in page
    # The whole picture is on the page, and a click shows it at its size.
    assert '<a class="fitted" href="pictures/0.png"><img' in page


def test_predict_two_processes_equals_one(photos, segmenting, tmp_path, free_port, run):
    """Two of the files cannot be read, so the exit status is 3."""
    content = (photos / '0.png').read_bytes()
    (tmp_path / 'cut.png').write_bytes(content[:200])
    (tmp_path / 'text.png').write_bytes(b'hello')
    files = [photos / '0.png', tmp_path / 'cut.png', tmp_path / 'text.png', photos]
    run('predict.py', *segmenting, *files, '--out', 'one', code=INCOMPLETE)
    arguments = [*segmenting, *files, '--out', tmp_path / 'two']
    with pytest.raises(AssertionError) as ended:
        run_forked('predict.py', *arguments, cwd=tmp_path, ranks=2, port=free_port)
    assert str(ended.value).count('2 files without a prediction:') == 1
    one = tmp_path / 'one'
    two = tmp_path / 'two'
    assert list_files(one) == list_files(two)
    for expected, actual in zip(read_table(one), read_table(two), strict=True):
        assert actual['image'] == expected['image']
        confidence = float(expected['confidence'])
        assert float(actual['confidence']) == pytest.approx(confidence, abs=1e-6)
    expected, actual = (json.loads((path / 'summary.json').read_text()) for path in (one, two))
    for summary in (expected, actual):
        names = [Path(item['image']).name for item in summary['unreadable']]
        assert names == ['cut.png', 'text.png']
    assert actual['confidence'] == pytest.approx(expected['confidence'], abs=1e-6)
