"""tools/test.py and tools/calibrate.py on the mean of several predictions, from the outside."""

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
from records import write

from mmcalib.errors import UserError
from mmcalib.reports.tested_runs import find_runs
from mmcalib.runs.config import load_config
from mmcalib.runs.training import config_facts, is_finished
from mmcalib.runs.views import set_views

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


def results(folder):
    """What the only test below a folder has left."""
    (path,) = Path(folder).rglob('results.json')
    return json.loads(path.read_text())


def reported_label(folder):
    return find_runs([folder])[0][0].label


def alone(config, checkpoint, indices):
    """Return a network by itself, and the first test samples."""
    cfg = load_config(config)
    init_default_scope(cfg.default_scope)
    preprocessor = cfg.model.get('data_preprocessor') or cfg.data_preprocessor
    model = MODELS.build({**cfg.model, 'data_preprocessor': preprocessor}).eval()
    model.load_state_dict(torch.load(checkpoint, weights_only=False)['state_dict'])
    data = DATASETS.build({**cfg.test_dataloader.dataset, 'indices': indices})
    return model, [data[i] for i in range(indices)]


def member_scores(members, number):
    """Each member's probabilities of an image, prepared by itself."""
    for model, samples in members:
        sample = samples[number]
        batch = {'inputs': sample['inputs'][None], 'data_samples': [sample['data_samples']]}
        with torch.no_grad():
            yield model.test_step(batch)[0].pred_score


def test_test_three_members_equals_their_mean(digits, run, tmp_path):
    arguments = ['test.py', DIGITS, *digits, '--disagreement', 'apart', '--out', 'p.pkl', *FEW]
    assert 'CE × 3' in run(*arguments)
    predictions = pickle.loads((tmp_path / 'p.pkl').read_bytes())
    members = [alone(DIGITS, path, 5) for path in digits]
    for number, found in enumerate(predictions):
        probs = list(member_scores(members, number))
        mean = sum(probs) / 3
        torch.testing.assert_close(found['pred_score'], mean)
        assert found['pred_label'] == mean.argmax()
        entropy = sum(torch.special.entr(p).sum() for p in probs) / 3
        information = torch.special.entr(mean).sum() - entropy
        torch.testing.assert_close(found['mutual_information'], information, rtol=1e-3, atol=1e-6)
    with (tmp_path / 'apart/disagreement.csv').open() as file:
        written = [float(row['mutual_information']) for row in csv.DictReader(file)]
    assert written == pytest.approx([float(p['mutual_information']) for p in predictions])
    folder = tmp_path / 'work_dirs/ce/digits'
    assert [path.name.split('-')[0] for path in folder.iterdir()] == ['x3']
    found = results(folder)
    assert found['metrics']['disagreement/mutual_information'] == pytest.approx(sum(written) / 5)
    members = found['model']['members']
    assert [member['seed'] for member in members] == [0, 1, 2]
    assert [member['checkpoint'] for member in members] == list(map(str, digits))
    assert found['evaluation']['tta'] is False and reported_label(folder) == 'CE × 3'


def test_test_segmentor_views_equal_mean_over_scales(scenes, run, tmp_path):
    arguments = ['test.py', SCENES, scenes[0], '--tta-scales', 0.8, 1, '--out', 'p.pkl', *FEW]
    assert 'CE + TTA (4)' in run(*arguments)
    _, samples = alone(SCENES, scenes[0], 5)
    for sample, found in zip(samples, pickle.loads((tmp_path / 'p.pkl').read_bytes()), strict=True):
        assert found['seg_logits']['data'].exp().sum(0).allclose(torch.ones(40, 40))
        expected = sample['data_samples'].gt_sem_seg.data
        assert torch.equal(found['gt_sem_seg']['data'], expected)
    content = results(tmp_path / 'work_dirs/ce/digit_scenes')
    assert {'mIoU', 'calibration/ECE'} <= content['metrics'].keys()
    # The record has the images' pipeline before its views, of the data with and without labels.
    (pipeline,) = content['evaluation']['pipeline']
    assert 'TestTimeAug' not in str(pipeline) and 'Annotation' not in str(content['model'])


