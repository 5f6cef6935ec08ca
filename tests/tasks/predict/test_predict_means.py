"""Predictions of image files by the mean of several: against plain loops, and its evidence."""

import csv
import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from commands import ROOT, call_here
from file_models import (
    CLASSIFIER,
    SEGMENTOR,
    described,
    normalised,
    resized,
    write_labelled,
    write_model,
    write_photos,
    write_validation,
)
from mmengine.registry import MODELS
from tiny_models import classifier, fcn_head, segmentor

import mmcalib
from mmcalib.checks import UserError
from mmcalib.cli.files import tell_checkpoints_from_images
from mmcalib.datasets import Digits
from mmcalib.runs.config import load_config
from mmcalib.tasks.predict.predict import predict_to_folder

SIZES = [(24, 36), (24, 36), (30, 20)]
HEAD = CLASSIFIER['model']['head']


@pytest.fixture(scope='module')
def photos(tmp_path_factory):
    return write_photos(tmp_path_factory.mktemp('photos'), SIZES)


def write_members(folder, config, models):
    """Write a config and a checkpoint of each model."""
    members = []
    for number, model in enumerate(models):
        path, checkpoint = write_model(folder, config, model)
        members.append(str(folder / f'{number}.pth'))
        Path(checkpoint).rename(members[-1])
    return path, members


@pytest.fixture(scope='module')
def classifiers(tmp_path_factory):
    models = [classifier(HEAD, seed=seed) for seed in range(3)]
    return models, *write_members(tmp_path_factory.mktemp('classifiers'), CLASSIFIER, models)


@pytest.fixture(scope='module')
def segmentors(tmp_path_factory):
    models = [segmentor(fcn_head(), seed=seed) for seed in range(2)]
    return models, *write_members(tmp_path_factory.mktemp('segmentors'), SEGMENTOR, models)


def test_a_classifier_s_mean_is_that_of_members_and_mirror_images(photos, classifiers):
    models, config, checkpoints = classifiers
    found = mmcalib.predict(config, checkpoints, photos, tta=True, disagreement=True)
    assert len(found.images) == len(SIZES)
    for image in found.images:
        inputs = normalised(image.scores.image)
        with torch.no_grad():
            probs = torch.cat(
                [
                    model(view, mode='tensor').softmax(1)
                    for model in models
                    for view in (inputs, inputs.flip(3))
                ]
            )
        mean = probs.mean(0)
        np.testing.assert_allclose(image.probabilities, mean, atol=1e-5)
        assert image.predicted == int(mean.argmax())
        information = (probs * probs.log()).sum(1).mean() - (mean * mean.log()).sum()
        assert image.scores.mutual_information == pytest.approx(information.item(), abs=1e-4)
    alone = mmcalib.predict(config, checkpoints[0], photos)
    assert math.isnan(alone.images[0].scores.mutual_information)


@pytest.mark.parametrize('own_views', [False, True])
def test_a_segmentor_s_mean_is_brought_back_from_its_views(photos, segmentors, tmp_path, own_views):
    models, config, checkpoints = segmentors
    options = dict(tta_scales=[1])
    if own_views:  # with the steps for labels that mmseg's configs have there
        load, resize, label, pack = SEGMENTOR['test_dataloader']['dataset']['pipeline']
        flips = [dict(type='RandomFlip', prob=0.0), dict(type='RandomFlip', prob=1.0)]
        views = dict(type='TestTimeAug', transforms=[[resize], flips, [label], [pack]])
        (tmp_path / 'own.py').write_text(
            f'_base_ = {config!r}\ntta_pipeline = {[load, views]}\n'
            "tta_model = dict(type='SegTTAModel')\n"
        )
        config, options = str(tmp_path / 'own.py'), dict(tta=True)
    found = mmcalib.predict(config, checkpoints, photos, disagreement=True, **options)
    for image, size in zip(found.images, SIZES, strict=True):
        inputs, mean = normalised(image.scores.image, resized(*size)), 0
        for model in models:
            for flip in (False, True):
                view = inputs.flip(3) if flip else inputs
                with torch.no_grad():
                    logits = model.encode_decode(view, [dict(img_shape=view.shape[2:])])
                logits = logits.flip(3) if flip else logits
                logits = torch.nn.functional.interpolate(logits, size, mode='bilinear')[0]
                mean = mean + logits.softmax(0) / 4
        conf, predicted = mean.max(0)
        assert np.array_equal(image.predicted, predicted)
        np.testing.assert_allclose(image.confidence, conf, atol=1e-5)
        assert image.disagreement['mutual_information'].shape == size
        information = image.disagreement['mutual_information'].mean()
        assert image.scores.mutual_information == pytest.approx(information, rel=1e-5) != 0


