"""Which files are meant by files, folders, patterns and lists, and which of them are images."""

import os

import cv2
import numpy as np
import pytest
from PIL import Image

from mmcalib.checks import UserError
from mmcalib.tasks.predict.images import find_images, look_at

PIXELS = np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8)
LONG = PIXELS.astype(np.uint16) << 8


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ('a/2.jpg', 'a/10.JPG', 'a/deep/1.png', 'b/1.png'):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(PIXELS).save(tmp_path / name)
    for name in ('a/notes.md', 'a/.hidden.png', 'a/clip.mp4', 'other/x.md'):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text('x')
    (tmp_path / 'empty').mkdir()
    (tmp_path / 'a' / 'list.txt').write_text(
        '# of a\n2.jpg\n\n b/1.png \nmissing.png\n', encoding='utf-8-sig'
    )
    os.symlink('..', tmp_path / 'a/deep/round')
    return tmp_path


def names(*sources):
    return [path.as_posix() for path in find_images(sources)]


def test_files_folders_patterns_and_lists(folder):
    of_a = ['a/10.JPG', 'a/2.jpg', 'a/deep/1.png']
    assert names('b/1.png') == ['b/1.png']
    assert names('a') == of_a
    assert names('*/1.png', 'a/*.[jJ]*') == ['b/1.png', 'a/10.JPG', 'a/2.jpg']
    assert names('b/**/*.png') == ['b/1.png']
    assert names('a/list.txt') == ['a/2.jpg', 'b/1.png', 'a/missing.png']
    assert names('b', 'a', 'b/1.png', folder / 'a') == ['b/1.png', *of_a]  # each once
    assert names('a/notes.md') == ['a/notes.md']  # whoever names it means it


def test_links_to_nothing_are_meant_too(folder):
    os.symlink('gone.png', 'b/0.png')
    (folder / 'b/2.png').mkdir()
    assert names('b') == names('b/*.png') == ['b/0.png', 'b/1.png']
    assert look_at(folder / 'b/0.png')[0] == f'there is no file {folder}/b/0.png'


@pytest.mark.parametrize(
    ('sources', 'text'),
    [
        ([], 'name at least one'),
        (['empty'], 'the folder empty has no image among 0 files'),
        (['other'], 'the folder other has no image among 1 files'),
        (['nowhere'], "there is no image, folder or list 'nowhere' in"),
        (['no*.png'], r"'no\*.png' matches no image among 0 files"),
        (['*/*.md'], 'matches no image among 2 files'),
        (['nothing.txt'], 'none of the 0 lines of nothing.txt is a file'),
        (['names.lst'], 'none of the 1 lines of names.lst is a file'),
    ],
)
def test_what_names_no_image_is_refused(folder, sources, text):
    (folder / 'nothing.txt').touch()
    (folder / 'names.lst').write_text('2007_000033\n')
    with pytest.raises(UserError, match=text):
        find_images(sources)


@pytest.mark.parametrize(
    ('name', 'pixels', 'note'),
    [
        ('colour.png', PIXELS, ''),
        ('alpha.png', np.dstack([PIXELS, PIXELS[..., :1]]), ''),
        ('grey.png', PIXELS[..., 0], 'grey, read as colour'),
        ('grey.jpg', PIXELS[..., 0], 'grey, read as colour'),
        ('grey16.png', LONG[..., 0], 'I;16 pixels were read as 8-bit; grey, read as colour'),
        ('two.gif', None, 'the first of 2 frames'),
        ('float.tif', PIXELS[..., 0].astype(np.float32),
         'F pixels were read as 8-bit; grey, read as colour'),
    ],
)  # fmt: skip
def test_what_is_said_of_an_image(tmp_path, name, pixels, note):
    path = tmp_path / name
    if pixels is None:
        first, second = Image.fromarray(PIXELS), Image.fromarray(PIXELS[::-1])
        first.save(path, save_all=True, append_images=[second])
    else:
        assert cv2.imwrite(str(path), pixels)
    assert look_at(path) == ('', note)


def test_what_is_no_whole_image(tmp_path):
    for kind in ('jpg', 'png'):
        Image.fromarray(np.tile(PIXELS, (9, 9, 1))).save(tmp_path / f'whole.{kind}')
        content = (tmp_path / f'whole.{kind}').read_bytes()
        (tmp_path / f'cut.{kind}').write_bytes(content[: len(content) // 2])
        assert look_at(tmp_path / f'whole.{kind}') == ('', '')
        assert look_at(tmp_path / f'cut.{kind}')[0].startswith('it is damaged: ')
    (tmp_path / 'empty.png').touch()
    (tmp_path / 'text.png').write_text('hello')
    assert 'is empty (0 bytes)' in look_at(tmp_path / 'empty.png')[0]
    assert look_at(tmp_path / 'text.png') == ('it is not an image', '')
    assert 'there is no file' in look_at(tmp_path / 'missing.png')[0]
