import json
from pathlib import Path

import pytest
import torch
from commands import ROOT, call_here
from forked import call_forked
from mmengine.config import Config
from mmengine.config.utils import MODULE2PACKAGE

from mmcalib.checks import UserError
from mmcalib.datasets.download_sources import missing_data_message
from mmcalib.runs.config import load_config, set_loader_defaults, set_work_dir
from mmcalib.runs.runner import build_runner
from mmcalib.runs.train import resume_from
from mmcalib.work_dir import experiment_name

CONFIG = str(ROOT / 'configs/mbls/digits.py')


def test_experiments_of_the_same_file_name_keep_apart():
    assert experiment_name('/x/configs/mbls/digits.py') == 'mbls/digits'
    assert experiment_name('/x/configs/y/configs/ce/digits.py') == 'ce/digits'
    assert experiment_name('/x/mine.py') == 'mine'


def test_configs_may_inherit_by_package(tmp_path):
    path = tmp_path / 'mine.py'
    path.write_text("_base_ = 'mmcalib::mbls/digits.py'\ntrain_cfg = dict(max_epochs=3)\n")
    cfg = load_config(str(path))
    assert cfg.train_cfg.max_epochs == 3
    assert cfg.model.head.loss.type == 'MarginLabelSmoothingLoss'
    assert '_scope_' not in cfg.pretty_text


@pytest.mark.parametrize(
    'base',
    [
        'mmpretrain::resnet/resnet50_8xb16_cifar10.py',
        'mmseg::deeplabv3/deeplabv3_r50-d8_4xb4-20k_voc12aug-512x512.py',
    ],
)
def test_configs_may_inherit_those_of_the_toolboxes(base, tmp_path):
    path = tmp_path / 'mine.py'
    path.write_text(f"_base_ = '{base}'\ncustom_imports = dict(imports=['mmcalib'])\n")
    assert 'model' in load_config(str(path))


def test_a_missing_config_is_named(tmp_path):
    with pytest.raises(UserError, match=r"no config 'nowhere\.py'"):
        load_config('nowhere.py')


def test_a_missing_toolbox_is_named(tmp_path, monkeypatch):
    path = tmp_path / 'mine.py'
    path.write_text("default_scope = 'mmtoolbox'\n")
    with pytest.raises(UserError, match=r'mmtoolbox.*mmcalib\[onedl\]'):
        load_config(str(path))


def test_a_missing_package_to_inherit_from_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(MODULE2PACKAGE, 'mmdet', 'no_such_package')
    path = tmp_path / 'mine.py'
    path.write_text("_base_ = 'mmdet::a/b.py'\n")
    with pytest.raises(UserError, match=r'mine\.py: no_such_package is not .*mmcalib\[onedl\]'):
        load_config(str(path))


def test_options_replace_values():
    cfg = load_config(CONFIG, {'train_cfg.max_epochs': 3})
    assert cfg.train_cfg.max_epochs == 3


def test_missing_data_is_named_with_its_source(tmp_path):
    dataset = dict(type='PascalVOCDataset', data_root=str(tmp_path / 'VOC2012'))
    message = missing_data_message({'train_dataloader': dict(dataset=dataset)})
    assert str(tmp_path / 'VOC2012') in message and 'VOCtrainval_11-May-2012.tar' in message
    assert 'train_dataloader.dataset.data_root' in message
    wrapped = dict(type='RepeatDataset', dataset=dict(type='ConcatDataset', datasets=[dataset]))
    message = missing_data_message({'val_dataloader': dict(dataset=wrapped)})
    assert 'val_dataloader.dataset.dataset.datasets.0.data_root' in message
    (tmp_path / 'VOC2012').mkdir()
    assert missing_data_message({'val_dataloader': dict(dataset=wrapped)}) is None
    remote = dict(dataset=dict(type='CustomDataset', data_root='s3://bucket/images'))
    assert missing_data_message({'train_dataloader': remote}) is None
    assert missing_data_message({'train_dataloader': None}) is None


def test_everything_that_misses_the_same_folder_is_named_at_once(tmp_path):
    loader = dict(dataset=dict(type='CIFAR10', data_root=str(tmp_path / 'cifar')))
    message = missing_data_message({'train_dataloader': loader, 'val_dataloader': loader})
    assert '--cfg-options train_dataloader.dataset.data_root=… val_dataloader.dataset' in message


