"""Predictions of image files, by one model or the mean of several: against plain loops."""

import json
import re
import shutil
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from commands import ROOT
from file_models import (
    CLASSIFIER,
    SEGMENTOR,
    model_record,
    normalised_image,
    segmentor_input_size,
    write_labelled,
    write_model,
    write_photos,
    write_test_record,
    write_validation,
)
from mmengine.model import BaseModel
from mmengine.registry import MODELS
from tiny_models import classifier, fcn_head, segmentor

import mmcalib
from mmcalib.commands.predict.evidence import check_fitted_images
from mmcalib.errors import UserError
from mmcalib.members import tell_checkpoints_from_images
from mmcalib.metrics import CalibrationStatistics
from mmcalib.metrics.expected_accuracy import ExpectedAccuracy
from mmcalib.metrics.risk_threshold import threshold_at_risk
from mmcalib.openmmlab.datasets import Digits
from mmcalib.predictions.image_predictions import ImagePredictions
from mmcalib.predictions.objects import find_map_objects
from mmcalib.runs.config import load_config
from mmcalib.runs.facts import config_facts
from mmcalib.runs.record import Record

SIZES = [(24, 36), (24, 36), (24, 36), (30, 20), (24, 36)]


@pytest.fixture(scope='module')
def photos(tmp_path_factory):
    return write_photos(tmp_path_factory.mktemp('photos'), SIZES)


def probabilities(models, path, size, *, flips=(False,)):
    """The mean of segmentors' probabilities, ``(K, H, W)``, and its logits if it is of one."""
    inputs = normalised_image(path, segmentor_input_size(*size))
    mean = 0
    for model in models:
        for flip in flips:
            view = inputs.flip(3) if flip else inputs
            with torch.no_grad():
                logits = model.encode_decode(view, [dict(img_shape=view.shape[2:])])
            logits = logits.flip(3) if flip else logits
            logits = torch.nn.functional.interpolate(logits, size, mode='bilinear')[0]
            mean = mean + logits.softmax(0) / (len(models) * len(flips))
    return mean, logits


def test_predict_segmentor_equals_maps_and_objects_of_its_logits(photos, segmentors, segmenting):
    predictions = mmcalib.predict(*segmenting, photos, threshold=0.6)
    assert [str(image.image) for image in predictions.images] == list(
        map(str, sorted(photos.iterdir()))
    )
    for image, size in zip(predictions.images, SIZES, strict=True):
        row = image.row
        probs, logits = probabilities(segmentors[0][:1], image.image, size)
        conf, predicted = probs.max(0)
        assert np.array_equal(image.arrays['predicted'], predicted)
        np.testing.assert_allclose(image.arrays['confidence'], conf, atol=1e-5)
        assert row['confidence'] == pytest.approx(conf.mean().item(), abs=1e-5)
        assert row['kept'] == pytest.approx((conf > 0.6).double().mean().item(), abs=1e-9)
        assert row['expected_accuracy'] is row['label'] is None
        objects = find_map_objects(
            ImagePredictions(predicted=predicted[None], logits=logits[None].double())
        )
        np.testing.assert_array_equal(image.arrays['objects'], objects.number + 1)
        for index, item in enumerate(row['objects']):
            inside = torch.from_numpy(image.arrays['objects'] == index + 1)
            assert (item['object'], item['pixels']) == (index + 1, inside.sum())
            assert item['name'] == f'class {item["label"]}'
            assert set(predicted[inside].tolist()) == {item['label']}
            assert item['confidence'] == pytest.approx(conf[inside].mean().item(), abs=1e-5)
            assert item['expected_iou'] == pytest.approx(objects.expected_iou[index], abs=1e-5)
            assert item['share'] == pytest.approx(inside.double().mean().item())
            assert item['found'] is None
    mean = np.mean([row['confidence'] for row in predictions.rows])
    assert predictions.summary['confidence'] == pytest.approx(mean)
    assert (predictions.summary['num_images'], predictions.summary['threshold']) == (5, 0.6)


