"""Configs that inherit by package, what cannot be read, and options with the name that is meant."""

import re
import warnings

import pytest
from commands import ROOT
from images import write_voc
from mmengine.config import Config

from mmcalib.cli.train import TrainOptions
from mmcalib.errors import UserError
from mmcalib.files import experiment_name
from mmcalib.runs.config import load_config
from mmcalib.runs.missing_data import missing_data_message
from mmcalib.runs.run_config import limit_samples, load_run_config, use_evaluation

DIGITS = str(ROOT / 'configs/mbls/digits.py')
SCENES = str(ROOT / 'configs/mbls/digit_scenes.py')


@pytest.fixture
def read(tmp_path):
    """Read a config with this text."""

    def load(text, options=None):
        (tmp_path / 'mine.py').write_text(text)
        return load_config(str(tmp_path / 'mine.py'), options)

    return load


@pytest.mark.parametrize(
    ('key', 'meant'),
    [
        ('modl.head.loss.margin', 'did you mean model'),
        ('work_dri', 'did you mean work_dir'),
        ('train_dataloader.batchsize', 'did you mean batch_size'),
        ('randomness.sed', 'did you mean seed'),
        ('test_evaluator.1.metric', 'did you mean metrics'),
        ('val_evaluator.7.num_bins', ''),
    ],
)
def test_load_config_misspelt_option_raises(key, meant):
    with pytest.raises(UserError, match=rf'--cfg-options {key}: {meant}'):
        load_config(DIGITS, {key: 1})


@pytest.mark.parametrize(
    ('options', 'new'),
    [
        ({'find_unused_parameters': True, 'train_dataloader.dataset.indices': 128}, 1),
        ({'custom_hooks': [dict(type='EMAHook')], 'randomness.deterministic': True}, 1),
        ({'model.train_cfg.augments': dict(type='Mixup', alpha=0.2)}, 1),
        ({'model.head.loss._delete_': True, 'model.head.loss.type': 'BrierLoss'}, 0),
        ({'load_from': 'a.pth', 'resume': True, 'train_cfg.max_epochs': 3}, 0),
    ],
)
def test_load_config_new_option_warns(options, new, recwarn):
    cfg = load_config(DIGITS, options)
    assert len([w for w in recwarn if 'had no such key' in str(w.message)]) == new
    assert all(cfg.get(key, value) == value for key, value in options.items())


VARIABLES = """
_base_ = 'mmcalib::mbls/digits.py'
margin = 5.5
epochs = 3
nowhere = 77
model = dict(head=dict(loss=dict(margin=margin)))
train_cfg = dict(max_epochs=epochs)
"""
LAZY_VARIABLES = """
from mmengine.config import read_base

with read_base():
    from .inherited import *

margin = 5.5
model.update(head=dict(loss=dict(type='MarginLabelSmoothingLoss', margin=margin)))
"""


@pytest.mark.parametrize(
    ('key', 'told'),
    [
        ('margin', 'margin is a variable .* 5.5 today, model.head.loss.margin$'),
        ('epochs', 'has its value 3 today, train_cfg.max_epochs$'),
        ('pipeline.0.type', 'train_dataloader.dataset.pipeline.0.type, val_dataloader.dataset.pip'),
        ('nowhere', 'no key has its value 77 today: change it in a config that inherits'),
        ('my_note', 'the config has no key my_note, and nothing reads such a key$'),
        ('experiment', 'did you mean experiment_name'),
    ],
)
def test_load_config_option_that_nothing_reads_raises(key, told, read):
    with pytest.raises(UserError, match=rf'^--cfg-options {key}: .*{told}'):
        read(VARIABLES, {key: 2})


@pytest.mark.parametrize(
    ('name', 'reading'),
    [
        ('own_items', "runner.cfg['my_note']"),
        ('own_get', "self.cfg.get('my_note', 0)"),
        ('own_attributes', 'cfg.my_note'),
    ],
)
def test_load_config_option_that_own_module_reads_is_allowed(name, reading, read, tmp_path):
    """A hook may read what it likes from the config of its Runner."""
    package = tmp_path / name
    package.mkdir()
    (package / '__init__.py').write_text('from . import hooks')
    (package / 'hooks.py').write_text(
        f'def before_train(self, runner, cfg):\n    return {reading}, self.nowhere\n'
    )
    text = f"{VARIABLES}custom_imports = dict(imports=['{package.name}'])\n"
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        assert read(text, {'my_note': 2}).my_note == 2
        assert read(f'{text}my_note = 3', {'my_note': 2}).my_note == 2
    for key in ('nowhere', 'margin', 'my_notes'):
        with pytest.raises(UserError, match=f'^--cfg-options {key}: '):
            read(text, {key: 2})