def test_test_two_processes_equals_one(scenes, run, tmp_path, free_port):
    everything = [
        *('--tta-scales', 1, '--mc-dropout', 2, '--dropout-seed', 4, *FEW),
        'model.decode_head.dropout_ratio=0.5',
        *('val_dataloader.batch_size=2', 'test_dataloader.batch_size=2', *NOTHING_DRAWN),
    ]
    run('calibrate.py', SCENES, *scenes, '--out', 't.json', *everything)
    everything = ['--temperature', 't.json', '--disagreement', 'one', *everything]
    run('test.py', SCENES, *scenes, '--work-dir', 'one', *everything)
    everything[3] = 'two'
    run_forked(
        'test.py', SCENES, scenes[0], '--work-dir', 'two', scenes[1], *everything,
        cwd=tmp_path, ranks=2, port=free_port,
    )  # fmt: skip
    one, two = (results(tmp_path / name) for name in ('one', 'two'))
    assert one['metrics'] == pytest.approx(two['metrics'], rel=1e-4, nan_ok=True)
    label = reported_label(tmp_path / 'two')
    assert label == 'CE × 2 + TTA (2) + MC dropout (2) + temperature'
    files = [Path(name, 'disagreement.csv').read_text() for name in ('one', 'two')]
    rows = [list(csv.reader(text.splitlines())) for text in files]
    assert len(rows[0]) == 6 and [row[0] for row in rows[0]] == [row[0] for row in rows[1]]
    found = [[float(row[2]) for row in table[1:]] for table in rows]
    assert found[0] == pytest.approx(found[1], rel=1e-4) and min(found[0]) > 0


def test_calibrate_mean_temperature_read_by_test(digits, run, tmp_path, monkeypatch):
    read = []
    load = torch.load

    def counted(file, *args, **options):
        read.append(file)
        return load(file, *args, **options)

    monkeypatch.setattr(torch, 'load', counted)
    output = run('calibrate.py', DIGITS, *digits, '--out', 't.json', '--test', *FEW)
    assert 'Written: t.json' in output and 'Folded' not in output
    content = json.loads((tmp_path / 't.json').read_text())
    assert content['fitted']['after']['NLL'] < content['fitted']['before']['NLL']
    options = [*FEW, "test_evaluator.1.metrics=['NLL','ECE']"]
    run('test.py', DIGITS, *digits[::-1], '--temperature', 't.json', *options)
    assert read == list(map(str, [*digits, *digits[::-1]]))  # each once
    folder = tmp_path / 'work_dirs/ce/digits'
    metrics = results(folder)['metrics']
    after = content['tested']['after']
    for name in ('NLL', 'ECE'):
        assert metrics[f'calibration/{name}'] == pytest.approx(after[name], rel=1e-5)
    assert reported_label(folder) == 'CE × 3 + temperature'

    # Of other predictions it says nothing.
    for others, message in (
        (digits[:2], 't.json was made with another model than'),
        ([*digits, '--tta'], 'views [] (here: [['),
    ):
        assert message in run('test.py', DIGITS, *others, '--temperature', 't.json', code=2)
    for file in (digits[0], 'no.json'):
        Path('no.json').write_text('{}')
        error = run('test.py', DIGITS, *digits, '--temperature', file, code=2)
        assert 'name the file that tools/calibrate.py wrote' in error
    error = run('calibrate.py', DIGITS, *digits, '--out', 't.pth', code=2)
    assert 'name a .json file' in error


