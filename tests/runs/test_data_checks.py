"""Data that do not fit the model, or cannot be read, are found before the first step."""

import random
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from commands import ROOT, call, call_here
from images import write_folders, write_tiny_imagenet, write_voc
from mmcv.transforms import BaseTransform
from mmengine.config import Config
from mmengine.dataset import BaseDataset, Compose
from mmengine.logging import MMLogger
from mmengine.registry import DATASETS, TRANSFORMS
from PIL import Image
from test_checkpoint_choice import config
from tiny_models import fcn_head, segmentor
from torch import nn
from torch.utils.data import DataLoader

from mmcalib.checks import UserError
from mmcalib.hooks.name_broken_samples_hook import (
    KnownLabels,
    NamingPipeline,
    labels_known_to,
    name_samples,
)
from mmcalib.runs import data_checks
from mmcalib.runs.data_checks import check_run_data
from mmcalib.runs.runner import train_and_test

LOAD = [dict(type='LoadImageFromFile'), dict(type='mmpretrain.PackInputs')]


class Labels(BaseDataset):
    def __init__(self, labels, classes=None, **kwargs):
        self.labels = labels
        super().__init__(metainfo=dict(classes=classes) if classes else None, **kwargs)

    def load_data_list(self):
        return [{'gt_label': label} for label in self.labels]


def check(classes, *, training=True, evaluator=None, **datasets):
    """Check datasets, or what builds them, for a head of so many classes."""

    class Runner(SimpleNamespace):
        def __getattr__(self, name):
            if name.endswith('_evaluator'):
                return SimpleNamespace(metrics=[])
            data = datasets[name.removesuffix('_dataloader')]
            return SimpleNamespace(dataset=data() if callable(data) else data)

    model = nn.Module()
    model.head = nn.Module()
    model.head.num_classes = classes
    runner = Runner(
        model=model,
        cfg=Config(
            {f'{split}_dataloader': {} for split in datasets} | dict(test_evaluator=evaluator)
        ),
        logger=MMLogger.get_current_instance(),
    )
    check_run_data(runner, ('train', 'val', 'test'), training=training)


def folders(root):
    return DATASETS.build(dict(type='mmpretrain.CustomDataset', data_root=str(root), pipeline=LOAD))


def test_data_that_fit_are_taken(tmp_path):
    data = folders(write_folders(tmp_path, classes=3))
    check(3, train=data, val=data, test=data)
    check(None, test=Labels([7]))
    check(3, test=Labels([[0, 9]]))  # several labels are another's business


@pytest.mark.parametrize('classes', [2, 4])
def test_other_classes_than_the_models(classes):
    data = Labels([0, 1, 1], classes=('a', 'b', 'c'))
    with pytest.raises(
        UserError, match=rf'train data have 3 classes, .* the model has {classes}\. Is the'
    ):
        check(classes, train=data)
    if classes == 4:
        check(classes, test=data, training=False)


def test_labels_out_of_range():
    with pytest.raises(UserError, match=r'val data have 2 labels .* \[0, 3\), .*sample 1 has 3'):
        check(3, train=Labels([0, 1, 2]), val=Labels([0, 3, -1, 2]))


def test_unseen_classes_have_other_labels_where_only_their_metric_reads_them():
    ours = dict(type='OODMetric', ood_index=7)
    check(3, test=Labels([0, -1, 2, -2, 7]), evaluator=[ours])
    check(3, test=Labels([0, -1]), evaluator=dict(type='OODMetric'))
    with pytest.raises(UserError, match=r'have 1 labels .*sample 1 has 4$'):
        check(3, test=Labels([0, 4, -1]), evaluator=[ours])
    with pytest.raises(
        UserError, match=r'sample 1 has -1: OODMetric treats it .*, but Accuracy wo'
    ):
        check(3, test=Labels([0, -1]), evaluator=[dict(type='OODMetric'), dict(type='Accuracy')])
    with pytest.raises(UserError, match=r'test_evaluator: ood_index=7 is none of the 3 classes: '):
        check(3, test=Labels([0]), evaluator=[ours, dict(type='Accuracy')])
    with pytest.raises(UserError, match='the train data have 1 labels'):
        check(3, train=Labels([-1]), test=Labels([-1]), evaluator=[ours])