def test_predict_binary_segmentor_follows_its_threshold(photos, tmp_path):
    head = fcn_head(2, out_channels=1, threshold=0.3)
    config = dict(SEGMENTOR, model=dict(SEGMENTOR['model'], decode_head=head))
    (image, *_) = mmcalib.predict(*write_model(tmp_path, config, segmentor(head)), photos).images
    low = np.where(
        image.arrays['predicted'] == 1, image.arrays['confidence'], 1 - image.arrays['confidence']
    )
    assert set(np.unique(image.arrays['predicted'])) == {0, 1}
    assert np.array_equal(image.arrays['predicted'] == 1, low > 0.3)


@pytest.mark.parametrize('count', [1, 3])
def test_predict_classifier_equals_mean_of_members_and_views(count, photos, classifiers):
    models, config, checkpoints = classifiers
    options = dict(tta=True, disagreement=True) if count > 1 else {}
    predictions = mmcalib.predict(config, checkpoints[:count], photos, threshold=0.5, **options)
    assert len(predictions.images) == len(SIZES)
    for image in predictions.images:
        inputs = normalised_image(image.image)
        row = image.row
        views = [inputs, inputs.flip(3)] if count > 1 else [inputs]
        with torch.no_grad():
            probs = [m(v, mode='tensor').softmax(1) for m in models[:count] for v in views]
        probs = torch.cat(probs)
        mean = probs.mean(0)
        np.testing.assert_allclose(image.arrays['probabilities'], mean, atol=1e-5)
        assert image.arrays['predicted'] == row['label'] == mean.argmax()
        assert row['name'] == f'class {mean.argmax()}' and row['objects'] == []
        assert image.arrays['confidence'] == pytest.approx(mean.max().item(), abs=1e-5)
        assert row['kept'] == float(mean.max() > 0.5)
        information = (probs * probs.log()).sum(1).mean() - (mean * mean.log()).sum()
        expected = pytest.approx(information.item(), abs=1e-4) if count > 1 else None
        assert row['mutual_information'] == expected


@pytest.mark.parametrize('has_tta_pipeline', [False, True])
def test_predict_segmentor_views_are_mirrored_back(photos, segmentors, tmp_path, has_tta_pipeline):
    models, config, checkpoints = segmentors
    if has_tta_pipeline:  # It has the steps for labels, as those of mmseg's configs.
        load, resize, label, pack = SEGMENTOR['test_dataloader']['dataset']['pipeline']
        flips = [dict(type='RandomFlip', prob=0.0), dict(type='RandomFlip', prob=1.0)]
        views = dict(type='TestTimeAug', transforms=[[resize], flips, [label], [pack]])
        (tmp_path / 'views.py').write_text(
            f'_base_ = {config!r}\ntta_pipeline = {[load, views]}\n'
            "tta_model = dict(type='SegTTAModel')\n"
        )
        config = str(tmp_path / 'views.py')
        options = {'tta': True}
    else:
        options = {'tta_scales': [1]}
    predictions = mmcalib.predict(config, checkpoints, photos, disagreement=True, **options)
    for image, size in zip(predictions.images, SIZES, strict=True):
        mean, _ = probabilities(models, image.image, size, flips=(False, True))
        conf, predicted = mean.max(0)
        assert np.array_equal(image.arrays['predicted'], predicted)
        np.testing.assert_allclose(image.arrays['confidence'], conf, atol=1e-5)
        assert image.arrays['mutual_information'].shape == size
        information = image.arrays['mutual_information'].mean()
        assert image.row['mutual_information'] == pytest.approx(information, rel=1e-5) != 0


