"""What tells data from others: files, arrays and labels, and not where they lie."""

import os

import numpy as np
import pytest

from mmcalib.runs.data_fingerprint import data_fingerprint, stored_fingerprint


class Samples(list):
    def get_data_info(self, index):
        return self[index]


def files(root, labels=(0, 1)):
    return Samples(
        {'img_path': str(root / f'{label}/{number}.png'), 'gt_label': label}
        for number, label in enumerate(labels)
    )


@pytest.fixture
def folder(tmp_path):
    for number in range(2):
        path = tmp_path / f'data/{number}/{number}.png'
        path.parent.mkdir(parents=True)
        path.write_bytes(bytes(10))
    return tmp_path / 'data'


def test_a_move_changes_nothing(folder):
    before = data_fingerprint(files(folder))
    folder.rename(folder.with_name('moved'))
    assert data_fingerprint(files(folder.with_name('moved'))) == before


@pytest.mark.parametrize('change', ['size', 'time', 'label', 'number', 'name', 'missing'])
def test_files_and_labels_count(change, folder):
    samples, path = files(folder), folder / '1/1.png'
    before = data_fingerprint(samples)
    if change == 'size':
        path.write_bytes(bytes(11))
        os.utime(path, ns=(0, 0))
    elif change == 'time':
        os.utime(path, ns=(0, 1))
    elif change == 'label':
        samples[1]['gt_label'] = 2
    elif change == 'number':
        samples.pop()
    elif change == 'name':
        samples[1]['img_path'] = str(path.rename(folder / '1/2.png'))
    else:
        path.unlink()
    assert data_fingerprint(samples) != before


def test_arrays_count():
    samples = Samples([{'img': np.zeros((2, 2, 3), np.uint8), 'gt_label': 0}])
    before = data_fingerprint(samples)
    samples[0]['img'][1, 1, 1] = 1
    assert data_fingerprint(samples) != before


def test_stored_arrays_and_folders_count(tmp_path):
    (tmp_path / 'c').mkdir()
    for name in ('fog', 'labels'):
        np.save(tmp_path / f'c/{name}.npy', np.zeros(10))
    before = stored_fingerprint(str(tmp_path / 'c'), 'fog', 1)
    os.utime(tmp_path / 'c/fog.npy', ns=(0, 1))
    assert stored_fingerprint(str(tmp_path / 'c'), 'fog', 1) != before

    (tmp_path / 'i/fog/1/cat').mkdir(parents=True)
    before = stored_fingerprint(str(tmp_path / 'i'), 'fog', 1)
    (tmp_path / 'i/fog/1/cat/new.JPEG').touch()
    assert stored_fingerprint(str(tmp_path / 'i'), 'fog', 1) != before
