"""Predictions of image files: against plain loops, in files and without, and taken up again."""

import csv
import errno
import json
import math
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from commands import call_here
from file_models import (
    CLASSIFIER,
    SEGMENTOR,
    described,
    normalised,
    resized,
    write_model,
    write_photos,
    write_record_of,
    write_validation,
)
from forked import call_forked
from mmengine.model import BaseModel
from tiny_models import classifier, fcn_head, segmentor

import mmcalib
from mmcalib.checks import UserError
from mmcalib.metrics import CalibrationStatistics
from mmcalib.metrics.expected_accuracy import ExpectedAccuracy
from mmcalib.metrics.risk_threshold import threshold_at_risk
from mmcalib.samples.objects import objects_of_logits
from mmcalib.tasks.predict import folder as prediction_folder
from mmcalib.tasks.predict.predict import predict_to_folder
from mmcalib.tasks.predict.summary import report_in_words

SIZES = [(24, 36), (24, 36), (24, 36), (30, 20), (24, 36)]


@pytest.fixture(scope='module')
def photos(tmp_path_factory):
    return write_photos(tmp_path_factory.mktemp('photos'), SIZES)


@pytest.fixture
def segmenting(tmp_path):
    return write_model(tmp_path, SEGMENTOR, segmentor(fcn_head()))


@pytest.fixture
def classifying(tmp_path):
    return write_model(tmp_path, CLASSIFIER, classifier(CLASSIFIER['model']['head']))


def test_a_segmentors_maps_are_the_softmax_of_its_logits(photos, segmenting):
    model = segmentor(fcn_head())
    found = mmcalib.predict(*segmenting, photos, threshold=0.6)
    assert [image.scores.image for image in found.images] == [
        str(photos / f'{n}.png') for n in range(5)
    ]
    for image, size in zip(found.images, SIZES, strict=True):
        inputs = normalised(image.scores.image, resized(*size))
        with torch.no_grad():
            logits = model.encode_decode(inputs, [dict(img_shape=inputs.shape[2:])])
        logits = torch.nn.functional.interpolate(logits, size, mode='bilinear')[0]
        conf, predicted = logits.softmax(0).max(0)
        assert np.array_equal(image.predicted, predicted)
        np.testing.assert_allclose(image.confidence, conf, atol=1e-5)
        scores = image.scores
        assert scores.confidence == pytest.approx(conf.mean().item(), abs=1e-5)
        assert scores.kept == pytest.approx((conf > 0.6).double().mean().item(), abs=1e-9)
        assert math.isnan(scores.expected_accuracy) and scores.label is None
        assert [share['label'] for share in scores.classes] == predicted.unique().tolist()
        for share in scores.classes:
            inside = predicted == share['label']
            kept = inside & (conf > 0.6)
            assert (share['pixels'], share['kept']) == (inside.sum(), kept.sum())
        objects = objects_of_logits(logits.double(), predicted)
        np.testing.assert_array_equal(image.objects, objects.number + 1)
        for n, own in enumerate(scores.objects):
            inside = torch.from_numpy(image.objects == n + 1)
            assert (own.object, own.name) == (n + 1, f'class {own.label}')
            assert set(predicted[inside].tolist()) == {own.label}
            assert own.pixels == inside.sum()
            assert own.confidence == pytest.approx(conf[inside].mean().item(), abs=1e-5)
            assert own.expected_iou == pytest.approx(objects.expected_iou[n], abs=1e-5)
            assert own.share == pytest.approx(inside.double().mean().item())
            assert math.isnan(own.found) and own.score == own.expected_iou
    mean = np.mean([image.scores.confidence for image in found.images])
    assert found.scores.confidence == pytest.approx(mean)
    assert (found.scores.num_images, found.scores.threshold) == (5, 0.6)


def test_a_binary_segmentors_confidence_is_that_of_what_its_threshold_predicts(photos, tmp_path):
    head = fcn_head(2, out_channels=1, threshold=0.3)
    config = dict(SEGMENTOR, model=dict(SEGMENTOR['model'], decode_head=head))
    (image, *_) = mmcalib.predict(*write_model(tmp_path, config, segmentor(head)), photos).images
    low = np.where(image.predicted == 1, image.confidence, 1 - image.confidence)
    assert set(np.unique(image.predicted)) == {0, 1}
    assert np.array_equal(image.predicted == 1, low > 0.3)