def test_predict_broken_files_are_listed_and_others_predicted(
    photos, segmenting, tmp_path, monkeypatch
):
    good = sorted(photos.iterdir())
    (tmp_path / 'cut.png').write_bytes(good[0].read_bytes()[:200])
    (tmp_path / 'text.png').write_bytes(b'hello')
    files = [good[0], tmp_path / 'cut.png', good[1], tmp_path / 'text.png', *good[2:]]
    expected = mmcalib.predict(*segmenting, photos)
    predictions = mmcalib.predict(*segmenting, files)
    assert [item.image.name for item in predictions.unreadable] == ['cut.png', 'text.png']
    for one, other in zip(predictions.images, expected.images, strict=True):
        assert one.image == other.image
        np.testing.assert_allclose(one.arrays['confidence'], other.arrays['confidence'], atol=1e-6)
    with pytest.raises(UserError, match=r'none of the 1 files .*cut\.png: it is damaged'):
        mmcalib.predict(*segmenting, [tmp_path / 'cut.png'])

    step = BaseModel.test_step
    batch_sizes = []

    def limited(self, data):
        batch_sizes.append(len(data['inputs']))
        if len(data['inputs']) > 1 or data['inputs'][0].shape[1] > data['inputs'][0].shape[2]:
            raise torch.cuda.OutOfMemoryError('CUDA out of memory. Tried to allocate')
        samples = step(self, data)
        if samples[0].img_path.endswith('2.png'):
            samples[0].seg_logits.data[:] = float('nan')
        return samples

    monkeypatch.setattr(BaseModel, 'test_step', limited)
    predictions = mmcalib.predict(*segmenting, photos)
    assert [image.image.name for image in predictions.images] == ['0.png', '1.png', '4.png']
    broken, large = predictions.unreadable
    assert 'seg_logits of' in broken.reason and 'NaN' in broken.reason
    assert large.image.name == '3.png'
    assert large.reason == 'OutOfMemoryError: CUDA out of memory. Tried to allocate'
    assert batch_sizes == [2, 1, 1, 1, 1, 1]


def test_predict_with_validation_gives_expected_accuracies(
    photos, segmenting, classifiers, tmp_path
):
    predictions = mmcalib.predict(*segmenting, photos)
    val = tmp_path / 'val'
    bins = write_validation(val, model_record(*segmenting), predictions.images, unlabelled=100)
    accuracy = ExpectedAccuracy(bins)
    bound = threshold_at_risk(bins, 0.5)
    with_it = mmcalib.predict(*segmenting, photos, validation=val, risk=0.5)
    assert with_it.summary['bound']['found_risk'] == bound.observed_risk
    assert with_it.summary['threshold'] == bound.threshold
    with pytest.raises(UserError, match='either a risk or a threshold'):
        mmcalib.predict(*segmenting, photos, validation=val, risk=0.5, threshold=0.5)
    for image in with_it.images:
        expected = accuracy.image_accuracy(torch.from_numpy(image.arrays['confidence']))
        assert image.row['expected_accuracy'] == pytest.approx(expected)
        assert image.row['accuracy_interval'] == [*accuracy.image_interval(expected)]
        assert image.row['kept'] == pytest.approx(
            (image.arrays['confidence'] > bound.threshold).mean()
        )
    mean = np.mean([row['expected_accuracy'] for row in with_it.rows])
    assert with_it.summary['expected_accuracy'] == pytest.approx(mean)
    assert with_it.summary['accuracy_interval'] == [*accuracy.folder_interval(mean, 5)]
    share = (200 / (200 + bins[:, 0].sum(dim=1))).mean().item()
    assert with_it.summary['validation_unlabelled'] == pytest.approx(share)

    # An image of a classifier has no interval: it is right or wrong.
    _, config, checkpoints = classifiers
    predictions = mmcalib.predict(config, checkpoints, photos)
    write_validation(val, model_record(config, checkpoints[::-1]), predictions.images)
    predictions = mmcalib.predict(config, checkpoints, photos, validation=val)
    assert all(0 < row['expected_accuracy'] < 1 for row in predictions.rows)
    assert all(row['accuracy_interval'] == [None, None] for row in predictions.rows)
    low, high = predictions.summary['accuracy_interval']
    assert low < predictions.summary['expected_accuracy'] < high


