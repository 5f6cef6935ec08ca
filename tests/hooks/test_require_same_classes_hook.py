"""Data sets of other classes than those trained on."""

import shutil

import pytest
from commands import ROOT
from images import write_folders

from mmcalib.checks import UserError
from mmcalib.hooks.require_same_classes_hook import classes_of, difference
from mmcalib.runs.config import load_config, set_loader_defaults
from mmcalib.runs.runner import build_runner, run_test, train_and_test


def config(folder, **options):
    one, images = 'held_out_per_class', str(folder / 'images')
    options = {
        f'train_dataloader.dataset.{one}': 1,
        'train_dataloader.dataset.dataset.data_root': images,
        f'val_dataloader.dataset.{one}': 1,
        f'val_dataloader.dataset.dataset.{one}': 1,
        'val_dataloader.dataset.dataset.dataset.data_root': images,
        'test_dataloader.dataset.data_root': str(folder / 'test'),
        **{f'{split}_dataloader.num_workers': 0 for split in ('train', 'val', 'test')},
        'train_cfg.max_epochs': 1,
        'train_cfg.val_interval': 1,
        **options,
    }
    cfg = load_config(str(ROOT / 'configs/ce/resnet14_cifar10_short.py'), options)
    cfg.work_dir, cfg.launcher, cfg.param_scheduler = str(folder), 'none', None
    set_loader_defaults(cfg)
    return cfg


def test_a_missing_folder_of_test_images_is_refused(tmp_path):
    write_folders(tmp_path / 'images')
    train_and_test(config(tmp_path), test=False)
    checkpoint = str(tmp_path / 'epoch_1.pth')

    def evaluate():
        cfg = config(tmp_path, load_from=checkpoint)
        return run_test(build_runner(cfg, complete_weights=True), checkpoint)

    shutil.copytree(tmp_path / 'images', tmp_path / 'test')
    assert evaluate()
    # Of the last one, no other label depends.
    shutil.rmtree(tmp_path / 'test/class_9')
    assert evaluate()
    shutil.rmtree(tmp_path / 'test/class_3')
    with pytest.raises(
        UserError, match=r"it has 8 classes, not 10; it lacks .*; class 3 is 'class_4', not"
    ):
        evaluate()


@pytest.mark.parametrize(
    ('here', 'text'),
    [
        ('abc', ''),
        ('bac', "class 0 is 'b', not 'a'"),
        ('ab', "it has 2 classes, not 3; it lacks 'c'"),
        ('abx', "it lacks 'c'; it adds 'x'; class 2 is 'x', not 'c'"),
        ('abcdefghi', "it has 9 classes, not 3; it adds 'd', 'e', 'f', 'g', 'h', …"),
    ],
)
def test_a_difference_is_said_in_words(here, text):
    assert difference('abc', here) == text


def test_classes_are_read_where_they_are_named():
    assert classes_of(dict(classes=('a', 1))) == ['a', '1']
    assert classes_of(dict(CLASSES=['a'])) == ['a']  # of older toolboxes
    for nothing in (None, {}, dict(classes=None), [1]):
        assert classes_of(nothing) == []