def test_a_classifiers_probabilities_are_the_softmax_of_its_logits(photos, classifying):
    model = classifier(CLASSIFIER['model']['head'])
    for image in mmcalib.predict(*classifying, [photos], threshold=0.5).images:
        with torch.no_grad():
            probs = model(normalised(image.scores.image), mode='tensor').softmax(1)[0]
        np.testing.assert_allclose(image.probabilities, probs, atol=1e-5)
        assert image.predicted == image.scores.label == probs.argmax()
        assert image.scores.name == f'class {probs.argmax()}'
        assert image.confidence == pytest.approx(probs.max().item(), abs=1e-5)
        assert image.scores.kept == float(probs.max() > 0.5)
        assert image.scores.objects == image.scores.classes == ()


def rows_in(out):
    return [json.loads(path.read_text()) for path in sorted((out / 'scores').iterdir())]


def with_broken_files(photos, folder):
    good = sorted(photos.iterdir())
    for name in ('cut.png', 'text.png'):
        content = good[0].read_bytes()[:200] if name == 'cut.png' else b'hello'
        (folder / name).write_bytes(content)
    return [good[0], folder / 'cut.png', good[1], folder / 'text.png', *good[2:]]


def test_broken_files_are_named_and_lose_nothing(photos, segmenting, tmp_path):
    expected = mmcalib.predict(*segmenting, photos)
    found = mmcalib.predict(*segmenting, with_broken_files(photos, tmp_path))
    assert [item.image.name for item in found.unreadable] == ['cut.png', 'text.png']
    for one, other in zip(found.images, expected.images, strict=True):
        assert one.scores.image == other.scores.image
        np.testing.assert_allclose(one.confidence, other.confidence, atol=1e-6)
    with pytest.raises(UserError, match=r'none of the 1 files .*cut\.png: it is damaged'):
        mmcalib.predict(*segmenting, [tmp_path / 'cut.png'])


def test_images_that_do_not_fit_or_break_the_model_lose_no_others(photos, segmenting, monkeypatch):
    step, sizes = BaseModel.test_step, []

    def limited(self, data):
        sizes.append(len(data['inputs']))
        if len(data['inputs']) > 1 or data['inputs'][0].shape[1] > data['inputs'][0].shape[2]:
            raise torch.cuda.OutOfMemoryError('CUDA out of memory. Tried to allocate')
        samples = step(self, data)
        if samples[0].img_path.endswith('2.png'):
            samples[0].seg_logits.data[:] = float('nan')
        return samples

    monkeypatch.setattr(BaseModel, 'test_step', limited)
    found = mmcalib.predict(*segmenting, photos)
    assert [image.scores.image[-5:] for image in found.images] == ['0.png', '1.png', '4.png']
    broken, large = found.unreadable
    assert 'seg_logits of' in broken.reason and 'NaN' in broken.reason
    assert large.image.name == '3.png'
    assert large.reason == 'OutOfMemoryError: CUDA out of memory. Tried to allocate'
    assert sizes == [2, 1, 1, 1, 1, 1]


def test_files_hold_what_python_returns(photos, segmenting, tmp_path):
    expected = mmcalib.predict(*segmenting, photos, threshold=0.6).images
    out = tmp_path / 'out'
    report = predict_to_folder(*segmenting, [photos], out, threshold=0.6)
    rows = rows_in(out)
    table = list(csv.DictReader((out / 'predictions.csv').open()))
    objects = list(csv.DictReader((out / 'objects.csv').open()))
    for image, row, line in zip(expected, rows, table, strict=True):
        assert row['image'] == line['image'] == image.scores.image
        assert (
            row['confidence'] == float(line['confidence']) == pytest.approx(image.scores.confidence)
        )
        for found in row['objects']:
            (own,) = [
                o
                for o in objects
                if o['image'] == row['image'] and o['object'] == str(found['object'])
            ]
            assert float(own['expected_iou']) == found['expected_iou']
            assert [int(own[end]) for end in ('top', 'bottom', 'left', 'right')] == found['box']
        with np.load(out / 'arrays' / f'{row["files"]}.npz') as arrays:
            assert arrays['predicted'].dtype == np.uint8
            assert np.array_equal(arrays['predicted'], image.predicted)
            assert np.array_equal(arrays['objects'], image.objects)
            np.testing.assert_allclose(arrays['confidence'], image.confidence, atol=1e-6)
        assert cv2.imread(str(out / 'pictures' / f'{row["files"]}.png')) is not None
    assert json.loads((out / 'summary.json').read_text())['kept'] == report.scores.kept
    assert report_in_words(report).startswith('5 images: mean confidence ')


