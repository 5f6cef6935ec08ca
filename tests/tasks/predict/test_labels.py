"""Masks of labels for training, thresholds of classes, calibrated objects, and the gallery."""

import csv
import json
import math

import numpy as np
import pytest
import torch
from commands import call_here
from file_models import (
    CLASSIFIER,
    SEGMENTOR,
    described,
    write_model,
    write_photos,
    write_record_of,
    write_validation,
)
from PIL import Image
from sklearn.isotonic import isotonic_regression
from tiny_models import classifier, fcn_head, segmentor

import mmcalib
from mmcalib.metrics import CalibrationStatistics, class_thresholds
from mmcalib.metrics.counts import Counts, of_confidences
from mmcalib.metrics.statistics import of_images
from mmcalib.tasks.predict.predict import predict_to_folder
from mmcalib.tasks.predict.summary import report_in_words
from mmcalib.tasks.predict.validation import calibrated_objects

CLASSES = [f'class {k}' for k in range(4)]


@pytest.fixture(scope='module')
def photos(tmp_path_factory):
    return write_photos(tmp_path_factory.mktemp('photos'), [(24, 36), (24, 36), (30, 20)])


@pytest.fixture
def segmenting(tmp_path):
    return write_model(tmp_path, SEGMENTOR, segmentor(fcn_head()))


@pytest.fixture
def validation(photos, segmenting, tmp_path):
    """The work dir of a test of the same model, which counted classes and objects."""
    found = mmcalib.predict(*segmenting, photos).images
    folder, model = tmp_path / 'val', described(segmenting[0], [segmenting[1]])
    write_validation(folder, model, found)
    generator = torch.Generator().manual_seed(0)
    counts, objects = [], []
    for place in range(300):
        image = found[place % len(found)]
        conf = torch.from_numpy(image.confidence).flatten()
        predicted = torch.from_numpy(image.predicted).flatten()
        wrong = torch.rand(conf.shape, generator=generator) > 0.95 * conf
        rows = of_confidences(conf, ~wrong)._replace(predicted=predicted, left_out=conf[:0])
        counts.append(Counts.of(rows, strata={'predicted': (rows.predicted, 4)}))
        for o in image.scores.objects:
            iou = float(torch.rand((), generator=generator)) * o.expected_iou
            objects.append([place, o.label, o.pixels, o.confidence, o.expected_iou, iou])
    file = folder / 'calibration_val.npz'
    statistics = CalibrationStatistics.load(file)
    tables = of_images(counts)
    for name in ('image_class', 'image_class_bins'):
        setattr(statistics, name, tables[name])
    statistics.objects = torch.tensor(objects, dtype=torch.float64)
    statistics.save(file)
    write_record_of(folder, model)
    return folder


def masks_in(folder):
    return {path.name: np.asarray(Image.open(path)) for path in folder.iterdir()}


def test_one_threshold_for_all_classes(photos, segmenting, tmp_path):
    out = tmp_path / 'out'
    report = predict_to_folder(*segmenting, photos, out, labels=True, threshold=0.6)
    images = mmcalib.predict(*segmenting, photos, threshold=0.6).images
    found = masks_in(out / 'labels')
    assert sorted(found) == ['0.png', '1.png', '2.png']
    kept, pixels = np.zeros(4), np.zeros(4)
    for number, image in enumerate(images):
        expected = np.where(image.confidence > 0.6, image.predicted, 255)
        mask = found[f'{number}.png']
        assert mask.dtype == np.uint8 and np.array_equal(mask, expected)
        pixels += np.bincount(image.predicted.ravel(), minlength=4)
        kept += np.bincount(mask[mask < 255], minlength=4)
    summary = json.loads((out / 'summary.json').read_text())['classes']
    assert [row['name'] for row in summary] == CLASSES
    assert [row['kept'] for row in summary] == kept.tolist()
    assert [row['pixels'] for row in summary] == pixels.tolist()
    k = int(pixels.argmax())
    share = f'class {k}: {100 * kept[k] / pixels[k]:.1f} % of {pixels[k]:,.0f}, above 0.6'
    assert share in report_in_words(report)


def test_masks_that_hold_nothing_are_said(photos, segmenting, tmp_path, monkeypatch, capsys):
    labels = ['--labels', '--threshold', 1.0]
    arguments = [*segmenting, photos, '--out', tmp_path / 'out', *labels]
    with pytest.raises(SystemExit, match='0'):
        call_here('predict.py', *arguments, monkeypatch=monkeypatch)
    report = capsys.readouterr().out
    assert all((mask == 255).all() for mask in masks_in(tmp_path / 'out/labels').values())
    assert '3 of 3 masks hold nothing but 255' in report


