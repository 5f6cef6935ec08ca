"""tools/test.py and tools/calibrate.py on the mean of several predictions, from the outside."""

import csv
import json
import pickle
import shutil

import cv2
import numpy as np
import pytest
import torch
from commands import ROOT, call_here
from forked import call_forked
from mmengine.config import Config
from mmengine.registry import DATASETS, MODELS, init_default_scope

from mmcalib.cli.files import split_members
from mmcalib.reports.runs import find_runs
from mmcalib.runs.checkpoint import read_checkpoint
from mmcalib.runs.config import load_config
from mmcalib.runs.model import build, set_model, set_views

DIGITS = str(ROOT / 'configs/ce/digits.py')
SCENES = str(ROOT / 'configs/ce/digit_scenes.py')
DROPPING = 'model.decode_head.dropout_ratio=0.5'
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
        meta = {'seed': seed, 'cfg': cfg.pretty_text, 'epoch': 3}
        torch.save({'state_dict': model.state_dict(), 'meta': meta}, path)
        paths.append(path)
    return paths


@pytest.fixture(scope='module')
def digits(tmp_path_factory):
    return write_members(tmp_path_factory.mktemp('digits'), DIGITS, 3)


@pytest.fixture(scope='module')
def scenes(tmp_path_factory):
    return write_members(tmp_path_factory.mktemp('scenes'), SCENES, 2)


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Run a tool in this process, and return what it says."""
    monkeypatch.chdir(tmp_path)

    def call_tool(tool, *arguments, fails=False):
        if fails:
            with pytest.raises(SystemExit) as end:
                call_here(tool, *arguments, monkeypatch=monkeypatch)
            assert end.value.code == 2
            return capsys.readouterr().err
        call_here(tool, *arguments, monkeypatch=monkeypatch)
        return capsys.readouterr().out

    return call_tool


def results(folder):
    """What the only test below a folder has left."""
    (path,) = folder.rglob('results.json')
    return json.loads(path.read_text())


def label_of(folder):
    return find_runs([folder])[0][0].label


def alone(config, checkpoint, indices):
    """Return a member and the test images, in single batches."""
    cfg = load_config(config)
    init_default_scope(cfg.default_scope)
    model = MODELS.build({**cfg.model, 'data_preprocessor': preprocessor(cfg)}).eval()
    load(model, checkpoint)
    data = DATASETS.build({**cfg.test_dataloader.dataset, 'indices': indices})
    return model, [data[i] for i in range(indices)]


def load(model, checkpoint):
    model.load_state_dict(torch.load(checkpoint, weights_only=False)['state_dict'])


def preprocessor(cfg):
    return cfg.model.get('data_preprocessor') or cfg.data_preprocessor


def test_a_classifiers_ensemble_is_the_mean_of_its_members(digits, run, tmp_path):
    arguments = ['test.py', DIGITS, *digits, '--disagreement', 'apart', '--out', 'p.pkl', *FEW]
    assert 'CE × 3' in run(*arguments)
    predictions = pickle.loads((tmp_path / 'p.pkl').read_bytes())
    members = [alone(DIGITS, path, 5) for path in digits]
    for number, found in enumerate(predictions):
        probs = []
        for model, samples in members:
            sample = samples[number]
            batch = {'inputs': sample['inputs'][None], 'data_samples': [sample['data_samples']]}
            with torch.no_grad():
                probs.append(model.test_step(batch)[0].pred_score)
        mean = sum(probs) / 3
        torch.testing.assert_close(found['pred_score'], mean)
        assert found['pred_label'] == mean.argmax()
        entropy = sum(torch.special.entr(p).sum() for p in probs) / 3
        information = torch.special.entr(mean).sum() - entropy
        torch.testing.assert_close(found['mutual_information'], information, rtol=1e-3, atol=1e-6)

    folder = tmp_path / 'work_dirs/ce/digits'
    assert [path.name.split('-')[0] for path in folder.iterdir()] == ['x3']
    with (tmp_path / 'apart/disagreement.csv').open() as file:
        rows = list(csv.DictReader(file))
    assert [float(row['mutual_information']) for row in rows] == pytest.approx(
        [float(p['mutual_information']) for p in predictions]
    )
    metrics = results(folder)['metrics']
    assert metrics['disagreement/mutual_information'] == pytest.approx(
        sum(float(row['mutual_information']) for row in rows) / 5
    )
    members = results(folder)['model']['members']
    assert [member['seed'] for member in members] == [0, 1, 2]
    assert [member['checkpoint'] for member in members] == list(map(str, digits))
    assert results(folder)['evaluation']['tta'] is False
    assert label_of(folder) == 'CE × 3'


def test_views_of_a_segmentor_are_brought_back_and_averaged(scenes, run, tmp_path):
    arguments = ['test.py', SCENES, scenes[0], '--tta-scales', 0.8, 1, '--out', 'p.pkl', *FEW]
    assert 'CE + TTA (4)' in run(*arguments)
    model, samples = alone(SCENES, scenes[0], 5)
    for sample, found in zip(samples, pickle.loads((tmp_path / 'p.pkl').read_bytes()), strict=True):
        image, mean = sample['inputs'][0].numpy(), 0
        for size in (40, 32):
            for flip in (False, True):
                view = cv2.resize(image, (size, size))
                view = np.ascontiguousarray(view[:, ::-1]) if flip else view
                data_sample = sample['data_samples'].clone()
                data_sample.set_metainfo(dict(flip=flip, flip_direction='horizontal'))
                data_sample.set_metainfo(dict(img_shape=(size, size), pad_shape=(size, size)))
                batch = {'inputs': [torch.from_numpy(view)[None]], 'data_samples': [data_sample]}
                with torch.no_grad():
                    logits = model.test_step(batch)[0].seg_logits.data
                mean = mean + logits.softmax(0) / 4
        torch.testing.assert_close(found['seg_logits']['data'].exp(), mean, rtol=1e-4, atol=1e-5)
        expected = sample['data_samples'].gt_sem_seg.data
        assert torch.equal(found['gt_sem_seg']['data'], expected)
    metrics = results(tmp_path / 'work_dirs/ce/digit_scenes')['metrics']
    assert {'mIoU', 'calibration/ECE'} <= metrics.keys()


def test_two_ranks_equal_one_with_everything_at_once(scenes, run, tmp_path, free_port):
    everything = [
        *('--tta-scales', 1, '--mc-dropout', 2, '--dropout-seed', 4),
        *(*FEW, DROPPING, 'val_dataloader.batch_size=2', 'test_dataloader.batch_size=2'),
        *NOTHING_DRAWN,
    ]
    run('calibrate.py', SCENES, *scenes, '--out', 't.json', *everything)
    everything = ['--temperature', 't.json', '--disagreement', 'one', *everything]
    run('test.py', SCENES, *scenes, '--work-dir', 'one', *everything)
    everything[3] = 'two'
    call_forked(
        'test.py', SCENES, scenes[0], '--work-dir', 'two', scenes[1], *everything,
        cwd=tmp_path, ranks=2, port=free_port,
    )  # fmt: skip
    one, two = (results(tmp_path / name) for name in ('one', 'two'))
    assert one['metrics'] == pytest.approx(two['metrics'], rel=1e-4, nan_ok=True)
    label = label_of(tmp_path / 'two')
    assert label == 'CE × 2 + TTA (2) + MC dropout (2) + temperature'
    rows = [
        list(csv.reader((tmp_path / name / 'disagreement.csv').open())) for name in ('one', 'two')
    ]
    assert len(rows[0]) == 6 and [row[0] for row in rows[0]] == [row[0] for row in rows[1]]
    found = [[float(row[2]) for row in table[1:]] for table in rows]
    assert found[0] == pytest.approx(found[1], rel=1e-4) and min(found[0]) > 0


def test_a_temperature_of_a_mean_is_fitted_kept_and_read(digits, run, tmp_path):
    output = run('calibrate.py', DIGITS, *digits, '--out', 't.json', '--test', *FEW)
    assert 'Written: t.json' in output and 'Folded' not in output
    content = json.loads((tmp_path / 't.json').read_text())
    assert content['fitted']['after']['NLL'] < content['fitted']['before']['NLL']
    options = [*FEW, "test_evaluator.1.metrics=['NLL','ECE']"]
    run('test.py', DIGITS, *digits[::-1], '--temperature', 't.json', *options)
    folder = tmp_path / 'work_dirs/ce/digits'
    metrics = results(folder)['metrics']
    for name in ('NLL', 'ECE'):
        assert metrics[f'calibration/{name}'] == pytest.approx(
            content['tested']['after'][name], rel=1e-5
        )
    assert label_of(folder) == 'CE × 3 + temperature'

    # Of other predictions it says nothing.
    error = run('test.py', DIGITS, *digits[:2], '--temperature', 't.json', fails=True)
    assert 't.json was made with another model than' in error
    error = run('test.py', DIGITS, *digits, '--tta', '--temperature', 't.json', fails=True)
    assert 'views [] (here: [[' in error
    error = run('test.py', DIGITS, *digits, '--temperature', digits[0], fails=True)
    assert 'name the file that tools/calibrate.py wrote' in error
    error = run('calibrate.py', DIGITS, *digits, '--out', 't.json', fails=True)
    assert '--out t.json exists' in error
    error = run('calibrate.py', DIGITS, *digits, '--out', 't.pth', fails=True)
    assert 'name a .json file' in error
    vector = ['--method', 'vector', '--out', 'v.json']
    assert 'only a temperature' in run('calibrate.py', DIGITS, *digits, *vector, fails=True)


def test_members_of_two_configs_each_prepare_their_inputs(digits, run, tmp_path):
    (tmp_path / 'other.py').write_text(
        f"_base_ = '{DIGITS}'\ndata_preprocessor = dict(mean=[0.5], std=[0.25])\n"
        "model = dict(head=dict(loss=dict(type='LabelSmoothingLoss', alpha=0.1, _delete_=True)))\n"
    )
    _, other = write_members(tmp_path, 'other.py', 2)
    other = other.rename(tmp_path / 'other.pth')
    pair = f'other.py:{other}'
    # Whose hook would put the last member's weights into the first.
    (tmp_path / 'first.py').write_text(
        f"_base_ = '{DIGITS}'\ncustom_hooks = [dict(type='EMAHook')]\n"
    )
    run('test.py', f'first.py:{digits[0]}', pair, '--out', 'p.pkl', *FEW)
    predictions = pickle.loads((tmp_path / 'p.pkl').read_bytes())
    members = [alone(DIGITS, digits[0], 5), alone('other.py', other, 5)]
    for number, found in enumerate(predictions):
        probs = 0
        for model, samples in members:
            batch = {key: [value] for key, value in samples[number].items()}
            batch['inputs'] = batch['inputs'][0][None]
            with torch.no_grad():
                probs = probs + model.test_step(batch)[0].pred_score / 2
        torch.testing.assert_close(found['pred_score'], probs)
    label = label_of(tmp_path / 'work_dirs/first')
    assert label == 'CE & LS α=0.1 × 2'

    error = run('test.py', DIGITS, digits[0], other, fails=True)
    assert "normalised by {'mean': [0.5], 'std': [0.25]}" in error
    assert f'as CONFIG.py:{other}' in error


@pytest.mark.parametrize(
    ('change', 'message'),
    [
        ("pipeline = [dict(type='Resize', scale=(9, 9)), dict(type='PackInputs')]\n"
         'test_dataloader = dict(dataset=dict(pipeline=pipeline))\n', 'differently from'),
        ('model = dict(head=dict(num_classes=7))\n', 'member 2 has 7 classes, but member 1 has 10'),
        ('model = dict(backbone=dict(base_channels=16), head=dict(in_channels=64))\n',
         'member1.pth: the checkpoint does not fit the model of this config'),
    ],
)  # fmt: skip
def test_members_that_do_not_fit_are_refused(change, message, digits, run, tmp_path):
    (tmp_path / 'other.py').write_text(f"_base_ = '{DIGITS}'\n{change}")
    error = run('test.py', DIGITS, digits[0], f'other.py:{digits[1]}', *FEW, fails=True)
    assert message in error


def test_a_copy_of_a_checkpoint_is_no_other_member(digits, run, tmp_path):
    shutil.copy(digits[1], tmp_path / 'copy.pth')
    error = run('test.py', DIGITS, *digits[:2], 'copy.pth', *FEW, fails=True)
    assert 'member1.pth and copy.pth have the same weights' in error


@pytest.mark.parametrize(
    ('arguments', 'message'),
    [
        ([], 'name a checkpoint'),
        (['a', 'a'], 'is named twice'),
        (['a', '--mc-dropout', 2], 'member 1 has no dropout layer'),
        (['a', '--mc-dropout', -1], '--mc-dropout must be an integer of at least 0'),
        (['a', '--disagreement', 'apart'], '--disagreement requires several predictions'),
        (['a', '--tta-scales', -1], '--tta-scales must be a finite number'),
        (['a', '--tta', '--show-dir', 'drawn'], 'leave out --tta'),
        (['a', '--temperature', 'none.json'], "No such file or directory: 'none.json'"),
        (['a', f'{SCENES}:b'], 'prepares the images of test differently'),
        (['a', 'none.pth'], "there is no checkpoint 'none.pth'"),
    ],
)
def test_what_has_no_mean_is_said_first(arguments, message, digits, run):
    names = {'a': digits[0], f'{SCENES}:b': f'{SCENES}:{digits[1]}'}
    arguments = [names.get(argument, argument) for argument in arguments]
    options = FEW if '--mc-dropout' in arguments else []
    assert message in run('test.py', DIGITS, *arguments, *options, fails=True)


def test_a_mean_without_a_runner(digits):
    cfg, checkpoints = load_config(DIGITS), list(map(read_checkpoint, digits))
    set_model(cfg, [cfg] * 3, checkpoints)
    init_default_scope(cfg.default_scope)
    model = build(cfg, checkpoints)
    members = [alone(DIGITS, path, 2) for path in digits]
    batch = {key: [sample[key] for sample in members[0][1]] for key in members[0][1][0]}
    batch['inputs'] = torch.stack(batch['inputs'])
    with torch.no_grad():
        found = torch.stack([sample.pred_score for sample in model.test_step(batch)])
        expected = sum(
            torch.stack([sample.pred_score for sample in member.test_step(batch)])
            for member, _ in members
        )
    torch.testing.assert_close(found, expected / 3)


def test_a_checkpoint_is_read_once(digits, run, monkeypatch):
    read, load = [], torch.load

    def counted(file, *args, **options):
        read.append(file)
        return load(file, *args, **options)

    monkeypatch.setattr(torch, 'load', counted)
    run('calibrate.py', DIGITS, *digits, '--tta', '--out', 't.json', *FEW)
    assert read == list(map(str, digits))
    read.clear()
    run('test.py', DIGITS, *digits, '--tta', '--temperature', 't.json', *FEW)
    assert read == list(map(str, digits))


def test_each_model_has_a_folder_of_its_own(digits, run, tmp_path):
    for _ in range(2):
        run('test.py', DIGITS, digits[0], *FEW)
    shutil.copy(digits[0], tmp_path / 'copy.pth')
    run('test.py', DIGITS, 'copy.pth', *FEW)
    run('test.py', DIGITS, digits[0], '--tta', *FEW)
    names = sorted(path.parent.name for path in tmp_path.rglob('results.json'))
    starts, ends = zip(*(name.split('-') for name in names), strict=True)
    assert starts == ('copy', 'member0', 'member0_tta')
    assert ends[0] == ends[1] != ends[2]


def test_pairs_of_config_and_checkpoint_are_told_apart():
    assert split_members('c.py', ['a.pth', 'd.py:b.pth']) == [('c.py', 'a.pth'), ('d.py', 'b.pth')]
    assert split_members('c.py:a.pth', ['b.pth']) == [('c.py', 'a.pth'), ('c.py', 'b.pth')]
    assert split_members('c.py', ['https://x/a.pth']) == [('c.py', 'https://x/a.pth')]


LOAD, PACK = dict(type='LoadImageFromFile'), dict(type='PackSegInputs')


def config_with_views(**more):
    dataset = dict(type='ConcatDataset', datasets=[dict(pipeline=[LOAD, PACK])])
    loader = dict(dataset=dict(type='RepeatDataset', dataset=dataset))
    return Config(dict(default_scope='mmseg', test_dataloader=loader, **more))


def test_views_are_the_config_s_or_mirror_images_at_three_scales():
    cfg = config_with_views()
    assert [len(step) for step in set_views(cfg, 'test')] == [3, 2]
    pipeline = cfg.test_dataloader.dataset.dataset.datasets[0].pipeline
    assert pipeline[1].transforms[0][0].scale_factor == 1.0  # whose labels are taken
    assert pipeline[1].transforms[-1] == [PACK]

    own = [LOAD, dict(type='TestTimeAug', transforms=[[dict(type='RandomFlip', prob=1.0)], [PACK]])]
    cfg = config_with_views(tta_pipeline=own, tta_model=dict(type='SegTTAModel'))
    assert set_views(cfg, 'test') == []
    assert cfg.test_dataloader.dataset.dataset.datasets[0].pipeline == own
    cfg = config_with_views(tta_pipeline=own)
    views = set_views(cfg, 'test', [0.5, 1.0])
    assert [len(step) for step in views] == [2, 2]
    assert [view['scale_factor'] for view in views[0]] == [1, 0.5]
    with pytest.raises(ValueError, match=r'--tta-scales 0\.8 1\.2: labels are those of .*: add 1'):
        set_views(config_with_views(), 'test', [0.8, 1.2])
    cfg = config_with_views(tta_model=dict(type='MyMerging'))
    with pytest.raises(ValueError, match='MyMerging of the config merges predictions in its own'):
        set_views(cfg, 'test')
    cfg = Config(dict(test_dataloader=dict(dataset=dict(type='Digits'))))
    with pytest.raises(ValueError, match='has no pipeline to add views to'):
        set_views(cfg, 'test')


def test_views_of_a_classifier_are_the_image_and_its_mirror_image():
    pipeline = [dict(type='LoadImageFromFile'), dict(type='PackInputs')]
    loader = dict(dataset=dict(pipeline=pipeline))
    cfg = Config(dict(default_scope='mmpretrain', test_dataloader=loader))
    assert [len(step) for step in set_views(cfg, 'test')] == [2]
    assert [step.type for step in cfg.test_dataloader.dataset.pipeline] == [
        'LoadImageFromFile',
        'TestTimeAug',
    ]


def test_a_checkpoint_and_its_calibration_are_no_ensemble(digits, run, tmp_path):
    content = torch.load(digits[0], weights_only=False)
    content['state_dict']['head.fc.weight'] /= 2
    told = dict(method='temperature', parameters={}, options={}, split='val', forced=[])
    content['meta']['calibration'] = told
    torch.save(content, 'calibrated.pth')
    message = run('test.py', DIGITS, digits[0], 'calibrated.pth', *FEW, fails=True)
    assert 'calibrated.pth are one checkpoint' in message and 'count it double' in message
    assert 'CE × 2 (1 of them + temperature)' in run(
        'test.py', DIGITS, digits[1], 'calibrated.pth', *FEW
    )
