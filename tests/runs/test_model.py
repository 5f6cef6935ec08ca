"""Tests and calibrations of the mean of several predictions: members, views, dropout."""

import csv
import json
import pickle
import shutil
from pathlib import Path

import pytest
import torch
from commands import ROOT
from forked import run_forked
from mmengine.config import Config
from mmengine.registry import DATASETS, MODELS, init_default_scope
from records import member, write

from mmcalib.errors import UserError
from mmcalib.reports.reported_runs import find_runs
from mmcalib.runs.config import load_config
from mmcalib.runs.facts import config_facts, is_finished
from mmcalib.runs.model import check_counted_once
from mmcalib.runs.run_config import set_views

DIGITS = str(ROOT / 'configs/ce/digits.py')
SCENES = str(ROOT / 'configs/ce/digit_scenes.py')
FEW = ['--cfg-options', 'test_dataloader.dataset.indices=5', 'val_dataloader.dataset.indices=6']
NOTHING_DRAWN = [
    'default_hooks.reliability_diagram.splits=[]',
    'default_hooks.confidence_map.interval=0',
    'default_hooks.confidence_map.worst=0',
]


def write_members(folder, config, count):
    """Write checkpoints of untrained networks whose logits are large enough to matter."""
    cfg = load_config(config)
    init_default_scope(cfg.default_scope)
    paths = []
    for seed in range(count):
        torch.manual_seed(seed)
        model = MODELS.build(cfg.model)
        for name, parameter in model.named_parameters():
            if name in ('head.fc.weight', 'decode_head.conv_seg.weight'):
                torch.nn.init.normal_(parameter, std=1.0)
        path = folder / f'member{seed}.pth'
        meta = {'seed': seed, 'epoch': 3, 'facts': config_facts(cfg)}
        torch.save({'state_dict': model.state_dict(), 'meta': meta}, path)
        paths.append(path)
    return paths


@pytest.fixture(scope='module')
def digits(tmp_path_factory):
    return write_members(tmp_path_factory.mktemp('digits'), DIGITS, 3)


@pytest.fixture(scope='module')
def scenes(tmp_path_factory):
    return write_members(tmp_path_factory.mktemp('scenes'), SCENES, 2)


def read_results(folder):
    """Return the record of the only test below a folder."""
    (path,) = Path(folder).rglob('results.json')
    return json.loads(path.read_text())


def reported_label(folder):
    return find_runs([folder])[0][0].label


def model_and_samples(config, checkpoint):
    """Return the network of a checkpoint, and the first test samples by its config."""
    cfg = load_config(config)
    init_default_scope(cfg.default_scope)
    preprocessor = cfg.model.get('data_preprocessor') or cfg.data_preprocessor
    model = MODELS.build({**cfg.model, 'data_preprocessor': preprocessor}).eval()
    model.load_state_dict(torch.load(checkpoint, weights_only=False)['state_dict'])
    dataset = DATASETS.build({**cfg.test_dataloader.dataset, 'indices': 5})
    return model, [dataset[index] for index in range(5)]


def member_probabilities(members, index):
    """Return the class probabilities of an image by each network, ``(M, K)``."""
    probs = []
    for model, samples in members:
        sample = samples[index]
        batch = {'inputs': sample['inputs'][None], 'data_samples': [sample['data_samples']]}
        with torch.no_grad():
            probs.append(model.test_step(batch)[0].pred_score)
    return torch.stack(probs)


def read_disagreement(folder):
    """Return the images and their mutual information in a ``disagreement.csv``."""
    with Path(folder, 'disagreement.csv').open() as file:
        rows = list(csv.DictReader(file))
    images = [row['image'] for row in rows]
    return images, [float(row['mutual_information']) for row in rows]


