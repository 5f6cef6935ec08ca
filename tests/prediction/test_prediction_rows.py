"""Rows of predictions: none is lost or torn, and those of several processes come together."""

import resource
import signal
from pathlib import Path

import pytest

from mmcalib.prediction.prediction_rows import append_row, join_rows, read_rows, rows_file


def test_a_line_that_does_not_fit_on_the_disk_is_taken_back(tmp_path):
    file = tmp_path / 'rows.jsonl'
    append_row(file, {'a': 1})
    before = file.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 3, limits[1]))
    try:
        with pytest.raises(OSError, match='too large'):
            append_row(file, {'b': 'a long line'})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, ignored)
    assert file.read_bytes() == before


@pytest.mark.parametrize('name', ['a\u2028b.png', 'a\x85b.png', 'a\nb.png', 'ä.png'])
def test_a_row_is_a_line_whatever_its_image_is_called(tmp_path, name):
    file = tmp_path / 'rows.jsonl'
    append_row(file, {'image': name})
    append_row(file, {'image': 'other.png'})
    assert read_rows(file) == [{'image': name}, {'image': 'other.png'}]


def test_a_line_that_was_cut_off_is_not_there(tmp_path):
    file = tmp_path / 'rows.jsonl'
    assert read_rows(file) == []
    append_row(file, {'image': 'a'})
    for text in (file.read_text() + '{"ima', '{"ima'):
        file.write_text(text)
        rows = read_rows(file)
        assert rows == ([{'image': 'a'}] if '\n' in text else [])
        append_row(file, {'image': 'b'})
        assert read_rows(file) == [*rows, {'image': 'b'}]


def test_the_rows_of_processes_come_together_in_the_order_of_the_images(tmp_path):
    for rank, images in enumerate((['earlier', 'a', 'c'], ['d', 'b', 'a'], ['e'])):
        for image in images:  # that of a is there twice, as after a kill
            append_row(rows_file(tmp_path, rank), {'image': image, 'rank': rank})
    with rows_file(tmp_path, 2).open('a') as file:
        file.write('{"image": "f"')
    rows = join_rows(tmp_path, [Path(name) for name in 'abcdef'])
    assert [row['image'] for row in rows] == ['earlier', *'abcde']
    assert [row['rank'] for row in rows] == [0, 0, 1, 0, 1, 2]
    assert read_rows(rows_file(tmp_path, 0)) == rows
    assert [path.name for path in tmp_path.iterdir()] == ['predictions.jsonl']
