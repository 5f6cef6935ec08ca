"""Tiny posts, laid out like 20 Newsgroups."""

from mmcalib.paper.newsgroups import BYDATE, GROUPS, OLDER


def write_posts(root, *, older=False, train=4, test=2):
    """Write some posts per group, each with a header, a word of its group and one of its own."""
    counts = {OLDER: train + test} if older else {BYDATE['train']: train, BYDATE['test']: test}
    number = 0
    for folder, count in counts.items():
        for label, group in enumerate(GROUPS):
            (root / folder / group).mkdir(parents=True)
            for _ in range(count):
                number += 1
                text = f'Newsgroups: {group}\nLines: 2\n\nThe Group{label}, the {number}th\ncaf\xe9'
                path = root / folder / group / str(10000 + number)
                path.write_bytes(text.encode('latin-1'))
    return root


def write_vectors(path, words=('the', 'group0', 'group1'), size=6):
    """Write word vectors as a text file like GloVe's: word i has `size` times i + 1."""
    lines = (' '.join([word, *[str(i + 1.0)] * size]) for i, word in enumerate(words))
    path.write_text('\n'.join(lines) + '\n', encoding='utf-8')
    return path
