"""What a test leaves in its work dir, as evidence of predictions of the same model alone."""

import json
import shutil

import pytest
from commands import call_here
from file_models import CLASSIFIER, write_labelled, write_model, write_photos
from tiny_models import classifier

import mmcalib
from mmcalib.checks import UserError

HEAD = CLASSIFIER['model']['head']


@pytest.fixture(scope='module')
def photos(tmp_path_factory):
    return write_photos(tmp_path_factory.mktemp('photos'), [(24, 36), (24, 36), (30, 20)])


@pytest.fixture(scope='module')
def first_test(photos, tmp_path_factory):
    folder = tmp_path_factory.mktemp('first')
    config, checkpoint = write_model(folder, CLASSIFIER, classifier(HEAD))
    config = write_labelled(folder, config, photos)
    with pytest.MonkeyPatch.context() as patch:
        arguments = [config, checkpoint, '--calibration', '--work-dir', folder / 'val']
        call_here('test.py', *arguments, monkeypatch=patch)
    return config, folder


@pytest.fixture
def model(first_test, tmp_path):
    """Config and checkpoint, with the work dir ``val`` of its test."""
    config, folder = first_test
    shutil.copytree(folder / 'val', tmp_path / 'val')
    shutil.copy(folder / 'best.pth', tmp_path)
    return config, str(tmp_path / 'best.pth')


def change_results(folder, **changes):
    file = folder / 'val/results.json'
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def predict(model, photos, folder, **options):
    return mmcalib.predict(*model, photos, validation=folder / 'val', **options)


def test_a_copy_elsewhere_is_the_same_model(photos, model, tmp_path):
    assert predict(model, photos, tmp_path).scores.validation_images == 5
    shutil.move(tmp_path / 'best.pth', tmp_path / 'moved.pth')
    predict((model[0], str(tmp_path / 'moved.pth')), photos, tmp_path)


def test_a_test_that_measures_no_calibration_leaves_none(photos, model, tmp_path, monkeypatch):
    call_here('test.py', *model, '--work-dir', tmp_path / 'val', monkeypatch=monkeypatch)
    with pytest.raises(UserError, match='there is no calibration'):
        predict(model, photos, tmp_path)


def test_statistics_of_a_test_that_was_killed_are_not_those_of_the_one_before(
    photos, model, tmp_path, monkeypatch
):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(SystemExit, match='Stopped'):
        patch.setattr('mmcalib.record.Record.write', interrupted)
        arguments = [*model, '--calibration', '--work-dir', tmp_path / 'val']
        call_here('test.py', *arguments, '--cfg-options', "data_preprocessor.mean=[0,0,0]",
                  monkeypatch=patch)  # fmt: skip
    assert not (tmp_path / 'val/results.json').exists()
    with pytest.raises(ValueError, match='which belongs to calibration'):
        predict(model, photos, tmp_path)


def test_a_smoke_run_is_no_evidence(photos, model, tmp_path):
    file = tmp_path / 'val/results.json'
    evaluation = json.loads(file.read_text())['evaluation']
    change_results(tmp_path, evaluation=evaluation | dict(limit=5))
    with pytest.raises(ValueError, match='is from a smoke run with --limit'):
        predict(model, photos, tmp_path)