def test_test_three_members_equals_their_mean(digits, run, tmp_path):
    arguments = ['test.py', DIGITS, *digits, '--disagreement', 'apart', '--out', 'p.pkl', *FEW]
    assert 'CE × 3' in run(*arguments)
    predictions = pickle.loads((tmp_path / 'p.pkl').read_bytes())
    networks = [model_and_samples(DIGITS, path) for path in digits]
    for index, prediction in enumerate(predictions):
        probs = member_probabilities(networks, index)
        mean = probs.mean(dim=0)
        torch.testing.assert_close(prediction['pred_score'], mean)
        assert prediction['pred_label'] == mean.argmax()
        mean_entropy = torch.special.entr(probs).sum(dim=1).mean()
        expected = torch.special.entr(mean).sum() - mean_entropy
        actual = prediction['mutual_information']
        torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-6)
    _, information = read_disagreement('apart')
    expected = [float(prediction['mutual_information']) for prediction in predictions]
    assert information == pytest.approx(expected)
    folder = tmp_path / 'work_dirs/ce/digits'
    assert [path.name.split('-')[0] for path in folder.iterdir()] == ['x3']
    record = read_results(folder)
    mean_information = record['metrics']['disagreement/mutual_information']
    assert mean_information == pytest.approx(sum(information) / 5)
    members = record['model']['members']
    assert [member['seed'] for member in members] == [0, 1, 2]
    assert [member['checkpoint'] for member in members] == list(map(str, digits))
    assert record['evaluation']['tta'] is False
    assert reported_label(folder) == 'CE × 3'


@pytest.mark.parametrize(('iterations', 'refused'), [((8, 16), False), ((8, 8), True)])
def test_checkpoints_of_other_iterations_are_other_members(iterations, refused):
    """A training by iterations has no epoch that would tell its checkpoints apart."""
    calibrations = ({'methods': ['temperature']}, None)
    members = [
        member(f'{digest}.pth', digest=digest, epoch=None, iteration=step, calibration=calibration)
        for digest, step, calibration in zip('ab', iterations, calibrations, strict=True)
    ]
    if not refused:
        check_counted_once(members)
        return
    with pytest.raises(UserError, match='are one checkpoint, calibrated differently'):
        check_counted_once(members)


def test_test_segmentor_views_equal_mean_over_scales(scenes, run, tmp_path):
    arguments = ['test.py', SCENES, scenes[0], '--tta-scales', 0.8, 1, '--out', 'p.pkl', *FEW]
    assert 'CE + TTA (4)' in run(*arguments)
    _, samples = model_and_samples(SCENES, scenes[0])
    predictions = pickle.loads((tmp_path / 'p.pkl').read_bytes())
    for sample, prediction in zip(samples, predictions, strict=True):
        total_probability = prediction['seg_logits']['data'].exp().sum(dim=0)
        assert total_probability.allclose(torch.ones(40, 40))
        expected = sample['data_samples'].gt_sem_seg.data
        assert torch.equal(prediction['gt_sem_seg']['data'], expected)
    record = read_results(tmp_path / 'work_dirs/ce/digit_scenes')
    assert {'mIoU', 'calibration/ECE'} <= record['metrics'].keys()
    # The record has the pipelines of the images before their views, with and without labels.
    (pipeline,) = record['evaluation']['pipeline']
    assert 'TestTimeAug' not in str(pipeline)
    assert 'Annotation' not in str(record['model'])


def test_test_two_processes_equals_one(scenes, run, tmp_path, free_port):
    options = [
        *('--tta-scales', 1, '--mc-dropout', 2, '--dropout-seed', 4, *FEW),
        *('val_dataloader.batch_size=2', 'test_dataloader.batch_size=2', *NOTHING_DRAWN),
        'model.decode_head.dropout_ratio=0.5',
    ]
    run('calibrate.py', SCENES, *scenes, '--out', 't.json', *options)
    options = ['--temperature', 't.json', *options]
    run('test.py', SCENES, *scenes, '--work-dir', 'one', '--disagreement', 'one', *options)
    run_forked(
        'test.py', SCENES, scenes[0], '--work-dir', 'two', scenes[1], '--disagreement', 'two',
        *options, cwd=tmp_path, ranks=2, port=free_port,
    )  # fmt: skip
    expected_metrics = read_results('one')['metrics']
    actual_metrics = read_results('two')['metrics']
    assert actual_metrics == pytest.approx(expected_metrics, rel=1e-4, nan_ok=True)
    assert reported_label('two') == 'CE × 2 + TTA (2) + MC dropout (2) + temperature'
    expected_images, expected_information = read_disagreement('one')
    actual_images, actual_information = read_disagreement('two')
    assert actual_images == expected_images
    assert len(actual_images) == 5
    assert actual_information == pytest.approx(expected_information, rel=1e-4)
    assert min(actual_information) > 0


