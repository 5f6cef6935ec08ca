import numpy as np
import pytest
import torch
from posts import write_vectors

from mmcalib.models.word_vectors import load_vectors, vector_size

WORDS = ['group1', 'unknown', 'the']
EXPECTED = torch.tensor([3.0, 0.0, 1.0])[:, None].expand(3, 6)


def write_table(folder, words=('the', 'group0', 'group1', 'the')):
    table = np.arange(1, len(words) + 1, dtype=np.float16)[:, None].repeat(6, axis=1)
    np.save(folder / 'table.npy', table)
    (folder / 'words.txt').write_text('\n'.join(words) + '\n')
    return [str(folder / 'table.npy'), str(folder / 'words.txt')]


def test_text(tmp_path):
    path = str(write_vectors(tmp_path / 'glove.txt'))
    assert vector_size(path) == 6
    vectors, missing = load_vectors(path, WORDS)
    assert vectors.dtype == torch.float32 and missing == ['unknown']
    torch.testing.assert_close(vectors, EXPECTED)


def test_table_and_words(tmp_path):
    files = write_table(tmp_path)
    assert vector_size(files) == 6
    vectors, missing = load_vectors(files, WORDS)
    assert vectors.dtype == torch.float32 and missing == ['unknown']
    torch.testing.assert_close(vectors, EXPECTED)  # of the two vectors of `the`, the first


def test_bad_files_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r'nlp\.stanford\.edu/projects/glove/'):
        vector_size(str(tmp_path / 'glove.6B.100d.txt'))
    table, words = write_table(tmp_path)
    with pytest.raises(ValueError, match=r'\[vectors\.npy, words\.txt\]'):
        load_vectors(table, WORDS)
    (tmp_path / 'words.txt').write_text('the\n')
    with pytest.raises(ValueError, match=r'words\.txt has 1 words, but .* 4 vectors'):
        load_vectors([table, words], WORDS)
    glove = tmp_path / 'glove.txt'
    glove.write_text('group0 1 2\nthe 1 2 3\n')
    with pytest.raises(ValueError, match="the vector of 'the' has 3 numbers, but the first has 2"):
        load_vectors(str(glove), WORDS)
    glove.write_text('group0 1 2\nthe 1 x\n')
    with pytest.raises(ValueError, match='could not convert'):
        load_vectors(str(glove), WORDS)