def test_random_dropout_depends_on_the_image_and_the_seed_alone(photos, segmentors):
    _, config, (checkpoint, _) = segmentors
    options = dict(mc_dropout=3, cfg_options={'model.decode_head.dropout_ratio': 0.5})
    together = mmcalib.predict(config, checkpoint, photos, **options).images
    alone = mmcalib.predict(config, checkpoint, photos / '1.png', **options).images[0]
    np.testing.assert_allclose(together[1].confidence, alone.confidence, atol=1e-5)
    other = mmcalib.predict(config, checkpoint, photos / '1.png', dropout_seed=1, **options)
    assert np.abs(other.images[0].confidence - alone.confidence).max() > 0.01


def write_temperature(file, model):
    content = dict(temperature=2.0, model=model)
    content |= dict(method='temperature', options={}, split='val', forced=[])
    file.write_text(json.dumps(content))


def test_a_temperature_of_the_mean_is_applied(photos, classifiers, tmp_path):
    models, config, checkpoints = classifiers
    file = tmp_path / 't.json'
    write_temperature(file, described(config, checkpoints))
    options = dict(temperature=str(file))
    (image, *_) = mmcalib.predict(config, checkpoints[::-1], photos, **options).images
    inputs = normalised(image.scores.image)
    with torch.no_grad():
        mean = torch.cat([model(inputs, mode='tensor').softmax(1) for model in models]).mean(0)
    np.testing.assert_allclose(image.probabilities, (mean.log() / 2).softmax(0), atol=1e-5)
    with pytest.raises(ValueError, match=r't\.json was made with another model than'):
        mmcalib.predict(config, checkpoints[:2], photos, **options)


def test_a_validation_of_another_mean_is_refused(photos, classifiers, tmp_path):
    _, config, checkpoints = classifiers
    found, val = mmcalib.predict(config, checkpoints, photos).images, tmp_path / 'val'
    right = described(config, checkpoints[::-1])
    write_validation(val, right, found)
    with_it = mmcalib.predict(config, checkpoints, photos, validation=val)
    assert 0 < with_it.scores.expected_accuracy < 1
    alone = described(config, checkpoints[:1])
    for predicted, model, text in (
        (checkpoints, described(config, checkpoints[:2]), r'members .*\(here: '),
        (checkpoints, right | dict(mc_dropout=4), r'mc_dropout 4 \(here: 0\)'),
        (checkpoints, right | dict(temperature=1.5), r'temperature 1\.5 \(here: None\)'),
        (checkpoints[0], right, r'it has members .*\(here: '),
        # The same checkpoint, but of its views: its mean is another one.
        (checkpoints[0], alone | dict(views=[['a', 'b']]), 'views'),
    ):
        write_validation(val, model, found, images=3)
        with pytest.raises(ValueError, match=text):
            mmcalib.predict(config, predicted, photos, validation=val)


def test_what_a_test_of_a_mean_leaves_is_evidence_of_it(
    photos, classifiers, tmp_path, monkeypatch, capsys
):
    _, config, checkpoints = classifiers
    mean = [write_labelled(tmp_path, config, photos), *checkpoints[:2], '--tta']
    call_here('test.py', *mean, '--calibration', '--work-dir', tmp_path / 'val',
              monkeypatch=monkeypatch)  # fmt: skip
    out = ['--out', tmp_path / 'out', '--validation', tmp_path / 'val', '--disagreement']
    with pytest.raises(SystemExit) as ended:
        call_here('predict.py', *mean, tmp_path / 'images', *out, monkeypatch=monkeypatch)
    assert ended.value.code == 0
    assert 'the 5 of the validation' in capsys.readouterr().out
    with (tmp_path / 'out/predictions.csv').open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 5 and all(float(row['mutual_information']) > 0 for row in rows)
    with np.load(tmp_path / f'out/arrays/{rows[0]["files"]}.npz') as arrays:
        information = float(rows[0]['mutual_information'])
        assert arrays['mutual_information'] == pytest.approx(information)
    with pytest.raises(SystemExit) as ended:
        call_here('predict.py', *mean[:2], tmp_path / 'images', *out[:4], monkeypatch=monkeypatch)
    assert ended.value.code == 2
    assert ', not from ' in capsys.readouterr().err


