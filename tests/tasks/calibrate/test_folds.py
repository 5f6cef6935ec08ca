"""Which images are independent: by names, by their data set, and where neighbours are alike."""

import numpy as np
import pytest
import torch
from commands import ROOT, call_here
from mmengine.registry import DATASETS
from overconfident import draw_labels
from PIL import Image

from mmcalib.posthoc.draw import DrawnPredictions
from mmcalib.posthoc.folds import folds_of_groups, independent_groups, neighbours_alike
from mmcalib.tasks.calibrate.groups import groups_of_images


class Images(list):
    """A data set of such infos."""

    def get_data_info(self, index):
        return self[index]


def test_images_of_a_group_are_never_apart():
    groups = groups_of_images(Images({'group': number % 7} for number in range(40)))
    assert groups.tolist() == [number % 7 for number in range(40)]
    sizes = folds_of_groups(42, seed=0).bincount()
    assert len(sizes) == 5 and sizes.max() - sizes.min() <= 1
    assert folds_of_groups(3, seed=0).sort().values.tolist() == [0, 1, 2]


def test_an_image_that_is_there_twice_is_in_one_group():
    digits = dict(type='Digits', split='test', pipeline=[], indices=12)
    repeated = DATASETS.build(dict(type='RepeatDataset', dataset=digits, times=2))
    first, second = groups_of_images(repeated).split(12)
    assert torch.equal(first, second)
    # Others that stand in one list are apart, as images of one dataset are.
    both = DATASETS.build(dict(type='ConcatDataset', datasets=[digits, digits]))
    assert len(groups_of_images(both).unique()) == 12


def test_a_pattern_of_file_names():
    paths = [f'data/{city}/{city}_{number}.png' for city in ('Ulm', 'Bonn') for number in range(3)]
    images = Images({'img_path': path} for path in paths)
    for pattern in ('Ulm|Bonn', r'/(\w+)/', r'(\w+)_\d'):
        assert groups_of_images(images, pattern).tolist() == [0, 0, 0, 1, 1, 1]
    # Names of two kinds are never of one group.
    assert groups_of_images(images, r'Ulm_(\d)|Bonn_(\d)').tolist() == list(range(6))
    with pytest.raises(ValueError, match='--groups Ulm finds nothing in data'):
        groups_of_images(images, 'Ulm')
    with pytest.raises(ValueError, match='the images have no file names'):
        groups_of_images(range(5), 'x')


def predictions(content, error, *, pixels=50, seed=0):
    """Pixels of images whose logits have an error, `(n, K)`, beside what the images show."""
    rng = np.random.default_rng(seed)
    images = np.arange(len(content)).repeat(pixels)
    truth = content[images] + rng.normal(size=(len(images), content.shape[1]))
    parts = map(torch.as_tensor, (truth + error[images], draw_labels(truth, rng), images))
    return DrawnPredictions(*parts, len(images), len(content))


def drift(n, rng):
    """A walk from frame to frame."""
    walk = rng.normal(size=(n, 4)).cumsum(axis=0)
    return walk / walk.std()


def test_frames_of_a_video_are_found():
    rng = np.random.default_rng(0)
    for seed in range(10):
        content, error = drift(60, rng), drift(60, rng)
        assert neighbours_alike(predictions(content, error, seed=seed))
        order = rng.permutation(60)
        assert not neighbours_alike(predictions(content[order], error[order], seed=seed))


def test_images_in_the_order_of_their_classes_are_independent():
    """Each class has an error of its own, which is no sign of a video."""
    rng, order = np.random.default_rng(0), np.arange(200) * 4 // 200
    for seed in range(10):
        drawn = predictions(rng.normal(size=(200, 4)), 2 * np.eye(4)[order], pixels=1, seed=seed)
        drawn.labels = torch.as_tensor(order)
        assert not neighbours_alike(drawn)
        content = rng.normal(size=(200, 4))
        content = content[content.argmax(axis=1).argsort(kind='stable')]
        assert not neighbours_alike(predictions(content, rng.normal(size=(200, 4)), seed=seed))


def test_runs_of_neighbours_are_the_groups_of_a_video():
    rng, images = np.random.default_rng(1), torch.arange(60)
    frames = predictions(drift(60, rng), drift(60, rng))
    assert independent_groups(frames, images).tolist() == [number // 12 for number in range(60)]
    assert independent_groups(predictions(*rng.normal(size=(2, 60, 4))), images) is images


@pytest.fixture
def config(tmp_path):
    """Of the digits in files: each of 12 is a video of 6 frames, under a little noise."""
    rng = np.random.default_rng(0)
    digits = DATASETS.build(dict(type='Digits', split='val', pipeline=[]))
    lines, folder = [], tmp_path / 'videos'
    folder.mkdir()
    for place in range(12):
        data = digits[place]
        for frame in range(6):
            image = 255 * (data['img'][..., 0] + rng.normal(0, 0.01, (8, 8)))
            name = f'v{place:02d}_{frame}.png'
            Image.fromarray(image.clip(0, 255).astype('uint8')).save(folder / name)
            lines.append(f'{name} {data["gt_label"]}')
    (folder / 'labels.txt').write_text('\n'.join(lines))
    path = tmp_path / 'videos.py'
    path.write_text(f"""
_base_ = '{ROOT}/configs/ce/digits.py'
val_dataloader = dict(dataset=dict(
    _delete_=True, type='CustomDataset', data_root='{folder}', ann_file='labels.txt', pipeline=[
        dict(type='LoadImageFromFile', color_type='grayscale'),
        dict(type='Normalize', mean=[0.0], std=[255.0], to_rgb=False),
        dict(type='PackInputs')]))
""")
    return path


@pytest.mark.parametrize(('pattern', 'groups'), [(None, 5), (r'v(\d+)_', 12), (r'(v\d)\d_', 2)])
def test_auto_compares_by_groups(pattern, groups, config, tmp_path, monkeypatch, capsys):
    from test_calibrate import DIGITS, write_checkpoint

    monkeypatch.chdir(tmp_path)
    checkpoint = write_checkpoint(tmp_path / 'ce.pth', DIGITS, 'head.fc')
    options = ['--out', 'out.pth', '--work-dir', 'work', '--method', 'auto']
    options += ['--groups', pattern] if pattern else []
    call_here('calibrate.py', config, checkpoint, *options, monkeypatch=monkeypatch)
    output = capsys.readouterr().out
    assert ('Neighbours among the 72 images are alike' in output) == (pattern is None)
    assert f'Cross-validated over {groups} groups of 72 images' in output
    assert ('only a temperature is compared' in output) == (groups < 10)
    assert ('matrix' in output) == (groups >= 10)
