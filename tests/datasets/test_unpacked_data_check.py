"""Broken copies of tiny data sets; the numbers of the official ones are replaced."""

import hashlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from images import CIFAR10_FILES, save, write_cifar10, write_cub, write_tiny_imagenet, write_voc
from PIL import Image

from mmcalib.datasets import unpacked_data_check as check
from mmcalib.datasets.download_sources import SOURCES

TOOL = Path(__file__).resolve().parents[2] / 'tools/prepare_data.py'


@pytest.fixture
def cifar10(tmp_path, monkeypatch):
    folder = write_cifar10(tmp_path) / 'cifar-10-batches-py'
    sums = {path.name: hashlib.md5(path.read_bytes()).hexdigest() for path in folder.iterdir()}
    assert sums.keys() == check.CIFAR10.keys() == {*CIFAR10_FILES, 'batches.meta'}
    monkeypatch.setattr(check, 'CIFAR10', sums)
    return tmp_path


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    monkeypatch.setattr(check, 'TINY_IMAGENET', {'classes': 3, 'train': 4, 'val': 2})
    return write_tiny_imagenet(tmp_path)


@pytest.fixture
def cub(tmp_path, monkeypatch):
    monkeypatch.setattr(check, 'CUB', {'classes': 3, 'train': 12, 'test': 6})
    return write_cub(tmp_path)


@pytest.fixture
def voc(tmp_path, monkeypatch):
    monkeypatch.setattr(check, 'VOC2012', {'train': 4, 'val': 3})
    monkeypatch.setattr(check, 'VOC_CLASSES', 21)
    root = write_voc(tmp_path / 'VOCdevkit/VOC2012')
    every = np.resize(np.arange(21, dtype=np.uint8), (60, 80))
    Image.fromarray(every).save(root / 'SegmentationClass/a.png')
    return root


@pytest.fixture
def news(tmp_path, monkeypatch):
    sizes = {'20news-bydate-train': 40, '20news-bydate-test': 20, '20_newsgroups': 60}
    monkeypatch.setattr(check, 'NEWSGROUPS', sizes)
    for part, size in sizes.items():
        for number in range(size):
            path = tmp_path / part / f'group.{number % 20}' / str(number)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text('From: me\n\nText')
    return tmp_path


def problems(name, root):
    return check.check(name, str(root)).problems


@pytest.mark.parametrize(
    ('name', 'fixture'),
    [
        ('cifar10', 'cifar10'),
        ('tinyimagenet', 'tiny'),
        ('cub', 'cub'),
        ('voc2012', 'voc'),
        ('20news', 'news'),
    ],
)
def test_complete_data_pass(name, fixture, request):
    report = check.check(name, request.getfixturevalue(fixture))
    assert report.problems == [] and report.rows
    assert all(found == expected for _, found, expected in report.rows)


def test_problems_of_one_kind_are_counted():
    report = check.Report()
    for number in range(8):
        report.add('missing images', f'{number}.jpg is missing')
    report.count('images', 2, 10)
    assert len(report.problems) == 9
    assert list(report.lines(most=3)) == [
        '0.jpg is missing',
        '1.jpg is missing',
        '2.jpg is missing',
        '… and 5 more: missing images',
        'images: found 2, expected 10',
    ]


def test_every_set_has_a_source():
    assert all(check.source(name) in SOURCES.values() for name in check.CHECKS)
    with pytest.raises(ValueError, match=r"name must be one of .*, got 'mnist'"):
        check.check('mnist', '.')


@pytest.mark.parametrize('name', list(check.CHECKS))
def test_an_empty_or_absent_folder_is_one_problem(name, tmp_path):
    (problem,) = problems(name, tmp_path)
    assert str(tmp_path) in problem and 'holds n' in problem
    (problem,) = problems(name, tmp_path / 'absent')
    assert 'absent is no folder' in problem


@pytest.mark.parametrize('given', ['..', '../..', 'ImageSets'])
def test_a_folder_above_or_below_is_understood(voc, given):
    (problem,) = problems('voc2012', (voc / given).resolve())
    assert f'did you mean {voc}?' in problem


def test_cifar10_files(cifar10):
    folder = cifar10 / 'cifar-10-batches-py'
    (folder / 'data_batch_2').unlink()
    (folder / 'data_batch_3').write_bytes(b'other')
    found = problems('cifar10', cifar10)
    assert found[0] == f'{folder}/data_batch_2 is missing'
    assert found[1].startswith(f'{folder}/data_batch_3 is not the official file: 5 bytes of md5')
    assert found[2:] == ['official files: found 5, expected 7']