def test_test_members_of_two_configs_equal_their_mean(digits, run, tmp_path):
    Path('other.py').write_text(
        f"_base_ = '{DIGITS}'\ndata_preprocessor = dict(mean=[0.5], std=[0.25])\n"
        "model = dict(head=dict(loss=dict(type='LabelSmoothingLoss', alpha=0.1, _delete_=True)))\n"
    )
    _, other = write_members(tmp_path, 'other.py', 2)
    other = other.rename(tmp_path / 'other.pth')
    # Whose hook would put the last member's weights into the first.
    Path('first.py').write_text(f"_base_ = '{DIGITS}'\ncustom_hooks = [dict(type='EMAHook')]\n")
    run('test.py', f'first.py:{digits[0]}', f'other.py:{other}', '--out', 'p.pkl', *FEW)
    members = [alone(DIGITS, digits[0], 5), alone('other.py', other, 5)]
    for number, found in enumerate(pickle.loads(Path('p.pkl').read_bytes())):
        torch.testing.assert_close(found['pred_score'], sum(member_scores(members, number)) / 2)
    assert reported_label(tmp_path / 'work_dirs/first') == 'CE & LS α=0.1 × 2'
    # One by itself is warned of, and tested.
    assert "normalised by {'mean': [0.5], 'std': [0.25]}" in run('test.py', DIGITS, other, *FEW)


TO_9 = (
    "pipeline = [dict(type='Resize', scale=(9, 9)), dict(type='PackInputs')]\n"
    'test_dataloader = dict(dataset=dict(pipeline=pipeline))\n'
)
WIDE = 'model = dict(backbone=dict(base_channels=16), head=dict(in_channels=64))\n'


@pytest.mark.parametrize(
    ('arguments', 'message'),
    [
        ([], 'name a checkpoint'),
        (['a', 'copy.pth'], 'member0.pth and copy.pth have the same weights'),
        (['a', '--mc-dropout', 2, *FEW], 'member 1 has no dropout layer'),
        (['a', '--disagreement', 'apart'], '--disagreement requires several predictions'),
        (['a', '--tta-scales', -1], '--tta-scales must be a finite number'),
        (['a', '--tta', '--show-dir', 'drawn'], 'leave out --tta'),
        (['a', '--temperature', 'none.json'], "No such file or directory: 'none.json'"),
        (['a', f'{SCENES}:b'], 'prepares the images of test differently'),
        (['a', f'{TO_9}:b'], 'other.py prepares the images of test differently'),
        (['a', 'model = dict(head=dict(num_classes=7)):b'], 'member 2 has 7 classes, but member 1'),
        (['a', f'{WIDE}:b'], 'member1.pth: the checkpoint does not fit the model of this config'),
        (['a', 'data_preprocessor = dict(mean=[0.5], std=[0.25]):b'], 'as CONFIG.py:'),
    ],
)
def test_test_members_that_do_not_fit_refused(arguments, message, digits, run, tmp_path):
    shutil.copy(digits[0], tmp_path / 'copy.pth')
    for number, argument in enumerate(arguments):
        text, pair, _ = str(argument).partition(':b')
        if pair and text != SCENES:  # a config of the second member, which changes this
            Path('other.py').write_text(f"_base_ = '{DIGITS}'\n{text}\n")
            text = 'other.py'
        arguments[number] = f'{text}:{digits[1]}' if pair else argument
        arguments[number] = digits[0] if argument == 'a' else arguments[number]
    assert message in run('test.py', DIGITS, *arguments, code=2)


def test_test_each_model_has_own_folder(digits, run, tmp_path):
    shutil.copy(digits[0], tmp_path / 'copy.pth')
    for arguments in ([digits[0]], [digits[0]], ['copy.pth'], [digits[0], '--tta']):
        run('test.py', DIGITS, *arguments, *FEW)
    names = sorted(path.parent.name for path in tmp_path.rglob('results.json'))
    starts, ends = zip(*(name.split('-') for name in names), strict=True)
    assert starts == ('copy', 'member0', 'member0_tta')
    assert ends[0] == ends[1] != ends[2]