def test_what_a_full_disk_leaves_is_taken_up_again(
    photos, classifying, tmp_path, monkeypatch, capsys
):
    whole, out = tmp_path / 'whole', tmp_path / 'out'
    predict_to_folder(*classifying, [photos], whole)
    save, count = np.savez_compressed, [0]

    def full(path, **arrays):
        count[0] += 1
        if count[0] > 2:
            path.write_bytes(b'PK')
            raise OSError(errno.ENOSPC, 'No space left on device')
        save(path, **arrays)

    monkeypatch.setattr(prediction_folder.np, 'savez_compressed', full)
    with pytest.raises(SystemExit) as ended:
        call_here('predict.py', *classifying, photos, '--out', out, monkeypatch=monkeypatch)
    said = capsys.readouterr().err
    assert ended.value.code == 2 and f'{out}/arrays/2.npz' in said and 'No space left' in said
    assert sorted(p.name for p in (out / 'arrays').iterdir()) == ['0.npz', '1.npz']
    monkeypatch.undo()
    (out / 'scores/.2.1234.json').write_text('{"image": "cut o')  # as a killed process leaves it
    report = predict_to_folder(*classifying, [photos], out)
    assert (report.before, report.scores.num_images) == (2, 5)
    for name in ('scores/0.json', 'scores/4.json', 'summary.json', 'predictions.csv'):
        one, other = ((folder / name).read_text() for folder in (out, whole))
        assert one == other
    again = predict_to_folder(*classifying, [photos], out)
    assert (again.before, str(again.scores)) == (5, str(report.scores))  # with NaN


def test_predictions_of_other_settings_do_not_mix(photos, segmenting, tmp_path):
    out = tmp_path / 'out'
    predict_to_folder(*segmenting, [photos / '0.png'], out, pictures=False)
    with pytest.raises(ValueError, match=r'with threshold 0\.9 \(here: 0\.5\): name'):
        predict_to_folder(*segmenting, [photos], out, threshold=0.5)
    for changes, text in (
        (
            {'model.data_preprocessor.std': [1.0] * 3},
            r'data_preprocessor\.std\.0 60 \(here: 1\)',
        ),
        ({'model.test_cfg.mode': 'slide'}, r'test_cfg\.mode whole \(here: slide\)'),
        ({'model.decode_head.dropout_ratio': 0.5}, r'network\..*dropout_ratio'),
    ):
        with pytest.raises(ValueError, match=text):
            predict_to_folder(*segmenting, [photos], out, pictures=False, cfg_options=changes)
    report = predict_to_folder(*segmenting, [photos], out, threshold=0.5, overwrite=True)
    assert (report.before, report.scores.num_images) == (0, 5)


def alone(model):
    """The model of a record of a test of one checkpoint."""
    config, checkpoint = model
    return described(config, [checkpoint])


def test_a_validation_says_what_to_expect(photos, segmenting, tmp_path):
    found = mmcalib.predict(*segmenting, photos)
    bins = write_validation(tmp_path / 'val', alone(segmenting), found.images)
    accuracy, bound = ExpectedAccuracy(bins), threshold_at_risk(bins, 0.5)
    with_it = mmcalib.predict(*segmenting, photos, validation=tmp_path / 'val', risk=0.5)
    assert with_it.scores.bound == bound and with_it.scores.threshold == bound.threshold
    for image in with_it.images:
        expected = accuracy.of_image(torch.from_numpy(image.confidence))
        assert image.scores.expected_accuracy == pytest.approx(expected)
        assert image.scores.accuracy_interval == accuracy.image_interval(expected)
        assert image.scores.kept == pytest.approx((image.confidence > bound.threshold).mean())
    mean = np.mean([image.scores.expected_accuracy for image in with_it.images])
    assert with_it.scores.expected_accuracy == pytest.approx(mean)
    assert with_it.scores.accuracy_interval == accuracy.folder_interval(mean, 5)

    out = tmp_path / 'out'
    options = dict(validation=tmp_path / 'val', risk=0.5, pictures=False)
    text = report_in_words(predict_to_folder(*segmenting, [photos], out, **options))
    assert f'expected accuracy {100 * mean:.1f} %, between ' in text
    assert (
        f'threshold {bound.threshold:.6g}: at most 50 % of what it keeps is wrong, on average'
        in text
    )
    first = predict_to_folder(*segmenting, [photos], out, **options)
    assert first.scores == with_it.scores  # out of the files


