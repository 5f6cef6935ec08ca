"""20 Newsgroups: posts to sort into the twenty groups they were sent to."""

from __future__ import annotations

from collections import Counter
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np
from mmengine.dataset import BaseDataset
from mmengine.registry import DATASETS

from mmcalib.openmmlab.datasets.download_sources import SOURCES
from mmcalib.options import check_choice

GROUPS = (
    'alt.atheism', 'comp.graphics', 'comp.os.ms-windows.misc', 'comp.sys.ibm.pc.hardware',
    'comp.sys.mac.hardware', 'comp.windows.x', 'misc.forsale', 'rec.autos', 'rec.motorcycles',
    'rec.sport.baseball', 'rec.sport.hockey', 'sci.crypt', 'sci.electronics', 'sci.med',
    'sci.space', 'soc.religion.christian', 'talk.politics.guns', 'talk.politics.mideast',
    'talk.politics.misc', 'talk.religion.misc',
)  # fmt: skip
SPLITS = ('train', 'val', 'test')
BYDATE = {'train': '20news-bydate-train', 'test': '20news-bydate-test'}
OLDER = '20_newsgroups'
# Keras's Tokenizer takes these for gaps; it leaves apostrophes in the words.
GAPS = str.maketrans(dict.fromkeys('!"#$%&()*+,-./:;<=>?@[\\]^_`{|}~', ' '))


class Post(NamedTuple):
    """A post, whose text is read when its split needs it.

    Attributes:
        group: The newsgroup.
        name: The name of its file.
        part: ``'train'`` or ``'test'`` of the by-date archive; empty in the older folder.
        path: The path of its file.
        raw: Its text, if scikit-learn has read it.
    """

    group: str
    name: str
    part: str
    path: str
    raw: str | None = None


@DATASETS.register_module()
class Newsgroups20(BaseDataset):
    """20 Newsgroups as ids of words, from an unpacked folder or through scikit-learn's fetcher.

    Protocols:

    - ``'paper'`` pools all posts, shuffles them and takes the last 20 % for testing and 900 before
      them for validation: 14,177/900/3,769 of the by-date archive's 18,846 posts, and the paper's
      15,098/900/3,999 of the 19,997 in the older folder. Order and shuffle are those of the
      published code, whose default seed is 1.
    - ``'bydate'`` trains and tests on the archive's own two parts, of which the test is the later
      one, and validates on 900 of the training posts, drawn by the seed: 10,414/900/7,532.

    The two are different data: figures of one cannot stand beside those of the other. From every
    post the header block, up to the first empty line, is cut, since it names the group.

    The vocabulary is that of the training posts, whatever the split: its i-th most frequent word
    has the id i, from 1. Other words are left out, the last `length` words are kept, and shorter
    posts are padded in front by 0, as Keras's Tokenizer and ``pad_sequences`` do by default.
    ``metainfo['words']`` lists it, so checkpoints hold it, and ``WordVectorsHook`` gives the words
    their vectors.

    Args:
        data_root: Folder with ``20news-bydate-train/`` and ``20news-bydate-test/`` (taken first) or
            with ``20_newsgroups/``, or the latter itself; with `download`, where scikit-learn keeps
            its copy.
        split: ``'train'``, ``'val'`` or ``'test'``.
        protocol: ``'paper'`` or ``'bydate'``.
        seed: Seed of the shuffle that draws the splits, not of the training.
        num_val: Number of validation posts.
        download: Let scikit-learn's ``fetch_20newsgroups`` read its cache in `data_root`, and
            download the by-date archive (14 MB) if that has none. Never used if there is a folder.
        num_words: Largest size of the vocabulary.
        length: Words per post.
        **kwargs: Further arguments of mmengine's ``BaseDataset``, such as ``pipeline``, to which
            each sample comes with ``ids``, int32 ``(length,)``, ``gt_label`` and ``path``.

    Raises:
        ValueError: If the split or the protocol is unknown, the by-date protocol is asked of the
            older folder, or there are too few posts.
        OSError: If posts, or those of a group, are not there or cannot be read.

    Source: the paper's appendix on data sets; its published code for the split. That code fits the
    vocabulary on all posts, those of the test split too, and counts the padding as a word.
    """

    METAINFO = dict(classes=GROUPS)

    def __init__(
        self,
        data_root: str,
        split: str,
        *,
        protocol: str = 'paper',
        seed: int = 1,
        num_val: int = 900,
        download: bool = False,
        num_words: int = 2000,
        length: int = 1000,
        **kwargs,
    ) -> None:
        self.split = check_choice('split', split, SPLITS)
        self.protocol = check_choice('protocol', protocol, ('paper', 'bydate'))
        self.seed = seed
        self.num_val = num_val
        self.download = download
        self.num_words = num_words
        self.length = length
        super().__init__(data_root=data_root, **kwargs)

    def load_data_list(self) -> list[dict]:
        posts = find_posts(self.data_root, self.download)
        splits = split_posts(posts, self.protocol, self.seed, self.num_val)
        train_texts = [split_words(post) for post in splits['train']]
        if self.split == 'train':
            texts = train_texts
        else:
            texts = [split_words(post) for post in splits[self.split]]
        # Words of equal count stay in the order of their first appearance.
        counts = Counter(chain.from_iterable(train_texts)).most_common(self.num_words)
        vocabulary = [word for word, _ in counts]
        self._metainfo['words'] = vocabulary
        id_by_word = {word: number for number, word in enumerate(vocabulary, 1)}
        samples = []
        for post, text in zip(splits[self.split], texts, strict=True):
            word_ids = [id_by_word[word] for word in text if word in id_by_word][-self.length :]
            padding = [0] * (self.length - len(word_ids))
            ids = np.array(padding + word_ids, np.int32)
            samples.append(dict(ids=ids, gt_label=GROUPS.index(post.group), path=post.path))
        return samples