def test_load_config_option_that_model_shadows_raises(read):
    segmentor = "_base_ = 'mmseg::pspnet/pspnet_r50-d8_4xb2-40k_cityscapes-512x1024.py'"
    with pytest.raises(UserError, match=r' today, model\.data_preprocessor\.mean$'):
        read(segmentor, {'data_preprocessor.mean': [0, 0, 0]})
    with pytest.raises(
        UserError, match=r', model\.data_preprocessor\.size, train_[\w.]+crop_size$'
    ):
        read(segmentor, {'crop_size': (64, 64)})
    cfg = read(VARIABLES, {'data_preprocessor.mean': [0.2]})
    assert cfg.data_preprocessor.mean == [0.2]


def test_load_config_option_of_lazy_variable_raises(read, tmp_path):
    (tmp_path / 'inherited.py').write_text("model = dict(type='mmpretrain.ImageClassifier')")
    with pytest.raises(UserError, match=r'5\.5 today, model\.head\.loss\.margin$'):
        read(LAZY_VARIABLES, {'margin': 2.0})


def test_load_config_option_replaces_value_by_dict():
    load_config(SCENES, {'model.decode_head.norm_cfg.requires_grad': False})


# As of mmpretrain's RepLKNet-31B, whose base imports the toolbox.
IMPORTING = 'from mmpretrain.models import build_classifier\n'


@pytest.mark.parametrize(
    ('text', 'message'),
    [
        ("model = dict(head='a'", r'mine\.py cannot be read: SyntaxError: '),
        ('a = 1\nb = a.x', r'mine\.py cannot be read: AttributeError: '),
        (f"_base_ = ['{DIGITS}', '{SCENES}']", r'mine\.py cannot be read: KeyError: '),
        ("_base_ = 'base.py'", r'mine\.py cannot be read: \w+Error: .*inheritance'),
        ("default_scope = 'mmtoolbox'", r'mmtoolbox.*mmcalib\[onedl\]'),
        ("_base_ = 'mmnone::a/b.py'", r"mine\.py: there is no package 'mmnone'.*mmcalib\[onedl\]"),
        (
            "_base_ = 'mmcalib::ce/digit.py'",
            r"mine\.py: there is no config 'mmcalib::",
        ),
        ("_base_ = 'bare::a.py'", r"'bare' in .*/bare comes without its configs: .* PYTHONPATH"),
        ('from mmcalib.losses import NoLoss', r'mine\.py: .*import NoLoss from mmcalib\.losses'),
    ],
)
def test_load_config_broken_file_raises(text, message, read, tmp_path, monkeypatch):
    (tmp_path / 'base.py').write_text(IMPORTING)
    (tmp_path / 'path/bare').mkdir(parents=True)
    (tmp_path / 'path/bare/__init__.py').touch()
    monkeypatch.syspath_prepend(tmp_path / 'path')
    with pytest.raises(UserError, match=message):
        read(text)


@pytest.mark.parametrize(
    ('base', 'loss'),
    [
        ('mmcalib::mbls/digits.py', 'MarginLabelSmoothingLoss'),
        ('mmpretrain::resnet/resnet50_8xb16_cifar10.py', 'CrossEntropyLoss'),
        ('mmseg::deeplabv3/deeplabv3_r50-d8_4xb4-20k_voc12aug-512x512.py', 'CrossEntropyLoss'),
    ],
)
def test_load_config_base_of_package(base, loss, read):
    cfg = read(f"_base_ = '{base}'\ncustom_imports = dict(imports=['mmcalib'])\nwork_dir = 'w'\n")
    assert cfg.work_dir == 'w'
    assert loss in str(cfg.model)
    assert "_scope_='mmcalib'" not in cfg.pretty_text


def test_load_config_base_of_package_on_path(read, tmp_path, monkeypatch):
    for name in ('checkout/__init__.py', 'configs/a/b.py'):
        (tmp_path / 'path' / name).parent.mkdir(parents=True)
        (tmp_path / 'path' / name).write_text('kept = 1')
    monkeypatch.syspath_prepend(tmp_path / 'path')
    assert read("_base_ = 'checkout::a/b.py'").kept == 1


def test_load_config_single_metric_becomes_list(read):
    metric = "dict(type='CalibrationMetric', metrics=['NLL'], _delete_=True)"
    cfg = read(f"_base_ = '{DIGITS}'\ntest_evaluator = {metric}\n")
    assert cfg.test_evaluator == [dict(type='CalibrationMetric', metrics=['NLL'])]