def test_calibrate_mean_temperature_read_by_test(digits, run, tmp_path, monkeypatch):
    loaded_files = []
    load = torch.load

    def load_counted(file, *args, **options):
        loaded_files.append(file)
        return load(file, *args, **options)

    monkeypatch.setattr(torch, 'load', load_counted)
    output = run('calibrate.py', DIGITS, *digits, '--out', 't.json', '--test', *FEW)
    assert 't.json' in output
    record = json.loads((tmp_path / 't.json').read_text())
    assert record['fitted']['after']['NLL'] < record['fitted']['before']['NLL']
    reversed_digits = digits[::-1]
    options = [*FEW, "test_evaluator.1.metrics=['NLL','ECE']"]
    run('test.py', DIGITS, *reversed_digits, '--temperature', 't.json', *options)
    # Each command reads each file once.
    assert loaded_files == [str(path) for path in [*digits, *reversed_digits]]
    folder = tmp_path / 'work_dirs/ce/digits'
    metrics = read_results(folder)['metrics']
    expected = record['tested']['after']
    for name in ('NLL', 'ECE'):
        assert metrics[f'calibration/{name}'] == pytest.approx(expected[name], rel=1e-5)
    assert reported_label(folder) == 'CE × 3 + temperature'
    # The file tells that its images are tested, whatever the config of the test validates on.
    loaders = ['val_dataloader.dataset.split=test', 'test_dataloader.dataset.split=val']
    fitted_images = ['test_dataloader.dataset.indices=6', 'val_dataloader.dataset.indices=5']
    arguments = [*digits, '--temperature', 't.json', '--work-dir', 'others', '--cfg-options']
    run('test.py', DIGITS, *arguments, *loaders, *fitted_images)
    assert read_results('others')['fitted_images'] == 6
    # The temperature holds for these predictions only.
    of_two = run('test.py', DIGITS, *digits[:2], '--temperature', 't.json', code=2)
    assert 'another model' in of_two
    of_views = run('test.py', DIGITS, *digits, '--tta', '--temperature', 't.json', code=2)
    assert 'views [] (here: [[' in of_views


def test_test_temperature_of_other_file_refused(digits, run):
    Path('empty.json').write_text('{}')
    for path in (digits[0], 'empty.json'):
        error = run('test.py', DIGITS, *digits, '--temperature', path, code=2)
        assert 'tools/calibrate.py' in error


def test_calibrate_mean_into_checkpoint_refused(digits, run):
    assert '.json' in run('calibrate.py', DIGITS, *digits, '--out', 't.pth', code=2)


def test_test_members_of_two_configs_equal_their_mean(digits, run, tmp_path):
    Path('other.py').write_text(
        f"_base_ = '{DIGITS}'\ndata_preprocessor = dict(mean=[0.5], std=[0.25])\n"
        "model = dict(head=dict(loss=dict(type='LabelSmoothingLoss', alpha=0.1, _delete_=True)))\n"
    )
    _, other = write_members(tmp_path, 'other.py', 2)
    other = other.rename(tmp_path / 'other.pth')
    # EMAHook must not put the weights of the last member into the first.
    Path('first.py').write_text(f"_base_ = '{DIGITS}'\ncustom_hooks = [dict(type='EMAHook')]\n")
    run('test.py', f'first.py:{digits[0]}', f'other.py:{other}', '--out', 'p.pkl', *FEW)
    networks = [model_and_samples(DIGITS, digits[0]), model_and_samples('other.py', other)]
    for index, prediction in enumerate(pickle.loads(Path('p.pkl').read_bytes())):
        expected = member_probabilities(networks, index).mean(dim=0)
        torch.testing.assert_close(prediction['pred_score'], expected)
    assert reported_label(tmp_path / 'work_dirs/first') == 'CE & LS α=0.1 × 2'
    # By itself it is tested as well, with a warning.
    output = run('test.py', DIGITS, other, *FEW)
    assert "{'mean': [0.5], 'std': [0.25]}" in output