def find_posts(data_root: str, download: bool = False) -> list[Post]:
    """Return all posts below a folder, or of scikit-learn's copy, by group and file name."""
    root = Path(data_root).expanduser()
    folder_by_part = find_folders(root)
    if folder_by_part:
        posts = []
        for part, folder in folder_by_part.items():
            for group in GROUPS:
                for path in (folder / group).iterdir():
                    if path.name.isdigit():
                        posts.append(Post(group, path.name, part, str(path)))
        return sorted(posts)
    if not download:
        raise FileNotFoundError(
            f'{root.absolute()} holds neither {" and ".join(BYDATE.values())} nor {OLDER}. '
            f'{SOURCES["Newsgroups20"]}; or set download=True'
        )
    from sklearn import datasets  # takes a second to import, and few need it

    posts = []
    for part in BYDATE:
        data = datasets.fetch_20newsgroups(data_home=str(root), subset=part, shuffle=False)
        for text, target, path in zip(data.data, data.target, data.filenames, strict=True):
            posts.append(Post(data.target_names[target], Path(path).name, part, str(path), text))
    return sorted(posts)


def find_folders(root: Path) -> dict[str, Path]:
    """Return the folders of an unpacked archive by the part of their posts; none if none is there.

    The part of all posts in the older folder is empty.
    """
    folder_by_part = {part: root / name for part, name in BYDATE.items()}
    if all(folder.is_dir() for folder in folder_by_part.values()):
        return folder_by_part
    for folder in (root / OLDER, root):
        if (folder / GROUPS[0]).is_dir():
            return {'': folder}
    return {}


def split_posts(posts: list[Post], protocol: str, seed: int, num_val: int) -> dict:
    """Return the posts of every split; see :class:`Newsgroups20` for the protocols."""
    test = [post for post in posts if post.part == 'test']
    if protocol == 'bydate':
        posts = [post for post in posts if post.part == 'train']
    # numpy's legacy generator, since the published code shuffles with it.
    posts = [posts[index] for index in np.random.RandomState(seed).permutation(len(posts))]
    if protocol == 'paper':
        num_train = len(posts) - int(0.2 * len(posts))
        test = posts[num_train:]
        posts = posts[:num_train]
    if len(posts) <= num_val or not test:
        raise ValueError(
            f'{len(posts)} training posts and {len(test)} test posts are too few for '
            f"num_val={num_val}: is the data complete? protocol='bydate' requires the by-date "
            'archive'
        )
    return {'train': posts[:-num_val], 'val': posts[-num_val:], 'test': test}


def split_words(post: Post) -> list[str]:
    """Return the words of a post without its header block, in lower case, split as Keras does."""
    text = post.raw
    if text is None:
        text = Path(post.path).read_bytes().decode('latin-1')
    body_start = max(text.find('\n\n'), 0)
    return text[body_start:].lower().translate(GAPS).split()
