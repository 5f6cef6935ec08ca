"""CIFAR-10-C and ImageNet-C in place of the clean data, and what is refused."""

import numpy as np
import pytest
import shifted
from commands import call_here
from images import save, write_tiny_imagenet
from mmengine.registry import DATASETS

from mmcalib.datasets import CIFARC, ImageNetC
from mmcalib.reports.robustness_results import read_robustness
from mmcalib.runs.config import load_config
from mmcalib.tasks.robustness.corrupted_pipeline import corruption_places
from mmcalib.tasks.robustness.stored_corruptions import StoredSet

LABELS = np.repeat(np.arange(4), 3)  # those of the clean data


def write_arrays(root, *, labels=LABELS, size=32, names=('fog',)):
    root.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for name in names:
        images = rng.integers(0, 256, (5 * len(labels), size, size, 3), dtype=np.uint8)
        np.save(root / f'{name}.npy', images)
    np.save(root / 'labels.npy', np.tile(labels, 5))
    return root


def write_tree(root, *, classes=('class_0', 'class_1', 'class_2', 'class_3'), size=(32, 32)):
    rng = np.random.default_rng(0)
    for severity in range(1, 6):
        for name in classes:
            for number in range(3):
                save(root / 'fog' / str(severity) / name / f'{number}.JPEG', size, rng)
    return root


@pytest.fixture
def clean(tmp_path):
    cfg = load_config(str(shifted.write_config(tmp_path, 'classifier')))
    cfg.test_dataloader.dataset.data_root = str(tmp_path / 'data')
    return cfg.test_dataloader.dataset


def stored(clean, root):
    return StoredSet(clean, corruption_places(clean, 'mmpretrain'), str(root), 'mmpretrain')


def test_a_severity_is_a_fifth_of_an_array(tmp_path):
    root = write_arrays(tmp_path / 'c')
    dataset = DATASETS.build(dict(type='CIFARC', data_root=str(root), corruption='fog', severity=2))
    images = np.load(root / 'fog.npy')
    assert len(dataset) == 12
    for index in (0, 11):
        sample = dataset[index]
        np.testing.assert_array_equal(sample['img'], images[12 + index])
        assert sample['gt_label'] == LABELS[index]
    bgr = CIFARC(str(root), 'fog', 2, channel_order='bgr')
    np.testing.assert_array_equal(bgr[3]['img'], images[15][..., ::-1])


def test_a_severity_is_a_folder(tmp_path):
    root = write_tree(tmp_path / 'c')
    dataset = ImageNetC(str(root), 'fog', 2, class_folders=[f'class_{k}' for k in (2, 0, 1, 3)])
    assert len(dataset) == 12
    assert dataset[0]['img_path'].endswith('fog/2/class_2/0.JPEG') and dataset[0]['gt_label'] == 0
    assert [dataset[i]['gt_label'] for i in range(12)] == LABELS.tolist()


@pytest.mark.parametrize('write', [write_arrays, write_tree])
def test_stored_images_are_read_as_the_clean_ones(write, clean, tmp_path):
    root = write(tmp_path / 'c')
    kept = stored(clean, root)
    kept.check(['fog'], [1])
    config = kept.dataset('fog', 3)
    with DATASETS.switch_scope_and_registry('mmpretrain') as registry:
        dataset = registry.build(config)
        sample = dataset[5]
    assert sample['inputs'].shape == (3, 32, 32) and sample['data_samples'].gt_label == 1
    if write is write_arrays:  # as files are, in BGR
        image = np.load(root / 'fog.npy')[24 + 5][..., ::-1]
        np.testing.assert_array_equal(sample['inputs'].numpy(), image.transpose(2, 0, 1))


def test_folders_are_numbered_as_those_of_the_clean_data(tmp_path):
    root = write_tiny_imagenet(tmp_path / 'tiny', val=3)
    wnids = (root / 'wnids.txt').read_text().split()
    assert wnids != sorted(wnids)
    pipeline = [dict(type='LoadImageFromFile'), dict(type='PackInputs')]
    clean = dict(type='TinyImageNet', data_root=str(root), split='val', pipeline=pipeline)
    kept = stored(clean, write_tree(tmp_path / 'c', classes=wnids, size=(64, 64)))
    kept.check(['fog'], [1])
    with DATASETS.switch_scope_and_registry('mmpretrain') as registry:
        dataset = registry.build(kept.dataset('fog', 1))
        dataset.full_init()
    for index in range(9):
        info = dataset.get_data_info(index)
        assert f'/{wnids[info["gt_label"]]}/' in info['img_path']


