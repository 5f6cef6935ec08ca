"""What a test leaves in its work dir, as evidence of predictions of the same model alone."""

import json

import pytest
import torch
from commands import call_here
from file_models import CLASSIFIER, write_labelled, write_model, write_photos
from tiny_models import classifier

import mmcalib

HEAD = CLASSIFIER['model']['head']


@pytest.fixture(scope='module')
def photos(tmp_path_factory):
    return write_photos(tmp_path_factory.mktemp('photos'), [(24, 36), (24, 36), (30, 20)])


@pytest.fixture
def classifying(photos, tmp_path):
    config, checkpoint = write_model(tmp_path, CLASSIFIER, classifier(HEAD))
    return write_labelled(tmp_path, config, photos), checkpoint


@pytest.fixture
def tested(tmp_path, monkeypatch):
    """Test into the work dir of the validation."""

    def call(*arguments):
        call_here('test.py', *arguments, '--work-dir', tmp_path / 'val', monkeypatch=monkeypatch)

    return call


def refused(photos, classifying, tmp_path, text):
    with pytest.raises(ValueError, match=text):
        mmcalib.predict(*classifying, photos, validation=tmp_path / 'val')


def interrupted(*_, **__):
    raise KeyboardInterrupt


def save_again(checkpoint, seed=0, **meta):
    content = torch.load(checkpoint, weights_only=False)
    content['state_dict'] = classifier(HEAD, seed=seed).state_dict()
    torch.save({**content, 'meta': content['meta'] | meta}, checkpoint)


def test_the_same_path_with_other_weights_is_another_model(
    photos, classifying, tested, tmp_path
):
    tested(*classifying, '--calibration')
    found = mmcalib.predict(*classifying, photos, validation=tmp_path / 'val')
    assert found.scores.validation_images == 5
    moved = tmp_path / 'moved.pth'
    moved.write_bytes((tmp_path / 'best.pth').read_bytes())
    mmcalib.predict(classifying[0], str(moved), photos, validation=tmp_path / 'val')
    save_again(classifying[1], seed=1)
    refused(photos, classifying, tmp_path, r'best\.pth: the content of the file was \w{16}, and is')
    save_again(classifying[1], seed=1, epoch=4)
    refused(photos, classifying, tmp_path, 'the epoch was 3, not 4')


def test_two_temperatures_of_one_checkpoint_are_two_models(
    photos, classifying, tested, tmp_path
):
    said = dict(method='temperature', options={}, split='val', forced=[])
    save_again(classifying[1], calibration=said | dict(parameters={'temperature': 2.0}))
    tested(*classifying, '--calibration')
    other = tmp_path / 'other.pth'
    other.write_bytes((tmp_path / 'best.pth').read_bytes())
    save_again(other, calibration=said | dict(parameters={'temperature': 3.0}))
    refused(photos, (classifying[0], str(other)), tmp_path, 'the content of the file was')


def test_an_older_version_told_checkpoints_by_their_paths(photos, classifying, tested, tmp_path):
    tested(*classifying, '--calibration')
    file = tmp_path / 'val/results.json'
    results = json.loads(file.read_text())
    file.write_text(json.dumps({'checkpoint': results['checkpoint'], 'seed': 7}))
    mmcalib.predict(*classifying, photos, validation=tmp_path / 'val')


def test_a_test_that_measures_no_calibration_leaves_none(photos, classifying, tested, tmp_path):
    tested(*classifying, '--calibration')
    earlier = (tmp_path / 'val/calibration.npz').read_bytes()
    save_again(classifying[1], seed=1)
    tested(*classifying)
    with pytest.raises(FileNotFoundError, match='no test has left'):
        mmcalib.predict(*classifying, photos, validation=tmp_path / 'val')
    (tmp_path / 'val/calibration.npz').write_bytes(earlier)
    refused(photos, classifying, tmp_path, r'results\.json, which measured no calibration')


def test_statistics_of_a_test_that_was_killed_are_not_those_of_the_one_before(
    photos, classifying, tested, tmp_path, monkeypatch
):
    tested(*classifying, '--calibration')
    save_again(classifying[1], seed=1)
    with monkeypatch.context() as patch, pytest.raises(SystemExit, match='Stopped'):
        patch.setattr('mmcalib.runs.runner.results_of', interrupted)
        tested(*classifying, '--calibration')
    refused(photos, classifying, tmp_path, 'which was stopped before it had written both')
