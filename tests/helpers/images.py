"""Tiny image data sets, laid out like the real ones."""

import pickle

import numpy as np
from PIL import Image

CIFAR10_FILES = [*(f'data_batch_{i}' for i in range(1, 6)), 'test_batch']


def save(path, size, rng):
    """Write an image of random pixels, making its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(rng.integers(0, 256, (*size[::-1], 3), dtype=np.uint8)).save(path, 'JPEG')
    return path


def write_cifar10(root):
    """Write the official six batches and the names of the classes, with few images each."""
    rng = np.random.default_rng(0)
    folder = root / 'cifar-10-batches-py'
    folder.mkdir(parents=True)
    for number, name in enumerate(CIFAR10_FILES):
        labels = [(number * 4 + k) % 10 for k in range(4)]
        data = rng.integers(0, 256, (4, 3072), dtype=np.uint8)
        (folder / name).write_bytes(pickle.dumps({'data': data, 'labels': labels}))
    names = {'label_names': [f'class {k}' for k in range(10)]}
    (folder / 'batches.meta').write_bytes(pickle.dumps(names))
    return root


def write_folders(root, *, classes=10, per_class=3):
    """Write a folder of images for each class."""
    rng = np.random.default_rng(0)
    for label in range(classes):
        for number in range(per_class):
            save(root / f'class_{label}' / f'{number}.jpg', (32, 32), rng)
    return root


def write_tiny_imagenet(root, *, classes=3, train=4, val=2):
    """Write ``tiny-imagenet-200/`` with few classes, which are not listed in sorted order."""
    rng = np.random.default_rng(0)
    wnids = [f'n{k:08d}' for k in range(classes, 0, -1)]
    image_bytes = save(root / 'test/images/test_0.JPEG', (64, 64), rng).read_bytes()
    (root / 'val/images').mkdir(parents=True)
    rows = []
    for wnid in wnids:
        (root / 'train' / wnid / 'images').mkdir(parents=True)
        (root / 'train' / wnid / f'{wnid}_boxes.txt').write_text('')
        for number in range(train):
            (root / 'train' / wnid / 'images' / f'{wnid}_{number}.JPEG').write_bytes(image_bytes)
        for _ in range(val):
            rows.append(f'val_{len(rows)}.JPEG\t{wnid}\t0\t0\t62\t62\n')
            (root / 'val/images' / f'val_{len(rows) - 1}.JPEG').write_bytes(image_bytes)
    (root / 'val/val_annotations.txt').write_text(''.join(rows))
    (root / 'wnids.txt').write_text('\n'.join(wnids))
    (root / 'words.txt').write_text(
        ''.join(f'{wnid}\tname of {wnid}, another\n' for wnid in sorted([*wnids, 'n99999999']))
    )
    return root


def write_cub(root):
    """Write ``CUB_200_2011/`` with few classes."""
    rng = np.random.default_rng(0)
    images = []
    labels = []
    split = []
    for label in range(1, 4):
        for number in range(6):
            name = f'{label:03d}.Bird/Bird_{number}.jpg'
            save(root / 'images' / name, (70, 50), rng)
            images.append(f'{len(images) + 1} {name}\n')
            labels.append(f'{len(images)} {label}\n')
            split.append(f'{len(images)} {int(number < 4)}\n')
    (root / 'images.txt').write_text(''.join(images))
    (root / 'image_class_labels.txt').write_text(''.join(labels))
    (root / 'train_test_split.txt').write_text(''.join(split))
    return root


def write_voc(root):
    """Write ``VOC2012/`` with an image and a mask per letter, listed in both folders of lists."""
    rng = np.random.default_rng(0)
    lists = [root / 'ImageSets' / folder for folder in ('Segmentation', 'people_animals')]
    for folder in (root / 'SegmentationClass', *lists):
        folder.mkdir(parents=True)
    for name in 'abcdefghi':
        save(root / 'JPEGImages' / f'{name}.jpg', (80, 60), rng)
        mask = rng.choice([0, 1, 20, 255], (60, 80)).astype(np.uint8)
        Image.fromarray(mask).save(root / 'SegmentationClass' / f'{name}.png')
    for split, names in (('train', 'abcd'), ('val', 'efg'), ('test', 'hi')):
        for folder in lists:
            (folder / f'{split}.txt').write_text(''.join(f'{name}\n' for name in names))
    return root
