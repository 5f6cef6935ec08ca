from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from posts import write_posts
from sklearn import datasets
from sklearn.datasets import load_files

from mmcalib.openmmlab.datasets import Newsgroups20
from mmcalib.openmmlab.datasets.newsgroups import GROUPS, SPLITS, Post, split_posts, split_words
from mmcalib.runs.missing_data import missing_data_message


def build(root, num_val=9, **options):
    options |= dict(num_val=num_val)
    return {split: Newsgroups20(str(root), split, **options) for split in SPLITS}


def texts(data):
    """The words that each sample's ids stand for."""
    words = ['', *data.metainfo['words']]
    return [' '.join(words[i] for i in data[n]['ids']).strip() for n in range(len(data))]


def paths(splits):
    return [data[i]['path'] for data in splits.values() for i in range(len(data))]


def test_the_split_is_that_of_the_published_code():
    for total, sizes in ((18846, [14177, 900, 3769]), (19997, [15098, 900, 3999])):
        posts, indices = [Post('sci.med', f'{i}', '', '') for i in range(total)], np.arange(total)
        np.random.seed(1)
        np.random.shuffle(indices)
        splits = split_posts(posts, 'paper', 1, 900)
        assert [len(splits[name]) for name in SPLITS] == sizes
        drawn = [int(post.name) for name in SPLITS for post in splits[name]]
        assert drawn == indices.tolist()


@pytest.mark.parametrize(('protocol', 'sizes'), [('paper', [87, 9, 24]), ('bydate', [71, 9, 40])])
def test_protocols(protocol, sizes, tmp_path, monkeypatch):
    splits = build(write_posts(tmp_path), protocol=protocol)
    found, other = paths(splits), paths(build(tmp_path, protocol=protocol, seed=2))
    assert [len(data) for data in splits.values()] == sizes and len(set(found)) == 120
    plain = Path.iterdir  # another file system has another order
    monkeypatch.setattr(Path, 'iterdir', lambda folder: reversed(list(plain(folder))))
    assert paths(build(tmp_path, protocol=protocol)) == found != other
    if protocol == 'bydate':  # keeps the archive's test
        assert ['bydate-test' in path for path in found] == [False] * 80 + [True] * 40
        assert set(found[80:]) == set(other[80:]) and set(found[71:80]) != set(other[71:80])
    sample, text = splits['train'][0], texts(splits['train'])[0]
    assert sample['gt_label'] == GROUPS.index(Path(sample['path']).parent.name)
    assert f'the group{sample["gt_label"]} the ' in text and text.endswith('th café')
    assert splits['train'].metainfo['classes'] == GROUPS


@pytest.mark.parametrize('length', [2, 5])
def test_ids_are_those_of_keras_on_the_split_words_the_training_posts(length, tmp_path):
    splits = build(write_posts(tmp_path), num_words=5, length=length)
    posts = [Path(path).read_text('latin-1') for path in paths(splits)]
    # Without the header, which names the group.
    bodies = [post.partition('\n\n')[2].lower().replace(',', ' ').split() for post in posts]
    counts = Counter(word for body in bodies[:87] for word in body)
    words = sorted(counts, key=lambda word: -counts[word])[:5]
    for split, part in zip(SPLITS, (bodies[:87], bodies[87:96], bodies[96:]), strict=True):
        assert splits[split].metainfo['words'] == words
        for index, body in enumerate(part):
            ids = [words.index(word) + 1 for word in body if word in words][-length:]
            assert splits[split][index]['ids'].tolist() == [0] * (length - len(ids)) + ids


def test_words_are_those_of_keras_behind_the_header():
    for raw, words in (
        ('From: a\n\nb\n\nC', ['b', 'c']),
        ('no empty line', ['no', 'empty', 'line']),
        ('\n\nno header', ['no', 'header']),
        ("a: b\n\nDon't_stop!", ["don't", 'stop']),
    ):
        assert split_words(Post('sci.med', '1', '', '', raw)) == words


def test_scikit_learns_copy_is_used_only_if_asked_for(tmp_path, monkeypatch):
    folder, cache = write_posts(tmp_path / 'unpacked'), tmp_path / 'cache'

    def fetch(*, data_home, subset, shuffle):
        assert data_home == str(cache) and not shuffle
        return load_files(folder / f'20news-bydate-{subset}', encoding='latin1')

    monkeypatch.setattr(datasets, 'fetch_20newsgroups', fetch)
    fetched, unpacked = build(cache, download=True), build(folder, download=True)  # not again
    assert all(texts(fetched[split]) == texts(unpacked[split]) for split in SPLITS)
    with pytest.raises(FileNotFoundError, match='set download=True'):
        build(cache)


def test_what_cannot_be_is_refused(tmp_path):
    settings = dict(type='Newsgroups20', data_root=str(tmp_path / 'nowhere'))
    for download, source in ((False, 'qwone'), (True, None)):
        loader = dict(dataset=settings | dict(download=download))
        said = missing_data_message({'train_dataloader': loader})
        assert source in said if source else said is None

    def refused(error, message, **options):
        with pytest.raises(error, match=message):
            build(tmp_path, **options)

    refused(FileNotFoundError, r'http://qwone\.com/~jason/20Newsgroups/')
    refused(ValueError, 'must be one of', protocol='papers')
    write_posts(tmp_path, older=True)
    assert texts(build(tmp_path / '20_newsgroups')['val']) == texts(build(tmp_path)['val'])
    refused(ValueError, r"'bydate' requires the by-date archive", protocol='bydate')
    refused(ValueError, r'96 training posts .* too few for num_val=96', num_val=96)
    (tmp_path / '20_newsgroups/sci.med').rename(tmp_path / 'aside')
    refused(FileNotFoundError, r'20_newsgroups/sci\.med')