def test_tiny_imagenet_images(tiny):
    (tiny / 'train/n00000002/images/n00000002_1.JPEG').unlink()
    save(tiny / 'train/n00000003/images/n00000003_0.JPEG', (64, 32), np.random.default_rng(0))
    val = tiny / 'val/images/val_0.JPEG'
    val.write_bytes(val.read_bytes()[:-200])
    found = problems('tinyimagenet', tiny)
    assert f'{tiny}/train/n00000002/images has 3 images, expected 4' in found
    assert 'training images: found 11, expected 12' in found
    assert f'{tiny}/train/n00000003/images/n00000003_0.JPEG is 64×32, expected 64×64' in found
    assert any(line.startswith(f'{val} cannot be read: image file is trunc') for line in found)
    assert len(found) == 4


def test_tiny_imagenet_lists(tiny):
    (tiny / 'train/n00000002').rename(tiny / 'elsewhere')
    found = problems('tinyimagenet', tiny)
    assert found[0] == f'{tiny}/train/n00000002/images is missing'
    assert found[1] == 'training images: found 8, expected 12'
    (tiny / 'words.txt').unlink()
    (problem,) = problems('tinyimagenet', tiny)
    assert f'there is no {tiny}/words.txt' in problem


def test_cub_images(cub):
    (cub / 'images/002.Bird/Bird_3.jpg').write_bytes(b'')
    (cub / 'images/003.Bird').rename(cub / 'elsewhere')
    found = problems('cub', cub)
    assert f'{cub}/images/003.Bird/Bird_0.jpg is missing' in found
    assert f'{cub}/images/002.Bird/Bird_3.jpg cannot be read: cannot identify image file' in found
    assert 'images: found 11, expected 18' in found
    labels = cub / 'image_class_labels.txt'
    labels.unlink()
    assert problems('cub', cub) == [f'{labels} is missing']


def test_voc_images_and_masks(voc):
    image, masks = voc / 'JPEGImages/b.jpg', voc / 'SegmentationClass'
    image.write_bytes(image.read_bytes()[:1000])
    (voc / 'JPEGImages/c.jpg').unlink()
    Image.new('RGB', (80, 60)).save(masks / 'e.png')
    found = problems('voc2012', voc)
    assert any(
        line.startswith(f'{image} cannot be read: image file is truncated') for line in found
    )
    assert f'{voc}/JPEGImages/c.jpg is missing' in found
    assert f'{masks}/e.png cannot be read: its mode is RGB, not one label per pixel' in str(found)
    assert 'images: found 5, expected 7' in found and 'masks: found 6, expected 7' in found
    assert len(found) == 5
    (voc / 'ImageSets/Segmentation/train.txt').unlink()
    assert f'{voc}/ImageSets/Segmentation/train.txt is missing' in problems('voc2012', voc)


def test_newsgroups(news):
    (news / '20news-bydate-train/group.3/3').write_text('')
    assert problems('20news', news) == [f'{news}/20news-bydate-train/group.3/3 is empty']
    (news / '20news-bydate-test').rename(news / 'elsewhere')
    assert f'{news}/20news-bydate-test is missing' in problems('20news', news)
    (news / '20news-bydate-train').rename(news / 'elsewhere/train')
    assert problems('20news', news) == []  # the older folder will do as well


def test_the_tool_says_what_is_missing_and_ends_with_status_1(tmp_path):
    root = write_voc(tmp_path / 'VOC2012')
    (root / 'JPEGImages/b.jpg').unlink()
    # It starts at once: neither torch nor mmengine is imported.
    code = (
        'import runpy, sys; sys.modules.update(torch=None, mmengine=None); '
        f'sys.argv = sys.argv[1:]; runpy.run_path({str(TOOL)!r}, run_name="__main__")'
    )
    result = subprocess.run(
        [sys.executable, '-c', code, TOOL, 'voc2012', root],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 1, result.stderr
    assert f'- {root}/JPEGImages/b.jpg is missing' in result.stdout
    assert 'names in train.txt: found 4, expected 1,464' in result.stdout
    assert 'VOCtrainval_11-May-2012.tar' in result.stdout.splitlines()[-1]