TO_9 = (
    "pipeline = [dict(type='Resize', scale=(9, 9)), dict(type='PackInputs')]\n"
    'test_dataloader = dict(dataset=dict(pipeline=pipeline))\n'
)
WIDE = 'model = dict(backbone=dict(base_channels=16), head=dict(in_channels=64))\n'


@pytest.mark.parametrize(
    ('arguments', 'message'),
    [
        (['--mc-dropout', 2, *FEW], 'member 1 has no dropout layer'),
        (['--disagreement', 'apart'], '--disagreement requires several predictions'),
        (['--tta-scales', -1], '--tta-scales must be'),
        (['--tta', '--show-dir', 'drawn'], 'leave out --tta'),
        (['--temperature', 'none.json'], 'none.json'),
    ],
)
def test_test_options_of_one_network_refused(arguments, message, digits, run):
    assert message in run('test.py', DIGITS, digits[0], *arguments, code=2)


def test_test_member_given_twice_refused(digits, run, tmp_path):
    shutil.copy(digits[0], tmp_path / 'copy.pth')
    error = run('test.py', DIGITS, digits[0], 'copy.pth', code=2)
    assert 'member0.pth and copy.pth have the same weights' in error


@pytest.mark.parametrize(
    ('config', 'change', 'message'),
    [
        (SCENES, '', 'prepares the images of test differently'),
        (DIGITS, TO_9, 'other.py prepares the images of test differently'),
        (DIGITS, 'model = dict(head=dict(num_classes=7))', 'member 2 has 7 classes'),
        (DIGITS, WIDE, 'member1.pth: the checkpoint does not fit'),
        (DIGITS, 'data_preprocessor = dict(mean=[0.5], std=[0.25])', 'as CONFIG.py:'),
    ],
)
def test_test_member_of_config_that_does_not_fit_refused(config, change, message, digits, run):
    Path('other.py').write_text(f"_base_ = '{config}'\n{change}\n")
    error = run('test.py', DIGITS, digits[0], f'other.py:{digits[1]}', code=2)
    assert message in error


def test_test_each_model_has_own_folder(digits, run, tmp_path):
    shutil.copy(digits[0], tmp_path / 'copy.pth')
    for arguments in ([digits[0]], [digits[0]], ['copy.pth'], [digits[0], '--tta']):
        run('test.py', DIGITS, *arguments, *FEW)
    folders = sorted(path.parent.name for path in tmp_path.rglob('results.json'))
    digests = dict(folder.split('-') for folder in folders)
    assert list(digests) == ['copy', 'member0', 'member0_tta']
    assert digests['copy'] == digests['member0']
    assert digests['member0_tta'] != digests['member0']


LOAD = dict(type='LoadImageFromFile')
PACK = dict(type='PackSegInputs')
FLIPS = [dict(type='RandomFlip', prob=1.0)]
TTA_PIPELINE = [LOAD, dict(type='TestTimeAug', transforms=[FLIPS, [PACK]])]


def views_config(scope, **options):
    """Return a config whose only pipeline lies within two datasets."""
    dataset = dict(type='ConcatDataset', datasets=[dict(pipeline=[LOAD, PACK])])
    loader = dict(dataset=dict(type='RepeatDataset', dataset=dataset))
    return Config(dict(default_scope=scope, test_dataloader=loader) | options)