def test_predict_unproven_risk_names_least_proven(photos, segmenting, tmp_path):
    predictions = mmcalib.predict(*segmenting, photos)
    val = tmp_path / 'val'
    bins = write_validation(val, model_record(*segmenting), predictions.images)
    proven = [
        percent
        for percent in range(1, 100)
        if threshold_at_risk(bins, percent / 100).threshold is not None
    ]
    assert proven[0] > 1
    with pytest.raises(UserError, match=rf'would prove {proven[0]} %'):
        mmcalib.predict(*segmenting, photos, validation=val, risk=(proven[0] - 1) / 100)
    mmcalib.predict(*segmenting, photos, validation=val, risk=proven[0] / 100)
    # Images that the scaling was fitted to prove nothing.
    file = val / 'results_val.json'
    file.write_text(json.dumps(json.loads(file.read_text()) | {'fitted_images': 3}))
    with pytest.raises(UserError, match='prove no risk of others'):
        mmcalib.predict(*segmenting, photos, validation=val, risk=proven[0] / 100)


@pytest.mark.parametrize(
    ('split', 'fitted_images', 'expected'),
    [
        ('val', None, True),  # Records of 0.4.0 do not have the number.
        ('test', None, False),
        ('test', 3, True),  # The validation is the test under another name.
        ('val', 0, False),
    ],
)
def test_predict_validation_that_fitted_the_scaling_warns_and_proves_nothing(
    split, fitted_images, expected
):
    model = dict(members=[dict(calibration=dict(split='val'))], calibration=None)
    record = Record('x', split, model, {}, {}, fitted_images=fitted_images)
    file = Path('calibration.npz')
    if expected:
        with pytest.warns(UserWarning, match='fitted to images of the test in calibration.npz'):
            check_fitted_images(record, file, None)
        with pytest.raises(UserError, match='prove no risk of others: test other images'):
            check_fitted_images(record, file, 0.1)
        return
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        check_fitted_images(record, file, None)
        check_fitted_images(record, file, 0.1)


def test_predict_validation_of_other_model_refused(photos, segmenting, classifiers, tmp_path):
    images = mmcalib.predict(*segmenting, photos).images
    val = tmp_path / 'val'
    segmentor_record = model_record(*segmenting)
    (member,) = segmentor_record['members']
    unsaved = member | dict(checkpoint='last weights')
    pipeline = [dict(type='LoadImageFromFile'), dict(type='PackSegInputs')]
    _, config, checkpoints = classifiers
    mean_record = model_record(config, checkpoints)
    single_record = model_record(config, checkpoints[:1])
    mean = (config, checkpoints)
    single = (config, checkpoints[0])
    # The model that predicts, the record of the validation, and what the error names.
    for model, record, message in (
        (
            segmenting,
            segmentor_record | dict(members=[unsaved | dict(seed=2)]),
            r'seed 2 \(here: 1',
        ),
        (segmenting, segmentor_record | dict(members=[member | dict(digest='0' * 16)]), 'digest 0'),
        (segmenting, segmentor_record | dict(pipeline=pipeline), 'pipeline'),
        (mean, mean_record | dict(mc_dropout=4), r'mc_dropout 4 \(here: 0\)'),
        (mean, mean_record | dict(temperature=1.5), r'temperature 1\.5 \(here: None\)'),
        (single, mean_record, 'it has 3 members, and not 1'),
        # The mean of the views of a checkpoint is another model.
        (single, single_record | dict(views=[['a', 'b']]), 'views'),
    ):
        write_validation(val, record, images, images=3)
        with pytest.raises(ValueError, match=message):
            mmcalib.predict(*model, photos, validation=val)
    write_validation(val, segmentor_record, images, images=3, tta=True)
    with pytest.raises(ValueError, match='measured under test-time augmentation'):
        mmcalib.predict(*segmenting, photos, validation=val)
    write_validation(val, segmentor_record | dict(members=[unsaved]), images, images=3)
    mmcalib.predict(*segmenting, photos / '0.png', validation=val)
    with pytest.raises(ValueError, match=r'no threshold is proven to keep at most 5 % .* 3 images'):
        mmcalib.predict(*segmenting, photos, validation=val, risk=0.05)
    CalibrationStatistics({}, 'paper', 15, torch.zeros(3, 1)).save(val / 'calibration_val.npz')
    with pytest.raises(ValueError, match=r"no statistics for each image: its protocol, 'paper'"):
        mmcalib.predict(*segmenting, photos, validation=val)
    write_test_record(val, segmentor_record, limit=5)
    with pytest.raises(ValueError, match='is from a smoke run with --limit'):
        mmcalib.predict(*segmenting, photos, validation=val)
    (val / 'results_val.json').unlink()
    with pytest.raises(UserError, match=r'results_val\.json, which belongs to'):
        mmcalib.predict(*segmenting, photos, validation=val)