def test_predictions_of_other_means_do_not_mix(photos, classifiers, tmp_path):
    _, config, checkpoints = classifiers
    options = dict(out=tmp_path / 'out', pictures=False)
    predict_to_folder(config, checkpoints[:2], [photos], tta=True, **options)
    again = predict_to_folder(config, checkpoints[1::-1], [photos], tta=True, **options)
    assert again.before == again.scores.num_images > 0  # as members have no order
    again = dict(checkpoint=checkpoints[:2], tta=True)
    for other, what in (
        (dict(checkpoint=checkpoints[:2]), 'views'),
        (dict(checkpoint=checkpoints, tta=True), 'members'),
        (again | dict(cfg_options={'model.head.topk': (1,)}), 'network'),
    ):
        with pytest.raises(ValueError, match=rf'has predictions with [\w.]*{what}'):
            predict_to_folder(config, images=[photos], **other, **options)


def test_members_of_other_classes_are_refused(photos, classifiers, tmp_path):
    _, config, checkpoints = classifiers
    content = torch.load(checkpoints[1], weights_only=False)
    content['meta']['dataset_meta'] = {'classes': [f'class {k}' for k in (1, 0, 2, 3, 4)]}
    torch.save(content, tmp_path / 'other.pth')
    with pytest.raises(UserError, match="class 0 is 'class 0', not 'class 1'"):
        mmcalib.predict(config, [checkpoints[0], str(tmp_path / 'other.pth')], photos)


def test_checkpoints_are_told_from_images():
    tell = tell_checkpoints_from_images
    assert tell('c.py', ['best', 'photos']) == (['best'], ['photos'])
    assert tell('c.py', ['a.pth', 'b.pth', 'x.jpg']) == (['a.pth', 'b.pth'], ['x.jpg'])
    assert tell('c.py', ['a', 'x.jpg', 'd.py:b']) == (['a', 'd.py:b'], ['x.jpg'])
    assert tell('c.py:a.pth', ['photos', 'b.pth']) == (['b.pth'], ['photos'])


def test_the_digits_of_the_documentation_can_be_averaged(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = (ROOT / 'docs/howto/images_without_labels.md').read_text(encoding='utf-8')
    blocks = re.findall(r'```python\n(.*?)```', text, re.DOTALL)
    (config,) = (block for block in blocks if block.startswith('# digit_files.py'))
    (images,) = (block for block in blocks if 'cv2.imwrite' in block)
    Path('digit_files.py').write_text(config.replace("'configs/", f"'{ROOT}/configs/"))
    exec(images, {})
    trained = load_config(str(ROOT / 'configs/ce/digits.py'))
    first = torch.from_numpy(Digits('test')[0]['img'])
    expected = 0
    for seed in (0, 1):
        torch.manual_seed(seed)
        with MODELS.switch_scope_and_registry(trained.default_scope) as registry:
            prepare = trained.data_preprocessor
            model = registry.build({**trained.model, 'data_preprocessor': prepare}).eval()
        content = {'state_dict': model.state_dict(), 'meta': {'cfg': trained.pretty_text}}
        torch.save(content, f'{seed}.pth')
        with torch.no_grad():
            expected += model((first[None, None] - 0.3) / 0.5, mode='tensor').softmax(1)[0] / 2
    file = next(Path('digits/test').rglob('0.png'))
    (image,) = mmcalib.predict('digit_files.py', ['0.pth', '1.pth'], file).images
    np.testing.assert_allclose(image.probabilities, expected, atol=5e-3)  # of rounded levels