@pytest.mark.parametrize(
    ('scope', 'options', 'scales', 'expected'),
    [
        ('mmseg', {}, None, [[1, 0.75, 1.25], [0, 1]]),
        ('mmpretrain', {}, None, [[0, 1]]),
        ('mmseg', dict(tta_pipeline=TTA_PIPELINE), [0.5, 1.0], [[1, 0.5], [0, 1]]),
        ('mmseg', dict(tta_pipeline=TTA_PIPELINE, tta_model=dict(type='SegTTAModel')), None, []),
    ],
)
def test_set_views_takes_tta_pipeline_or_scales(scope, options, scales, expected):
    """The views are the scales and flips that are combined; a step without a choice is none."""
    cfg = views_config(scope, **options)
    views = []
    for choices in set_views(cfg, 'test', scales):
        option = 'prob' if choices[0]['type'] == 'RandomFlip' else 'scale_factor'
        views.append([choice[option] for choice in choices])
    assert views == expected
    first_step, augmentation = cfg.test_dataloader.dataset.dataset.datasets[0].pipeline
    assert first_step == LOAD
    assert augmentation['transforms'][-1] == [PACK]


@pytest.mark.parametrize(
    ('options', 'scales', 'message'),
    [
        ({}, [0.8, 1.2], r'--tta-scales 0\.8 1\.2: .*add 1'),
        (dict(tta_model=dict(type='MyMerging')), None, 'MyMerging'),
        (dict(test_dataloader=dict(dataset={})), None, 'no pipeline'),
    ],
)
def test_set_views_that_cannot_be_merged_refused(options, scales, message):
    with pytest.raises(UserError, match=message):
        set_views(views_config('mmseg', **options), 'test', scales)


def test_test_checkpoint_beside_its_calibration_refused(digits, run, tmp_path):
    run('calibrate.py', DIGITS, digits[0], '--out', 'calibrated.pth', '--limit', 200, *FEW)
    error = run('test.py', DIGITS, digits[0], 'calibrated.pth', *FEW, code=2)
    assert 'calibrated.pth are one checkpoint' in error
    output = run('test.py', DIGITS, digits[1], 'calibrated.pth', *FEW)
    assert 'CE × 2 (1 of them + temperature)' in output


def test_test_checkpoint_calibrated_twice_records_both_and_original(digits, run):
    # This tells that the training of the original has ended.
    (digits[0].parent / 'last_checkpoint').write_text('epoch_30.pth')
    limited = ['--limit', 200, *FEW]
    run('calibrate.py', DIGITS, digits[0], '--out', 'once.pth', *limited)
    run('calibrate.py', DIGITS, 'once.pth', '--out', 'twice.pth', '--force', *limited)
    run('test.py', DIGITS, 'twice.pth', '--work-dir', 'tested', *FEW)
    (member,) = read_results('tested')['model']['members']
    assert member['calibration']['methods'] == ['temperature', 'temperature']
    assert member['calibration']['forced']
    assert member['file'] == 'member0.pth'
    assert member['finished'] is True


def test_is_finished_by_record_or_last_checkpoint(tmp_path):
    def ended(max_epochs, **calibration):
        training = dict(train_cfg=dict(max_epochs=max_epochs))
        return is_finished(str(tmp_path / 'best.pth'), training, calibration)

    # Without other files, the record of a calibration tells.
    assert ended(9) is None
    assert ended(9, finished=True) is True
    # The last checkpoint tells by its number.
    (tmp_path / 'last_checkpoint').write_text('/elsewhere/epoch_8.pth')
    assert ended(9, finished=True) is False
    assert ended(8) is True
    assert ended(None) is None
    # A record tells, but not one of another version, which lacks keys.
    (tmp_path / 'results.json').write_text('{"metrics": {}, "model": {"members": [{}]}}')
    assert ended(9) is False
    write(tmp_path, 'ce/digits', name='results_val.json')
    assert ended(9) is True