def test_predict_validation_of_copied_checkpoints_accepted(
    photos, classifiers, run, tmp_path, monkeypatch
):
    _, config, checkpoints = classifiers
    config = write_labelled(tmp_path, config, photos)
    val = tmp_path / 'val'
    test = ['test.py', config, *checkpoints[:2], '--tta', '--work-dir', val]
    run(*test, '--calibration')
    copies = [shutil.copy(path, tmp_path) for path in checkpoints[1::-1]]
    options = dict(images=photos, tta=True, validation=val)
    assert mmcalib.predict(config, copies, **options).summary['validation_images'] == 5
    with pytest.raises(UserError, match='was made with another model than'):
        mmcalib.predict(config, copies[:1], **options)

    # Statistics of a test that was killed are not those of the one before.
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    other_mean = ['--cfg-options', 'data_preprocessor.mean=[0,0,0]']
    with monkeypatch.context() as patch:
        patch.setattr('mmcalib.runs.record.Record.write', interrupted)
        assert 'Stopped' in run(*test, '--calibration', *other_mean, code=1)
    with pytest.raises(ValueError, match='which belongs to calibration'):
        mmcalib.predict(config, copies, **options)
    # A test that measures no calibration leaves none.
    run(*test)
    with pytest.raises(UserError, match='there is no calibration'):
        mmcalib.predict(config, copies, **options)


@pytest.mark.parametrize(
    ('options', 'text'),
    [
        (dict(treshold=0.5), "unexpected keyword argument 'treshold'"),
        (dict(risk=0.05), 'a risk requires a validation'),
        (dict(threshold=1.5), r'threshold must be in \[0, 1\], got 1.5'),
        (dict(workers=-1), 'num_workers option should be non-negative'),
        (dict(device='gpu'), 'device gpu: Expected one of cpu, '),
        (dict(device='cuda:99'), 'device cuda:99: '),
    ],
)
def test_predict_invalid_option_raises(photos, segmenting, options, text):
    with pytest.raises((TypeError, ValueError), match=text):
        mmcalib.predict(*segmenting, photos, **options)


def test_predict_members_that_do_not_fit_refused(photos, classifiers, tmp_path):
    _, config, checkpoints = classifiers
    content = torch.load(checkpoints[1], weights_only=False)
    content['meta']['dataset_meta'] = {'classes': [f'class {k}' for k in (1, 0, 2, 3, 4)]}
    torch.save(content, tmp_path / 'other.pth')
    with pytest.raises(UserError, match="class 0 is 'class 0', not 'class 1'"):
        mmcalib.predict(config, [checkpoints[0], str(tmp_path / 'other.pth')], photos)
    content['meta'] = {
        'CLASSES': content['meta']['dataset_meta']['classes']
    }  # as OpenMMLab 0.x has them
    torch.save(content, tmp_path / 'other.pth')
    with pytest.raises(UserError, match="class 0 is 'class 0', not 'class 1'"):
        mmcalib.predict(config, [checkpoints[0], str(tmp_path / 'other.pth')], photos)
    head = dict(type='MultiLabelLinearClsHead', num_classes=5, in_channels=8)
    config = dict(CLASSIFIER, model=dict(CLASSIFIER['model'], head=head))
    with pytest.raises(ValueError, match='each class by a sigmoid'):
        mmcalib.predict(*write_model(tmp_path, config, classifier(head)), photos)