def test_every_nth_label_of_many(monkeypatch):
    monkeypatch.setattr(data_checks, 'MOST_LABELS', 10)
    labels = [0] * 50
    labels[45] = 9
    with pytest.raises(UserError, match='sample 45 has 9'):
        check(3, test=Labels(labels))
    labels[45], labels[46] = 0, 9
    check(3, test=Labels(labels))


def test_an_empty_test_and_one_that_cannot_be_listed(tmp_path):
    with pytest.raises(UserError, match='test data or their metrics: Found 0 files'):
        check(3, train=Labels([0]), test=lambda: folders(tmp_path))
    for empty in (lambda: Labels([]), []):
        with pytest.raises(UserError, match='the test data have no samples'):
            check(3, train=Labels([0]), test=empty)
    with pytest.raises(UserError, match=r'the test data or their metrics: .*nowhere'):
        check(3, train=Labels([0]), test=lambda: Path('nowhere').read_text())


def test_an_incomplete_tiny_imagenet(tmp_path):
    root = write_tiny_imagenet(tmp_path)
    tiny = dict(type='TinyImageNet', data_root=str(root), split='train')
    with pytest.raises(
        UserError, match='train data have 3 classes, but the head of the model has 200'
    ):
        check(200, train=DATASETS.build(tiny))


@pytest.mark.parametrize('broken', ['missing', 'empty'])
def test_missing_and_empty_images(tmp_path, broken):
    data = folders(write_folders(tmp_path, classes=3, per_class=2))
    for path in (tmp_path / 'class_1/1.jpg', tmp_path / 'class_2/0.jpg'):
        path.unlink()
        if broken == 'empty':
            path.touch()
    with pytest.raises(UserError, match=r'class_1/1\.jpg.*, and 1 more of 6 samples'):
        check(3, train=data)


def test_a_first_sample_that_cannot_be_loaded_leaves_randomness_as_it_was(tmp_path):
    data = folders(write_folders(tmp_path, classes=3))

    def state():
        return random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()

    before = state()
    data.pipeline.transforms.insert(1, lambda sample: (random.random(), torch.rand(3), sample)[2])
    check(3, test=data)
    assert state() == before
    (tmp_path / 'class_0/0.jpg').write_text('no image')
    with pytest.raises(UserError, match=r'test data: cannot load .*class_0/0\.jpg: '):
        check(3, test=data)


def test_a_mask_with_other_labels(tmp_path):
    write_voc(tmp_path)
    voc = dict(
        type='mmseg.PascalVOCDataset',
        data_root=str(tmp_path),
        data_prefix=dict(img_path='JPEGImages', seg_map_path='SegmentationClass'),
        ann_file='ImageSets/Segmentation/val.txt',
        pipeline=[
            dict(type='LoadImageFromFile'),
            dict(type='mmseg.LoadAnnotations'),
            dict(type='mmseg.PackSegInputs'),
        ],
    )
    data = DATASETS.build(voc)
    check(21, test=data)
    data._metainfo = {}
    with pytest.raises(UserError, match=r'labels outside \[0, 10\): 20; the model has 10 classes'):
        check(10, test=data)
    check(10, test=data, evaluator=[dict(type='OODMetric', ood_index=20)])
    (tmp_path / 'SegmentationClass/f.png').unlink()
    with pytest.raises(UserError, match=r'there is no file .*SegmentationClass/f\.png'):
        check(21, test=data)
    data.pipeline.transforms = []  # a test that needs no masks
    check(21, test=data)


