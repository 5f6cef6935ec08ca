from pathlib import Path

import pytest
from images import write_tiny_imagenet

from mmcalib.openmmlab.datasets import TinyImageNet

WNIDS = ['n00000003', 'n00000002', 'n00000001']


def test_tiny_imagenet_order_is_by_class_then_name(tmp_path, monkeypatch):
    root = write_tiny_imagenet(tmp_path)
    data = TinyImageNet(str(root), 'train')
    infos = [data.get_data_info(index) for index in range(len(data))]
    assert [info['gt_label'] for info in infos] == [0] * 4 + [1] * 4 + [2] * 4
    names = [f'{wnid}/images/{wnid}_{number}.JPEG' for wnid in WNIDS for number in range(4)]
    assert [Path(info['img_path']) for info in infos] == [root / 'train' / name for name in names]
    assert data.metainfo['classes'] == tuple(f'name of {wnid}, another' for wnid in WNIDS)
    monkeypatch.setenv('HOME', str(root.parent))
    data = TinyImageNet(f'~/{root.name}', 'val')
    assert [sample['gt_label'] for sample in data] == [0, 0, 1, 1, 2, 2]
    assert all(Path(sample['img_path']).is_file() for sample in data)
    with pytest.raises(ValueError, match=r"split must be one of .*, got 'test'"):
        TinyImageNet(str(root), 'test')
    (root / 'train' / WNIDS[1]).rename(root / 'elsewhere')
    with pytest.raises(FileNotFoundError, match=f'{WNIDS[1]}/images.*tiny-imagenet-200.zip'):
        TinyImageNet(str(root), 'train')
    (root / 'wnids.txt').unlink()
    with pytest.raises(FileNotFoundError, match=r'wnids\.txt'):
        TinyImageNet(str(root), 'val')
