from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from posts import write_posts
from sklearn import datasets
from sklearn.datasets import load_files

from mmcalib.paper.newsgroups import (
    GROUPS,
    SPLITS,
    Newsgroups20,
    Post,
    split_posts,
    split_words,
)
from mmcalib.runs.missing_data import missing_data_message


def build(root, num_val=9, **options):
    options |= dict(num_val=num_val)
    return {split: Newsgroups20(str(root), split, **options) for split in SPLITS}


def texts(data):
    """The words of each sample's ids, as one text."""
    words = ['', *data.metainfo['words']]
    result = []
    for index in range(len(data)):
        result.append(' '.join(words[word_id] for word_id in data[index]['ids']).strip())
    return result


def paths(splits):
    result = []
    for data in splits.values():
        result += [data[index]['path'] for index in range(len(data))]
    return result


def test_split_posts_equals_published_code():
    for total, sizes in ((18846, [14177, 900, 3769]), (19997, [15098, 900, 3999])):
        posts = [Post('sci.med', f'{index}', '', '') for index in range(total)]
        indices = np.arange(total)
        np.random.seed(1)
        np.random.shuffle(indices)
        splits = split_posts(posts, 'paper', 1, 900)
        assert [len(splits[name]) for name in SPLITS] == sizes
        order = [int(post.name) for name in SPLITS for post in splits[name]]
        assert order == indices.tolist()


@pytest.mark.parametrize(('protocol', 'sizes'), [('paper', [87, 9, 24]), ('bydate', [71, 9, 40])])
def test_newsgroups_protocol_splits_by_the_seed_alone(protocol, sizes, tmp_path, monkeypatch):
    splits = build(write_posts(tmp_path), protocol=protocol)
    expected = paths(splits)
    other_seed = paths(build(tmp_path, protocol=protocol, seed=2))
    assert [len(data) for data in splits.values()] == sizes
    assert len(set(expected)) == 120
    iterdir = Path.iterdir
    # Another file system has another order.
    monkeypatch.setattr(Path, 'iterdir', lambda folder: reversed(list(iterdir(folder))))
    assert paths(build(tmp_path, protocol=protocol)) == expected
    assert other_seed != expected
    if protocol == 'bydate':  # The test split is that of the archive.
        assert ['bydate-test' in path for path in expected] == [False] * 80 + [True] * 40
        assert set(expected[80:]) == set(other_seed[80:])
        assert set(expected[71:80]) != set(other_seed[71:80])
    sample = splits['train'][0]
    assert sample['gt_label'] == GROUPS.index(Path(sample['path']).parent.name)
    text = texts(splits['train'])[0]
    assert f'the group{sample["gt_label"]} the ' in text
    assert text.endswith('th café')
    assert splits['train'].metainfo['classes'] == GROUPS


@pytest.mark.parametrize('length', [2, 5])
def test_newsgroups_ids_equal_keras(length, tmp_path):
    splits = build(write_posts(tmp_path), num_words=5, length=length)
    posts = [Path(path).read_text('latin-1') for path in paths(splits)]
    # The header, which names the group, is left out.
    bodies = [post.partition('\n\n')[2].lower().replace(',', ' ').split() for post in posts]
    counts = Counter(word for body in bodies[:87] for word in body)
    words = sorted(counts, key=lambda word: -counts[word])[:5]
    for split, part in zip(SPLITS, (bodies[:87], bodies[87:96], bodies[96:]), strict=True):
        assert splits[split].metainfo['words'] == words
        for index, body in enumerate(part):
            ids = [words.index(word) + 1 for word in body if word in words][-length:]
            assert splits[split][index]['ids'].tolist() == [0] * (length - len(ids)) + ids


def test_split_words_header_is_left_out():
    for raw, words in (
        ('From: a\n\nb\n\nC', ['b', 'c']),
        ('no empty line', ['no', 'empty', 'line']),
        ('\n\nno header', ['no', 'header']),
        ("a: b\n\nDon't_stop!", ["don't", 'stop']),
    ):
        assert split_words(Post('sci.med', '1', '', '', raw)) == words


def test_newsgroups_download_equals_unpacked(tmp_path, monkeypatch):
    folder = write_posts(tmp_path / 'unpacked')
    cache = tmp_path / 'cache'

    def fetch(*, data_home, subset, shuffle):
        assert data_home == str(cache) and not shuffle
        return load_files(folder / f'20news-bydate-{subset}', encoding='latin1')

    monkeypatch.setattr(datasets, 'fetch_20newsgroups', fetch)
    fetched = build(cache, download=True)
    unpacked = build(folder, download=True)  # It is there, so nothing is fetched.
    assert all(texts(fetched[split]) == texts(unpacked[split]) for split in SPLITS)
    with pytest.raises(FileNotFoundError, match='set download=True'):
        build(cache)


def test_newsgroups_missing_data_or_invalid_option_raises(tmp_path):
    settings = dict(type='Newsgroups20', data_root=str(tmp_path / 'nowhere'))
    for download, source in ((False, 'qwone'), (True, None)):
        loader = dict(dataset=settings | dict(download=download))
        message = missing_data_message({'train_dataloader': loader})
        if source is None:
            assert message is None
        else:
            assert source in message

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
