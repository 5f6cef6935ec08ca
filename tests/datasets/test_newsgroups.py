import random
from pathlib import Path

import numpy as np
import pytest
from posts import write_posts
from sklearn import datasets
from sklearn.datasets import load_files
from sklearn.utils import Bunch

from mmcalib.datasets import Newsgroups20
from mmcalib.datasets.download_sources import missing_data_message
from mmcalib.datasets.newsgroups import GROUPS, SPLITS, Post, find_posts, read_text, split_posts


def texts(data):
    return [data.get_data_info(i)['text'] for i in range(len(data))]


def build(root, **kwargs):
    return {split: Newsgroups20(str(root), split, num_val=9, **kwargs) for split in SPLITS}


def paths(splits):
    return [data.get_data_info(i)['path'] for data in splits.values() for i in range(len(data))]


@pytest.mark.parametrize(
    ('total', 'sizes'), [(18846, (14177, 900, 3769)), (19997, (15098, 900, 3999))]
)
def test_the_papers_sizes(total, sizes):
    posts = [Post('sci.med', str(i), '', '') for i in range(total)]
    splits = split_posts(posts, 'paper', 1, 900)
    assert tuple(len(splits[name]) for name in SPLITS) == sizes


def test_the_split_is_that_of_the_published_code():
    posts = [Post('sci.med', f'{i:03}', '', '') for i in range(100)]
    indices = np.arange(100)
    np.random.seed(1)
    np.random.shuffle(indices)
    splits = split_posts(posts, 'paper', 1, 10)
    drawn = {name: [int(post.name) for post in posts] for name, posts in splits.items()}
    assert drawn['train'] == list(indices[:70])
    assert drawn['val'] == list(indices[70:80])
    assert drawn['test'] == list(indices[80:])


@pytest.mark.parametrize('older', [False, True])
def test_the_papers_protocol_pools_and_splits_all_posts(tmp_path, older):
    splits = build(write_posts(tmp_path, older=older))
    assert [len(data) for data in splits.values()] == [87, 9, 24]
    assert len(set(paths(splits))) == 120
    assert texts(splits['test']) == texts(build(tmp_path)['test'])
    assert texts(splits['test']) != texts(build(tmp_path, seed=2)['test'])
    sample = splits['train'][0]
    group = Path(sample['path']).parent.name
    assert sample['gt_label'] == GROUPS.index(group)
    assert f'Group{sample["gt_label"]}' in sample['text'] and 'café' in sample['text']
    assert group not in sample['text']  # the header is cut
    assert splits['train'].metainfo['classes'] == GROUPS


def test_the_standard_protocol_keeps_the_archives_test(tmp_path):
    splits = build(write_posts(tmp_path), protocol='bydate')
    assert [len(data) for data in splits.values()] == [71, 9, 40]
    assert all('bydate-test' in path for path in paths(splits)[80:])
    assert all('bydate-train' in path for path in paths(splits)[:80])
    other = build(tmp_path, protocol='bydate', seed=2)
    assert sorted(texts(splits['test'])) == sorted(texts(other['test']))
    assert sorted(texts(splits['val'])) != sorted(texts(other['val']))


def test_the_older_folder_may_be_named_itself_but_has_no_dates(tmp_path):
    write_posts(tmp_path, older=True)
    inside = build(tmp_path / '20_newsgroups')
    assert texts(inside['val']) == texts(build(tmp_path)['val'])
    with pytest.raises(ValueError, match=r"'bydate' requires the by-date archive"):
        build(tmp_path, protocol='bydate')


def test_the_order_of_the_file_system_makes_no_difference(tmp_path, monkeypatch):
    write_posts(tmp_path)
    first = find_posts(str(tmp_path))
    plain = Path.iterdir

    def shuffled(folder):
        files = list(plain(folder))
        random.shuffle(files)
        return iter(files)

    monkeypatch.setattr(Path, 'iterdir', shuffled)
    assert find_posts(str(tmp_path)) == first


def test_training_posts_are_named_the_same_in_all_splits(tmp_path):
    write_posts(tmp_path)
    names = {data.metainfo['training_posts'] for data in build(tmp_path).values()}
    assert len(names) == 1 and "87 posts of protocol 'paper' with seed 1" in names.pop()


def test_scikit_learns_copy_is_used_only_if_asked_for(tmp_path, monkeypatch):
    folder = write_posts(tmp_path / 'unpacked')

    def fetch(*, data_home, subset, shuffle):
        assert data_home == str(tmp_path / 'cache') and not shuffle
        return load_files(folder / f'20news-bydate-{subset}', encoding='latin1')

    monkeypatch.setattr(datasets, 'fetch_20newsgroups', fetch)
    fetched = build(tmp_path / 'cache', download=True)
    unpacked = build(folder)
    for split in SPLITS:
        assert texts(fetched[split]) == texts(unpacked[split])
    assert fetched['val'].metainfo == unpacked['val'].metainfo

    monkeypatch.setattr(datasets, 'fetch_20newsgroups', lambda **_: Bunch())
    build(folder, download=True)  # the folder is there, so nothing is fetched
    with pytest.raises(FileNotFoundError, match='set download=True'):
        build(tmp_path / 'cache')


def test_missing_data_is_named_with_its_source(tmp_path):
    with pytest.raises(FileNotFoundError, match=r'http://qwone\.com/~jason/20Newsgroups/'):
        build(tmp_path)
    settings = dict(type='Newsgroups20', data_root=str(tmp_path / 'nowhere'))
    message = missing_data_message({'train_dataloader': dict(dataset=settings)})
    assert 'http://qwone.com/~jason/20Newsgroups/' in message
    settings['download'] = True
    assert missing_data_message({'train_dataloader': dict(dataset=settings)}) is None

    write_posts(tmp_path)
    (tmp_path / '20news-bydate-test/sci.med').rename(tmp_path / 'aside')
    with pytest.raises(FileNotFoundError, match=r'20news-bydate-test/sci\.med'):
        build(tmp_path)


def test_bad_options_and_posts_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"split must be one of .* got 'tset'"):
        Newsgroups20(str(tmp_path), 'tset')
    with pytest.raises(ValueError, match=r"protocol must be one of .* got 'papers'"):
        Newsgroups20(str(tmp_path), 'val', protocol='papers')
    with pytest.raises(ValueError, match=r'num_val must be an integer of at least 1, got 0'):
        Newsgroups20(str(tmp_path), 'val', num_val=0)
    write_posts(tmp_path)
    with pytest.raises(ValueError, match=r'96 training posts .* too few for num_val=900'):
        Newsgroups20(str(tmp_path), 'val')


def test_only_a_header_is_cut(tmp_path):
    def read(raw):
        return read_text(Post('sci.med', '1', '', '', raw))

    assert read('From: a\n\nb\n\nc').split() == ['b', 'c']
    assert read('no empty line') == 'no empty line'
    assert read('\n\nno header').split() == ['no', 'header']