@pytest.mark.parametrize('workers', [0, 1])
def test_an_image_that_breaks_later_is_named(tmp_path, workers):
    data = folders(write_folders(tmp_path, classes=2, per_class=2))
    name_samples(SimpleNamespace(datasets=[SimpleNamespace(dataset=data)]))
    path = tmp_path / 'class_1/1.jpg'
    path.write_bytes(b'')
    with pytest.raises(UserError) as error:
        list(DataLoader(data, num_workers=workers, collate_fn=list))
    assert error.value.reason == f'cannot load {path}: {path} is empty (0 bytes)'


def test_a_transform_that_fails_names_the_sample_and_the_error():
    data = Labels([0, 1], pipeline=[lambda sample: sample['no such key']])
    name_samples(data)
    name_samples(data)
    with pytest.raises(UserError, match=r"^cannot load sample 1: KeyError: 'no such key'$"):
        data[1]


def test_a_training_looks_at_all_of_its_data_before_the_first_step(tmp_path):
    # Of which a training, a validation and a test would find nothing wrong.
    with pytest.raises(
        UserError, match='train data have 10 classes, but the head of the model has 12'
    ):
        train_and_test(config(tmp_path / 'a', model__head__num_classes=12))
    with pytest.raises(UserError, match='the test data have no samples'):
        train_and_test(config(tmp_path / 'b', test_dataloader__dataset__indices=[]))
    assert not list(tmp_path.rglob('*.pth'))


def test_a_test_looks_at_its_data_first(tmp_path, monkeypatch, capsys):
    torch.save({'state_dict': {}}, tmp_path / 'a.pth')
    with pytest.raises(SystemExit):
        call_here(
            'test.py', ROOT / 'configs/mbls/digits.py', tmp_path / 'a.pth', '--work-dir',
            tmp_path / 'b', '--cfg-options', 'test_dataloader.dataset.indices=[]',
            monkeypatch=monkeypatch,
        )  # fmt: skip
    assert 'error: the test data have no samples' in capsys.readouterr().err


def test_a_training_names_the_image_that_breaks_it(tmp_path):
    root = write_folders(tmp_path / 'images', per_class=1)
    (root / 'class_7/0.jpg').write_text('no image')
    cfg = config(tmp_path / 'run')
    cfg.train_dataloader.dataset = dict(type='CustomDataset', data_root=str(root), pipeline=LOAD)
    cfg.val_cfg = cfg.val_dataloader = cfg.val_evaluator = None
    with pytest.raises(UserError, match=r'cannot load .*class_7/0\.jpg: '):
        train_and_test(cfg, test=False)


def train_on_masks(folder, loss, name, label, **options):
    """Train a small network on Pascal VOC, one of whose masks has a label in a corner."""
    train_and_test(masks(folder, loss, name, label, **options), test=False)


def masks(folder, loss, name, label, **options):
    """Return the config of such a training, whose masks are in `folder`."""
    root = write_voc(folder / 'VOC2012')
    path = root / f'SegmentationClass/{name}.png'
    mask = np.asarray(Image.open(path)).copy()
    mask[:6, :6] = label
    Image.fromarray(mask).save(path)
    cfg = config(folder / 'run', 'mbls/digit_scenes', **options)
    load = [dict(type='LoadImageFromFile', color_type='grayscale'), dict(type='LoadAnnotations')]
    steps = [*load, dict(type='Resize', scale=(40, 40)), dict(type='PackSegInputs')]
    cfg.train_dataloader.dataset = dict(
        type='PascalVOCDataset', data_root=str(root), ann_file='ImageSets/Segmentation/train.txt',
        data_prefix=dict(img_path='JPEGImages', seg_map_path='SegmentationClass'), pipeline=steps,
    )  # fmt: skip
    cfg.val_cfg = cfg.val_dataloader = cfg.val_evaluator = None
    cfg.model.decode_head.num_classes = 21
    cfg.model.decode_head.loss_decode = loss
    return cfg
    return path


LOSSES = [dict(type=name) for name in ('MarginLabelSmoothingLoss', 'CrossEntropyLoss', 'DiceLoss')]