def test_pixels_without_a_label_are_told_of(photos, segmenting, tmp_path):
    found = mmcalib.predict(*segmenting, photos).images
    bins = write_validation(tmp_path / 'val', alone(segmenting), found, unlabelled=100)
    out, options = tmp_path / 'out', dict(validation=tmp_path / 'val', risk=0.5, pictures=False)
    report = predict_to_folder(*segmenting, [photos], out, **options)
    share = (200 / (200 + bins[:, 0].sum(dim=1))).mean().item()
    assert report.scores.validation_unlabelled == pytest.approx(share)
    assert (
        f'{100 * share:.2g} % of the validation pixels have no label: accuracies and errors '
        'refer to pixels that would get one' in report_in_words(report)
    )


def test_a_classifiers_image_has_no_interval(photos, classifying, tmp_path):
    found = mmcalib.predict(*classifying, photos)
    write_validation(tmp_path / 'val', alone(classifying), found.images)
    with_it = mmcalib.predict(*classifying, photos, validation=tmp_path / 'val')
    assert all(0 < image.scores.expected_accuracy < 1 for image in with_it.images)
    assert all(math.isnan(image.scores.accuracy_interval[0]) for image in with_it.images)
    low, high = with_it.scores.accuracy_interval
    assert low < with_it.scores.expected_accuracy < high


def test_a_validation_of_another_model_is_refused(photos, segmenting, tmp_path):
    found = mmcalib.predict(*segmenting, photos).images
    right = alone(segmenting)
    (same,) = right['members']
    last = same | dict(checkpoint='last weights')  # in no file
    steps = [dict(type='LoadImageFromFile'), dict(type='PackSegInputs')]
    for changes, text in (
        (dict(members=[last | dict(seed=2)]), r'seed 2 \(here: 1\)'),
        (dict(members=[last | dict(epoch=4)]), r'epoch 4 \(here: 3\)'),
        (dict(members=[same | dict(digest='0' * 16)]), r'digest 0{16} \(here: \w{16}\)'),
        (dict(pipeline=steps), 'it has pipeline'),
    ):
        write_validation(tmp_path / 'val', right | changes, found, images=3)
        with pytest.raises(ValueError, match=text):
            mmcalib.predict(*segmenting, photos, validation=tmp_path / 'val')
    write_validation(tmp_path / 'val', right, found, images=3, tta=True)
    with pytest.raises(ValueError, match='measured under test-time augmentation'):
        mmcalib.predict(*segmenting, photos, validation=tmp_path / 'val')
    write_validation(tmp_path / 'val', right | dict(members=[last]), found, images=3)
    mmcalib.predict(*segmenting, photos / '0.png', validation=tmp_path / 'val')
    with pytest.raises(ValueError, match=r'no threshold is proven to keep at most 5 % .* 3 images'):
        mmcalib.predict(*segmenting, photos, validation=tmp_path / 'val', risk=0.05)
    (tmp_path / 'val/results_val.json').unlink()
    with pytest.raises(UserError, match=r'results_val\.json, which belongs to'):
        mmcalib.predict(*segmenting, photos, validation=tmp_path / 'val')
    with pytest.raises(UserError, match=r'there is no calibration\.npz of a test in'):
        mmcalib.predict(*segmenting, photos, validation=tmp_path)


def test_statistics_that_do_not_tell_images_apart_are_refused(photos, segmenting, tmp_path):
    statistics = CalibrationStatistics({}, 'paper', 15, torch.zeros(3, 1))
    statistics.save(tmp_path / 'calibration_val.npz')
    write_record_of(tmp_path, alone(segmenting))
    with pytest.raises(ValueError, match=r"no statistics for each image: its protocol, 'paper'"):
        mmcalib.predict(*segmenting, photos, validation=tmp_path)


def test_images_that_the_data_set_makes_itself_are_no_files(photos, classifying):
    options = {'test_dataloader.dataset.dataset.pipeline': [dict(type='PackInputs')]}
    with pytest.raises(ValueError, match='starts with PackInputs, so it reads no image files'):
        mmcalib.predict(*classifying, photos, cfg_options=options)


