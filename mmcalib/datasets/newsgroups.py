"""20 Newsgroups: posts to sort into the twenty groups they were sent to."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import NamedTuple

import numpy as np
from mmengine.dataset import BaseDataset
from mmengine.registry import DATASETS

from mmcalib.checks import check_choice, check_integer
from mmcalib.datasets.download_sources import SOURCES

GROUPS = (
    'alt.atheism', 'comp.graphics', 'comp.os.ms-windows.misc', 'comp.sys.ibm.pc.hardware',
    'comp.sys.mac.hardware', 'comp.windows.x', 'misc.forsale', 'rec.autos', 'rec.motorcycles',
    'rec.sport.baseball', 'rec.sport.hockey', 'sci.crypt', 'sci.electronics', 'sci.med',
    'sci.space', 'soc.religion.christian', 'talk.politics.guns', 'talk.politics.mideast',
    'talk.politics.misc', 'talk.religion.misc',
)  # fmt: skip
SPLITS = ('train', 'val', 'test')
PROTOCOLS = ('paper', 'bydate')
BYDATE = {'train': '20news-bydate-train', 'test': '20news-bydate-test'}
OLDER = '20_newsgroups'


class Post(NamedTuple):
    """A post, of which only the address is known until its split needs the text."""

    group: str
    name: str
    part: str  # 'train' or 'test' of the by-date archive, '' in the older folder
    path: str
    raw: str | None = None


@DATASETS.register_module()
class Newsgroups20(BaseDataset):
    """20 Newsgroups, from an unpacked folder or, on request, through scikit-learn's fetcher.

    Protocols:

    - ``'paper'`` pools all posts, shuffles them and takes the last 20 % for testing and 900 before
      them for validation: 14,177/900/3,769 of the by-date archive's 18,846 posts, and the paper's
      15,098/900/3,999 of the 19,997 in the older folder. Order and shuffle are those of the
      published code, whose default seed is 1.
    - ``'bydate'`` trains and tests on the archive's own two parts, of which the test is the later
      one, and validates on 900 of the training posts, drawn by the seed: 10,414/900/7,532.

    The two are different data: figures of one cannot stand beside those of the other. From every
    post the header block, up to the first empty line, is cut, since it names the group.

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
        pipeline: Transforms; each sample comes with ``text``, ``gt_label`` and ``path``.
        **kwargs: Further arguments of mmengine's ``BaseDataset``, such as ``indices``.

    Raises:
        ValueError: If the split or the protocol is unknown, the by-date protocol is asked of the
            older folder, or there are too few posts.
        OSError: If posts, or those of a group, are not there or cannot be read.

    Source: the paper's appendix on data sets; its published code for the split.
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
        pipeline=(),
        **kwargs,
    ) -> None:
        self.split = check_choice('split', split, SPLITS)
        self.protocol = check_choice('protocol', protocol, PROTOCOLS)
        self.seed = seed
        self.num_val = check_integer('num_val', num_val)
        self.download = download
        super().__init__(data_root=data_root, pipeline=list(pipeline), **kwargs)

    def load_data_list(self) -> list[dict]:
        splits = split_posts(
            find_posts(self.data_root, self.download), self.protocol, self.seed, self.num_val
        )
        train = splits['train']
        names = '\n'.join(f'{post.group}/{post.name}' for post in train)
        # Goes into checkpoints, so that no test post of another split is one of their training.
        self._metainfo['training_posts'] = (
            f'{len(train)} posts of protocol {self.protocol!r} with seed {self.seed} '
            f'(checksum {zlib.crc32(names.encode()):08x})'
        )
        return [
            {'text': read_text(post), 'gt_label': GROUPS.index(post.group), 'path': post.path}
            for post in splits[self.split]
        ]


def find_posts(data_root: str, download: bool = False) -> list[Post]:
    """Return all posts below a folder, sorted by group and file name, whatever their part."""
    root = Path(data_root).expanduser()
    if all((root / part).is_dir() for part in BYDATE.values()):
        folders = [(part, root / folder) for part, folder in BYDATE.items()]
    elif (root / OLDER).is_dir():
        folders = [('', root / OLDER)]
    elif (root / GROUPS[0]).is_dir():
        folders = [('', root)]
    elif download:
        return sorted(_fetch_posts(root))
    else:
        raise FileNotFoundError(
            f'{root.absolute()} holds neither {" and ".join(BYDATE.values())} nor {OLDER}. '
            f'{SOURCES["Newsgroups20"]}; or set download=True'
        )
    posts = []
    for part, folder in folders:
        for group in GROUPS:
            files = (path for path in (folder / group).iterdir() if path.name.isdigit())
            posts += [Post(group, path.name, part, str(path)) for path in files]
    return sorted(posts)


def _fetch_posts(root: Path) -> list[Post]:
    """Return the posts of scikit-learn's copy, which it downloads where there is none yet."""
    from sklearn import datasets  # takes a second to import, and few need it

    posts = []
    for part in BYDATE:
        data = datasets.fetch_20newsgroups(data_home=str(root), subset=part, shuffle=False)
        for text, target, path in zip(data.data, data.target, data.filenames, strict=True):
            group = data.target_names[target]
            posts.append(Post(group, Path(path).name, part, str(path), text))
    return posts


def split_posts(posts: list[Post], protocol: str, seed: int, num_val: int) -> dict:
    """Return the posts of every split; see :class:`Newsgroups20` for the protocols."""
    test = [post for post in posts if post.part == 'test']
    if protocol == 'bydate':
        if not test:
            raise ValueError(
                "protocol='bydate' requires the by-date archive; the older folder supports only "
                "protocol='paper'"
            )
        posts = [post for post in posts if post.part == 'train']
    # numpy's legacy generator, since the published code shuffles with it.
    posts = [posts[index] for index in np.random.RandomState(seed).permutation(len(posts))]
    if protocol == 'paper':
        num_train = len(posts) - int(0.2 * len(posts))
        posts, test = posts[:num_train], posts[num_train:]
    if len(posts) <= num_val or not test:
        raise ValueError(
            f'{len(posts)} training posts and {len(test)} test posts are too few for '
            f'num_val={num_val}: is the data complete?'
        )
    return {'train': posts[:-num_val], 'val': posts[-num_val:], 'test': test}


def read_text(post: Post) -> str:
    """Return a post without its header block."""
    text = post.raw
    if text is None:
        text = Path(post.path).read_bytes().decode('latin-1')
    end = text.find('\n\n')
    return text[end:] if end > 0 else text