def test_use_evaluation_single_metric_becomes_list(read):
    metric = "dict(type='mmengine.CalibrationMetric', metrics=['NLL'], _delete_=True)"
    cfg = read(
        f"_base_ = '{DIGITS}'\nwork_dir = 'w'\n"
        f'evaluations = dict(mine=dict(val_evaluator={metric}, test_evaluator={metric}))\n'
    )
    cfg.test_evaluator = cfg.val_evaluator = None
    use_evaluation(cfg, 'mine')
    expected = [dict(type='mmengine.CalibrationMetric', metrics=['NLL'])]
    assert cfg.test_evaluator == cfg.val_evaluator == expected


def test_missing_data_message_names_source(tmp_path):
    root = tmp_path / 'VOC2012'
    dataset = dict(type='PascalVOCDataset', data_root=str(root), ann_file='lists/aug.txt')
    wrapped = dict(type='RepeatDataset', dataset=dict(type='ConcatDataset', datasets=[dataset]))
    loaders = {'train_dataloader': dict(dataset=dataset), 'val_dataloader': dict(dataset=wrapped)}
    message = missing_data_message(loaders)
    assert str(root) in message
    assert 'VOCtrainval_11-May-2012.tar' in message
    inner = 'val_dataloader.dataset.dataset.datasets.0.data_root=…'
    assert f'--cfg-options train_dataloader.dataset.data_root=… {inner}' in message
    root.mkdir()
    message = missing_data_message(loaders)
    assert f'there is no file {root}/lists/aug.txt' in message and 'voc_aug.py' in message
    (root / 'lists').mkdir()
    (root / 'lists/aug.txt').touch()
    assert missing_data_message(loaders) is None
    remote = dict(dataset=dict(type='CustomDataset', data_root='s3://bucket/images'))
    assert missing_data_message({'train_dataloader': remote, 'val_dataloader': None}) is None


def test_missing_data_message_augmented_list_names_remedy(read, tmp_path):
    """To name the training list in its place would show each of its images twice."""
    root = write_voc(tmp_path / 'VOC2012')
    inherit = "_base_ = 'mmseg::deeplabv3/deeplabv3_r50-d8_4xb4-20k_voc12aug-512x512.py'\n"

    def error_message(text):
        cfg = read(inherit + text)
        for part in cfg.train_dataloader.dataset.datasets:
            part.data_root = str(root)
        return cfg, missing_data_message({'train_dataloader': cfg.train_dataloader})

    _, message = error_message('')
    assert 'train_dataloader.dataset.datasets.1.ann_file: there is no file' in message
    assert 'train.txt' not in message
    # The remedy of the message works.
    cfg, message = error_message(re.search(r'train_dataloader = dict.*\]\)\)', message)[0])
    assert message is None
    lists = [part.ann_file for part in cfg.train_dataloader.dataset.datasets]
    assert lists == ['ImageSets/Segmentation/train.txt']


def test_experiment_name_keeps_folder():
    assert experiment_name('/x/configs/mbls/digits.py') == 'mbls/digits'
    assert experiment_name('/x/configs/y/configs/ce/digits.py') == 'ce/digits'
    assert experiment_name('/x/mine.py') == 'mine'


@pytest.mark.parametrize(('limit', 'batch_size', 'steps'), [(8, 4, 2), (9, 4, 3), (3, 4, 1)])
def test_limit_samples_sets_iterations(limit, batch_size, steps):
    cfg = Config(
        dict(
            train_cfg=dict(max_iters=20_000, val_interval=2000, val_begin=100),
            train_dataloader=dict(batch_size=batch_size, dataset=dict(type='X')),
            val_dataloader=None,
        )
    )
    limit_samples(cfg, limit)
    assert cfg.train_cfg == dict(max_iters=steps, val_interval=steps)
    assert cfg.train_dataloader.batch_size == min(limit, batch_size)
    assert cfg.train_dataloader.dataset.samples == cfg.limit == limit


def test_load_run_config_of_smoke_run_leaves_real_files_alone():
    # Unless the folder was named.
    for requested, expected in (('mine', 'mine'), (None, 'work_dirs/mbls/digits/limit8')):
        options = TrainOptions(config=DIGITS, work_dir=requested, limit=8)
        assert load_run_config(DIGITS, options).work_dir == expected


def test_load_config_of_toolboxes_version_0_is_refused(tmp_path):
    path = tmp_path / 'old.py'
    path.write_text(
        "model = dict(type='ImageClassifier')\n"
        'data = dict(samples_per_gpu=8)\n'
        "optimizer = dict(type='SGD', lr=0.1)\n"
        "lr_config = dict(policy='step', step=[10])\n"
    )
    with pytest.raises(UserError, match=r'old.py is a config for version 0.x .*data, optimizer'):
        load_config(str(path))