def test_a_threshold_of_each_class_and_none_without_a_proof(
    photos, segmenting, validation, tmp_path
):
    out, options = tmp_path / 'out', dict(validation=validation, risk=0.5)
    predict_to_folder(*segmenting, photos, out, labels=True, **options)
    statistics = CalibrationStatistics.load(validation / 'calibration_val.npz')
    table = statistics.image_class, statistics.image_class_bins
    expected = class_thresholds(*table, CLASSES, 0.5)
    assert any(t.bound for t in expected) and len({t.bound and t.bound.threshold for t in expected})
    summary = json.loads((out / 'summary.json').read_text())['classes']
    limits = [t.bound.threshold if t.bound else math.inf for t in expected]
    for row, threshold, limit in zip(summary, expected, limits, strict=True):
        assert row['threshold'] == (None if math.isinf(limit) else limit)
        assert row['reason'] == threshold.reason
    for number, image in enumerate(mmcalib.predict(*segmenting, photos, **options).images):
        kept = image.confidence > np.array(limits)[image.predicted]
        mask = masks_in(out / 'labels')[f'{number}.png']
        assert np.array_equal(mask, np.where(kept, image.predicted, 255))


def test_objects_are_calibrated_by_the_validation(photos, segmenting, validation):
    (image, *_) = mmcalib.predict(*segmenting, photos, validation=validation).images
    rows = CalibrationStatistics.load(validation / 'calibration_val.npz').objects
    scores, ious = rows[~rows[:, 5].isnan()][:, 4:].numpy().T
    # A curve between the objects of the validation that are next in score: no object beyond.
    for of, key in ((ious > 0.5, 'found'), (ious, 'calibrated_iou')):
        levels, place, count = np.unique(scores, return_inverse=True, return_counts=True)
        curve = isotonic_regression(np.bincount(place, of) / count, sample_weight=count)
        expected = np.interp([o.expected_iou for o in image.scores.objects], levels, curve)
        assert [getattr(o, key) for o in image.scores.objects] == pytest.approx(expected)
    with_none = torch.cat([rows, torch.tensor([[0, 1, 9, 0.5, 0.99, np.nan]])])
    for curve, other in zip(*map(calibrated_objects, (rows, with_none)), strict=True):
        np.testing.assert_array_equal(curve.predict(scores), other.predict(scores))
    assert calibrated_objects(None) is calibrated_objects(with_none[-1:]) is None
    assert image.scores.objects[0].score == image.scores.objects[0].found


def test_what_has_no_labels_is_refused(photos, segmenting, tmp_path):
    found = mmcalib.predict(*segmenting, photos).images
    write_validation(tmp_path / 'val', described(segmenting[0], [segmenting[1]]), found)
    options = dict(validation=tmp_path / 'val', risk=0.5, labels=True)
    with pytest.raises(ValueError, match=r'has no counts of each class, .* --split val --objects'):
        predict_to_folder(*segmenting, photos, tmp_path / 'out', **options)
    (tmp_path / 'other').mkdir()
    model = write_model(tmp_path / 'other', CLASSIFIER, classifier(CLASSIFIER['model']['head']))
    with pytest.raises(ValueError, match='--labels requires a segmentor'):
        predict_to_folder(*model, photos, tmp_path / 'out', labels=True)
    assert not (tmp_path / 'out').exists()


def test_two_images_of_one_stem_have_no_two_masks(photos, segmenting, tmp_path):
    (tmp_path / 'photos').mkdir()
    for name in ('a.png', 'a.jpg'):
        Image.open(photos / '0.png').save(tmp_path / 'photos' / name)
    with pytest.raises(ValueError, match=r'a\.jpg and another image would share a file a '):
        predict_to_folder(*segmenting, tmp_path / 'photos', tmp_path / 'out', labels=True)


def test_the_gallery_has_the_worst_image_first_and_needs_no_server(
    photos, segmenting, validation, tmp_path
):
    out = tmp_path / 'out'
    predict_to_folder(*segmenting, photos, out, validation=validation)
    page = ' '.join((out / 'gallery.html').read_text().split())
    rows = list(csv.DictReader((out / 'predictions.csv').open()))
    rows.sort(key=lambda row: float(row['expected_accuracy']))
    places = [page.index(f'src="pictures/{row["files"]}.png"') for row in rows]
    assert places == sorted(places)
    assert f'expected accuracy {100 * float(rows[0]["expected_accuracy"]):.1f} %' in page
    assert 'http' not in page
    worst = json.loads((out / 'scores' / f'{rows[0]["files"]}.json').read_text())
    doubtful = [o for o in worst['objects'] if o['found'] < 0.5]
    largest = max(doubtful, key=lambda o: o['pixels'])
    text = f'{len(doubtful)} of {len(worst["objects"])} objects probably have an IoU below 0.5'
    named = f'{largest["name"]} (no. {largest["object"]}, {100 * largest["found"]:.0f} %)'
    assert f'{text}, the largest: {named}' in page
    for row in rows:
        assert (out / 'pictures' / f'{row["files"]}.png').is_file()