def test_a_missing_list_of_images_is_named(tmp_path):
    dataset = dict(type='PascalVOCDataset', data_root=str(tmp_path), ann_file='lists/aug.txt')
    message = missing_data_message({'train_dataloader': dict(dataset=dataset)})
    assert f'there is no file {tmp_path}/lists/aug.txt' in message and 'voc_aug.py' in message
    (tmp_path / 'lists').mkdir()
    (tmp_path / 'lists/aug.txt').touch()
    assert missing_data_message({'train_dataloader': dict(dataset=dataset)}) is None


def test_resuming_takes_the_newest_whole_checkpoint(tmp_path):
    cfg = Config(dict(work_dir=str(tmp_path)))
    resume_from(cfg, 'auto')
    assert 'resume' not in cfg and 'load_from' not in cfg  # nothing yet: it starts
    torch.save({}, tmp_path / 'epoch_9.pth')
    (tmp_path / 'epoch_10.pth').write_bytes((tmp_path / 'epoch_9.pth').read_bytes()[:100])
    (tmp_path / 'last_checkpoint').write_text(str(tmp_path / 'epoch_10.pth'))
    resume_from(cfg, 'auto')
    assert cfg.load_from == str(tmp_path / 'epoch_9.pth')
    for path in tmp_path.glob('epoch_*'):
        path.unlink()
    (tmp_path / 'best_top1_epoch_7.pth').touch()
    with pytest.raises(UserError, match=r'is missing or damaged.*best_top1_epoch_7'):
        resume_from(cfg, 'auto')


def test_a_work_dir_that_is_a_file_is_named(tmp_path):
    (tmp_path / 'file').touch()
    with pytest.raises(ValueError, match="file' is a file"):
        set_work_dir(Config(dict()), str(tmp_path / 'file'))


def test_loader_defaults_follow_the_machine():
    cfg = Config(
        dict(
            default_scope='mmpretrain',
            train_dataloader=dict(num_workers=2),
            val_dataloader=dict(num_workers=0, pin_memory=True),
            test_dataloader=None,
        )
    )
    set_loader_defaults(cfg)
    assert cfg.train_dataloader.collate_fn.type == 'default_collate'
    assert cfg.train_dataloader.persistent_workers is True
    assert cfg.val_dataloader.persistent_workers is False  # torch refuses it without workers
    assert cfg.train_dataloader.pin_memory is torch.cuda.is_available()


def test_other_launchers_need_gpus(monkeypatch):
    monkeypatch.setattr(torch.cuda, 'is_available', lambda: False)
    with pytest.raises(ValueError, match=r'--launcher slurm needs GPUs.*dist_train\.sh'):
        build_runner(Config(dict(launcher='slurm', work_dir='none')))


@pytest.mark.parametrize(
    ('name', 'options', 'checkpoint'),
    [
        ('digits', [], 'best_*.pth'),
        ('digits', ['--no-validate'], 'epoch_2.pth'),  # of which the last weights are tested
        ('digit_scenes', [], 'best_*.pth'),
    ],
)
def test_averaged_weights_are_tested_and_calibrated_as_checkpoints_have_them(
    name, options, checkpoint, tmp_path, monkeypatch
):
    """mmpretrain's EMAHook is not mmengine's, which the scenes have."""
    monkeypatch.chdir(tmp_path)
    Path('mine.py').write_text(
        f"_base_ = '{ROOT}/configs/ce/{name}.py'\n"
        "custom_hooks = [dict(type='EMAHook', momentum=0.05)]\n"
        'train_cfg = dict(max_epochs=2, val_interval=2)\n'
        'train_dataloader = dict(batch_size=8, dataset=dict(indices=32))\n'
        'val_dataloader = dict(dataset=dict(indices=8))\n'
        'test_dataloader = dict(dataset=dict(indices=20))\n'
    )
    call_forked('train.py', 'mine.py', '--work-dir', 'trained', *options, cwd=tmp_path)
    (path,) = Path('trained').glob(checkpoint)
    trained = json.loads(Path('trained/results.json').read_text())['metrics']
    call_here('test.py', 'mine.py', path, '--work-dir', 'tested', monkeypatch=monkeypatch)
    assert trained == json.loads(Path('tested/results.json').read_text())['metrics']
    call_here(
        'calibrate.py', 'mine.py', path, '--out', 'out.pth', '--test', monkeypatch=monkeypatch
    )
    calibration = torch.load('out.pth', weights_only=False)['meta']['calibration']
    before = calibration['tested']['before']['ECE']
    assert before == pytest.approx(trained['calibration/ECE'], abs=1e-4)