LOAD = dict(type='LoadImageFromFile')
PACK = dict(type='PackSegInputs')
OWN = [LOAD, dict(type='TestTimeAug', transforms=[[dict(type='RandomFlip', prob=1.0)], [PACK]])]
MERGES = dict(tta_model=dict(type='MyMerging'))


@pytest.mark.parametrize(
    ('scope', 'more', 'scales', 'expected'),
    [
        ('mmseg', {}, None, [[1, 0.75, 1.25], 2]),
        ('mmpretrain', {}, None, [2]),
        ('mmseg', dict(tta_pipeline=OWN, tta_model=dict(type='SegTTAModel')), None, []),
        ('mmseg', dict(tta_pipeline=OWN), [0.5, 1.0], [[1, 0.5], 2]),
        ('mmseg', {}, [0.8, 1.2], r'--tta-scales 0\.8 1\.2: labels are those of .*: add 1'),
        ('mmseg', MERGES, None, 'MyMerging of the config merges predictions in its own'),
        ('mmseg', dict(test_dataloader=dict(dataset={})), None, 'has no pipeline to add views to'),
    ],
)
def test_set_views_takes_tta_pipeline_or_scales(scope, more, scales, expected):
    dataset = dict(type='ConcatDataset', datasets=[dict(pipeline=[LOAD, PACK])])
    loader = dict(dataset=dict(type='RepeatDataset', dataset=dataset))
    cfg = Config(dict(default_scope=scope, test_dataloader=loader) | more)
    if isinstance(expected, str):
        with pytest.raises(UserError, match=expected):
            set_views(cfg, 'test', scales)
        return
    *sizes, flips = [*set_views(cfg, 'test', scales), None][: len(expected)] or [None]
    assert [[view['scale_factor'] for view in each] for each in sizes] == expected[:-1]
    assert flips is None or [flip['prob'] for flip in flips] == [0, 1]
    load, added = cfg.test_dataloader.dataset.dataset.datasets[0].pipeline
    assert load == LOAD and added['transforms'][-1] == [PACK]


def test_test_checkpoint_beside_its_calibration_refused(digits, run, tmp_path):
    """Nor is one that was calibrated twice, whose record names both and the original."""
    (digits[0].parent / 'last_checkpoint').write_text('epoch_30.pth')
    few = ['--limit', 200, *FEW]  # of networks that know nothing
    run('calibrate.py', DIGITS, digits[0], '--out', 'calibrated.pth', *few)
    run('calibrate.py', DIGITS, 'calibrated.pth', '--out', 'twice.pth', '--force', *few)
    message = run('test.py', DIGITS, digits[0], 'calibrated.pth', *FEW, code=2)
    assert 'calibrated.pth are one checkpoint' in message and 'count it double' in message
    assert 'CE × 2 (1 of them + temperature)' in run(
        'test.py', DIGITS, digits[1], 'calibrated.pth', *FEW
    )
    run('test.py', DIGITS, 'twice.pth', '--work-dir', 'w', *FEW)
    (member,) = results('w')['model']['members']
    assert member['calibration']['methods'] == ['temperature', 'temperature']
    assert member['file'] == 'member0.pth' and member['calibration']['forced']
    assert member['finished'] is True  # by what lies beside the original


def test_is_finished_by_record_or_last_checkpoint(tmp_path):
    def finished(length, **calibration):
        training = dict(train_cfg=dict(max_epochs=length))
        return is_finished(str(tmp_path / 'best.pth'), training, calibration)

    assert finished(9) is None and finished(9, finished=True) is True
    (tmp_path / 'last_checkpoint').write_text('/elsewhere/epoch_8.pth')
    assert finished(9, finished=True) is False and finished(8) is True and finished(None) is None
    # Of a development version, say.
    (tmp_path / 'results.json').write_text('{"metrics": {}, "model": {"members": [{}]}}')
    assert finished(9) is False
    write(tmp_path, 'ce/digits', name='results_val.json')
    assert finished(9) is True