@pytest.mark.parametrize('workers', [0, 1])
@pytest.mark.parametrize('loss', LOSSES, ids=lambda loss: loss['type'])
def test_a_training_names_the_mask_with_a_label_out_of_range(loss, workers, tmp_path):
    with pytest.raises(UserError) as error:
        train_on_masks(tmp_path, loss, 'b', 77, train_dataloader__num_workers=workers)
    path = tmp_path / 'VOC2012/SegmentationClass/b.png'
    start, _, end = error.value.reason.partition(' labels outside [0, 21): 77. The model has 21 ')
    assert start.startswith(f'{path} has ') and '255: check the file' in end
    assert '\n' not in error.value.reason


def test_on_two_processes_the_other_one_says_no_more(tmp_path, free_port):
    cfg = masks(tmp_path, LOSSES[1], 'b', 77, train_dataloader__batch_size=1)
    cfg.dump(tmp_path / 'masks.py')
    said = call(
        'dist_train.sh', tmp_path / 'masks.py', 2, '--work-dir', 'run', '--no-test', cwd=tmp_path,
        check=False, PORT=free_port,
    )  # fmt: skip
    (line,) = [line for line in said.splitlines() if 'error:' in line]
    assert 'SegmentationClass/b.png has ' in line and 'outside [0, 21): 77' in line
    assert 'Traceback' not in said


def test_labels_that_the_model_ignores_are_trained_with(tmp_path):
    ignoring = dict(model__decode_head__ignore_index=77)
    with pytest.raises(UserError, match=r'outside \[0, 21\): 255\. .* ignores 77: check'):
        train_on_masks(tmp_path, LOSSES[1], 'b', 77, **ignoring)


@TRANSFORMS.register_module()
class VoidIs77(BaseTransform):
    def transform(self, results):
        mask = results['gt_seg_map']
        return {**results, 'gt_seg_map': np.where(mask == 255, 77, mask)}


def test_what_the_metrics_ignore_is_no_label(tmp_path, capsys):
    def run(name, *ignored):
        cfg = config(tmp_path / name, 'mbls/digit_scenes')
        cfg.model.decode_head.ignore_index = 77
        for split in ('train', 'val', 'test'):
            cfg[f'{split}_dataloader'].dataset.pipeline.insert(0, dict(type='VoidIs77'))
        for evaluator in (cfg.val_evaluator, cfg.test_evaluator):
            for metric, label in zip(evaluator, ignored, strict=True):
                metric.ignore_index = label
        return train_and_test(cfg)

    assert run('a', 77, 77)['calibration/ECE'] >= 0
    assert 'The head ignores' not in capsys.readouterr().out
    with pytest.raises(UserError, match=r'77; .* CalibrationMetric ignores 255'):
        run('b', 77, 255)
    assert 'label 77, and in the val data CalibrationMetric 255' in capsys.readouterr().out


@pytest.mark.parametrize(
    ('ignored', 'labels', 'wrong'),
    [((255,), [0, 2, 255], None), ((9, 255), [9, 2], None), ((255,), [-1, 2], -1), ((), [3], 3)],
)
def test_a_class_out_of_range_is_named_with_its_image(ignored, labels, wrong):
    sample = SimpleNamespace(gt_label=torch.tensor(labels))
    steps = Compose([lambda _: dict(data_samples=sample)])
    load = NamingPipeline(steps, KnownLabels(3, ignored))
    if wrong is None:
        assert load(dict(img_path='a.jpg'))['data_samples'] is sample
    else:
        with pytest.raises(UserError, match=rf'^a\.jpg has 1 labels outside \[0, 3\): {wrong}\.'):
            load(dict(img_path='a.jpg'))


@pytest.mark.parametrize(('classes', 'expected'), [(1, 2), (4, 4)])
def test_a_single_logit_tells_two_classes_apart(classes, expected):
    model = segmentor(fcn_head(num_classes=classes, ignore_index=7))
    assert labels_known_to(model).classes == expected
    assert 7 in labels_known_to(model).ignored