@pytest.mark.parametrize(
    ('options', 'text'),
    [
        (dict(treshold=0.5), "unexpected keyword argument 'treshold'"),
        (dict(risk=0.05), 'a risk requires a validation'),
        (dict(threshold=1.5), r'threshold must be in \[0, 1\], got 1.5'),
        (dict(workers=-1), 'num_workers option should be non-negative'),
        (dict(probability=95), r'probability must be in \[0, 1\], got 95'),
        (dict(probability=0), 'probability must be a share between 0 and 1'),
        (dict(probability=-1), r'probability must be in \[0, 1\], got -1'),
        (dict(device='gpu'), 'cannot be built: Expected one of cpu, '),
        (dict(device='cuda:99'), 'cannot be built: '),
    ],
)
def test_options_that_make_no_sense(photos, segmenting, options, text):
    with pytest.raises((TypeError, ValueError), match=text):
        mmcalib.predict(*segmenting, photos, **options)


def test_paths_are_taken_as_such(photos, segmenting):
    config, checkpoint = map(Path, segmenting)
    expected = mmcalib.predict(*segmenting, photos / '0.png').scores.confidence
    for given in (checkpoint, [checkpoint]):
        found = mmcalib.predict(config, given, photos / '0.png')
        assert found.scores.confidence == pytest.approx(expected)


def test_a_head_that_is_no_softmax_is_refused(photos, tmp_path):
    pytest.importorskip('mmpretrain.models')
    head = dict(type='MultiLabelLinearClsHead', num_classes=5, in_channels=8)
    model = dict(CLASSIFIER['model'], head=head)
    config = write_model(tmp_path, dict(CLASSIFIER, model=model), classifier(head))
    with pytest.raises(ValueError, match='each class by a sigmoid'):
        mmcalib.predict(*config, photos)


def test_the_tool_ends_with_3_where_files_were_left_out(
    photos, segmenting, tmp_path, monkeypatch, capsys
):
    files = with_broken_files(photos, tmp_path)
    out = tmp_path / 'out'
    with pytest.raises(SystemExit) as ended:
        call_here('predict.py', *segmenting, *files, '--out', out, monkeypatch=monkeypatch)
    assert ended.value.code == 3
    said = capsys.readouterr().out
    assert '2 files without a prediction:' in said and f'{tmp_path / "text.png"}: it is no' in said
    summary = json.loads((out / 'summary.json').read_text())
    assert [item['image'] for item in summary['unreadable']] == [
        str(tmp_path / 'cut.png'), str(tmp_path / 'text.png')
    ]  # fmt: skip
    only = [tmp_path / 'text.png', '--out', tmp_path / 'other']
    with pytest.raises(SystemExit) as ended:
        call_here('predict.py', *segmenting, *only, monkeypatch=monkeypatch)
    assert ended.value.code == 2
    assert 'none of the 1 files can be predicted; ' in capsys.readouterr().err


def test_the_tool_names_a_folder_that_cannot_be_written(
    photos, segmenting, tmp_path, monkeypatch, capsys
):
    (tmp_path / 'file').touch()
    with pytest.raises(SystemExit) as ended:
        out = ['--out', tmp_path / 'file']
        call_here('predict.py', *segmenting, photos, *out, monkeypatch=monkeypatch)
    assert ended.value.code == 2
    assert f'{tmp_path / "file"}/settings.json cannot be written' in capsys.readouterr().err


def test_two_processes_equal_one(photos, tmp_path, free_port):
    imported = dict(imports=['tiny_models'])  # by processes that are not pytest
    segmenting = write_model(tmp_path, SEGMENTOR, segmentor(fcn_head()), custom_imports=imported)
    files = with_broken_files(photos, tmp_path)
    one = predict_to_folder(*segmenting, files, tmp_path / 'one')
    arguments = [*segmenting, *files, '--out', tmp_path / 'two']
    with pytest.raises(AssertionError) as ended:  # with 3, for two files
        call_forked('predict.py', *arguments, cwd=tmp_path, ranks=2, port=free_port)
    assert str(ended.value).count('2 files without a prediction:') == 1
    folders = [tmp_path / name for name in ('one', 'two')]
    names = [sorted(str(p.relative_to(f)) for f in [f] for p in f.rglob('*')) for f in folders]
    assert names[0] == names[1]
    rows = [list(csv.DictReader((f / 'predictions.csv').open())) for f in folders]
    assert len(rows[1]) == 5
    for ours, theirs in zip(*rows, strict=True):
        assert ours['image'] == theirs['image']
        assert float(ours['confidence']) == pytest.approx(float(theirs['confidence']), abs=1e-6)
    summary = json.loads((folders[1] / 'summary.json').read_text())
    assert [item['image'] for item in summary['unreadable']] == [
        str(item.image) for item in one.unreadable
    ]
    assert summary['confidence'] == pytest.approx(one.scores.confidence, abs=1e-6)