@pytest.mark.parametrize('split', ['train', 'val', 'test'])
@pytest.mark.parametrize('told_by', ['folders', 'names'])
def test_predict_classes_in_other_order_than_of_config_refused(
    told_by, split, photos, classifiers, tmp_path
):
    """A label is the place of its folder or name, so images would get another class's name."""
    _, config, checkpoints = classifiers
    dataset = dict(type='CustomDataset', pipeline=[dict(type='LoadImageFromFile')])
    names = [f'class {k}' for k in (1, 0, 2, 3, 4)]
    if told_by == 'folders':
        write_labelled(tmp_path, config, photos)
        dataset |= dict(data_root=str(tmp_path), data_prefix='images')
        content = torch.load(checkpoints[0], weights_only=False)
        content['meta']['dataset_meta'] = {'classes': names}
        checkpoint = str(tmp_path / 'other.pth')
        torch.save(content, checkpoint)
        message = "class 0 'class 1', which is class 1 "
    else:
        dataset |= dict(metainfo=dict(classes=names), data_root='gone')
        checkpoint = checkpoints[0]
        message = "class 0 'class 0', which is class 1 "
    dataset = dict(type='ConcatDataset', datasets=[dict(type='CIFAR10'), dataset])
    (tmp_path / 'mine.py').write_text(
        f'_base_ = {config!r}\n{split}_dataloader = dict(dataset=dict(_delete_=True, **{dataset}))'
    )
    with pytest.raises(UserError, match=rf'\.pth .*{message}of the {split} data'):
        mmcalib.predict(str(tmp_path / 'mine.py'), checkpoint, photos)


def test_predict_checkpoints_are_told_from_images(photos, segmenting):
    config, checkpoint = map(Path, segmenting)
    expected = mmcalib.predict(*segmenting, str(photos / '0.png')).summary['confidence']
    for checkpoints in (checkpoint, [checkpoint]):
        predictions = mmcalib.predict(config, checkpoints, photos / '0.png')
        assert predictions.summary['confidence'] == pytest.approx(expected)
    tell = tell_checkpoints_from_images
    assert tell('c.py', ['best', 'photos']) == (['best'], ['photos'])
    assert tell('c.py', ['a.pth', 'b.pth', 'x.jpg']) == (['a.pth', 'b.pth'], ['x.jpg'])
    assert tell('c.py', ['a', 'x.jpg', 'd.py:b']) == (['a', 'd.py:b'], ['x.jpg'])
    assert tell('c.py:a.pth', ['photos', 'b.pth']) == (['b.pth'], ['photos'])


def test_predict_digits_of_documentation_equal_mean(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = (ROOT / 'docs/howto/predict.md').read_text(encoding='utf-8')
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
        content = {'state_dict': model.state_dict(), 'meta': {'facts': config_facts(trained)}}
        torch.save(content, f'{seed}.pth')
        with torch.no_grad():
            expected += model((first[None, None] - 0.3) / 0.5, mode='tensor').softmax(1)[0] / 2
    file = next(Path('digits/test').rglob('0.png'))
    (image,) = mmcalib.predict('digit_files.py', ['0.pth', '1.pth'], file).images
    # The levels of the files are rounded.
    np.testing.assert_allclose(image.arrays['probabilities'], expected, atol=5e-3)