@pytest.mark.parametrize('flat', [False, True])
def test_folders_are_numbered_as_the_labels_of_the_clean_files(flat, clean, tmp_path):
    root = write_tree(tmp_path / 'c')
    names = [path.name for path in sorted((root / 'fog/1').iterdir())]
    rows = []
    for label, name in enumerate(reversed(names)):
        for number in range(3):
            old = tmp_path / 'data' / name / f'{number}.jpg'
            file = f'{name}_{number}.jpg' if flat else f'{name}/{number}.jpg'
            old.rename(tmp_path / 'data' / file)
            rows.append(f'{file} {label}\n')
            if flat:  # as in ImageNet, whose stored images keep their names
                for severity in range(1, 6):
                    folder = root / 'fog' / str(severity) / name
                    (folder / f'{number}.JPEG').rename(folder / f'{name}_{number}.JPEG')
    (tmp_path / 'data/list.txt').write_text(''.join(rows))
    clean = {**clean, 'ann_file': 'list.txt', 'data_prefix': ''}
    kept = stored(clean, root)
    assert kept.dataset('fog', 2)['class_folders'] == names[::-1]
    kept.check(['fog'], [1, 5])
    if flat:
        next((root / 'fog/1/class_2').iterdir()).rename(root / 'fog/1/class_2/other.JPEG')
        with pytest.raises(ValueError, match='cannot match its folders with classes'):
            stored(clean, root)


def test_all_that_is_to_be_tested_is_looked_at(clean, tmp_path):
    arrays, tree = write_arrays(tmp_path / 'a', names=('fog', 'snow')), write_tree(tmp_path / 't')
    next((tree / 'fog/3/class_1').iterdir()).unlink()
    with pytest.raises(ValueError, match='fog 3, is from another data set: it has 11 images'):
        stored(clean, tree).check(['fog'], [1, 3])
    np.save(arrays / 'snow.npy', np.zeros((60, 40, 40, 3), np.uint8))
    with pytest.raises(ValueError, match='snow 1, has images of 40×40 pixels'):
        stored(clean, arrays).check(['fog', 'snow'], [1])
    with pytest.raises(FileNotFoundError, match=r'frost\.npy'):
        stored(clean, arrays).check(['fog', 'frost'], [1])


def test_the_tool_tests_on_them(tmp_path, monkeypatch, capsys):
    shifted.write_project(tmp_path, 'classifier')
    write_arrays(tmp_path / 'c', names=('fog', 'snow'))
    monkeypatch.chdir(tmp_path)
    arguments = ['--stored', 'c', '--corruptions', 'fog', 'snow', '--severities', '1', '5']
    call_here(
        'test_robustness.py', 'tiny.py', 'plain.pth', *arguments, '--work-dir', 'out',
        '--limit', '8', monkeypatch=monkeypatch,
    )  # fmt: skip
    content = read_robustness('out')
    tests = content['checkpoints'][0]['tests']
    assert len(tests) == 5 and content['limit'] == 8
    assert [test.get('stored') for test in tests] == [None, *['c'] * 4]
    assert 'Images of the stored set c: snow, fog at severity 1, 5.' in capsys.readouterr().out


@pytest.mark.parametrize(
    ('write', 'options', 'message'),
    [
        (write_arrays, dict(labels=LABELS[:8]), '8 images in 3 classes, the clean test data 12 in'),
        (write_arrays, dict(labels=np.repeat(range(4), 2)), 'in 4 .*, or classes of other sizes'),
        (write_arrays, dict(size=40), 'images of 40×40 pixels, but clean ones are 32×32'),
        (write_tree, dict(size=(48, 32)), 'images of 32×48 pixels, but clean ones are 32×32'),
        (write_tree, dict(classes=['class_0', 'x', 'class_2', 'class_3']),
         'other classes than the model: 2 folders, such as class_1'),
    ],
)  # fmt: skip
def test_another_set_is_refused(write, options, message, clean, tmp_path):
    with pytest.raises(ValueError, match=message):
        stored(clean, write(tmp_path / 'c', **options)).check(['fog'], [1])


def test_values_of_a_range_are_none_that_are_stored(tmp_path):
    dataset = load_config(str(shifted.ROOT / 'configs/ce/digits.py')).test_dataloader.dataset
    with pytest.raises(ValueError, match=r'has 8-bit images, .* value_range=\(-1\.5, 2\.5\)'):
        stored(dataset, write_arrays(tmp_path / 'c', size=8))


def test_what_is_not_there_is_named(clean, tmp_path):
    arrays, tree = write_arrays(tmp_path / 'a'), write_tree(tmp_path / 't')
    for root, name in ((arrays, 'snow.npy'), (tree, 'nor a folder snow/1')):
        with pytest.raises(FileNotFoundError, match=name):
            stored(clean, root).check(['snow'], [1])
    with pytest.raises(ValueError, match='severity must be one of'):
        CIFARC(str(arrays), 'fog', 0)
    np.save(arrays / 'snow.npy', np.zeros((59, 32, 32, 3), np.uint8))
    with pytest.raises(ValueError, match='equal division'):
        CIFARC(str(arrays), 'snow', 1)
    both = dict(type='ConcatDataset', datasets=[clean, clean])
    with pytest.raises(ValueError, match='replaces one data set, but the config has 2'):
        stored(both, arrays)
