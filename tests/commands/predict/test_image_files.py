"""Which files are meant by files, folders, patterns and lists, and which of them are images."""

import os

import cv2
import numpy as np
import pytest
from PIL import Image

from mmcalib.commands.predict.image_files import find_images, look_at
from mmcalib.errors import UserError

PIXELS = np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8)
LONG = PIXELS.astype(np.uint16) << 8
OF_A = ['a/10.JPG', 'a/2.jpg', 'a/deep/1.png']
LIST = '# of a\n2.jpg\n\n b/1.png \nmissing.png\n'


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ('a/deep', 'b', 'other', 'empty'):
        (tmp_path / name).mkdir(parents=True)
    for name in (*OF_A, 'b/1.png'):
        Image.fromarray(PIXELS).save(name)
    for name in ('a/notes.md', 'a/.hidden.png', 'a/clip.mp4', 'other/x.md', 'nothing.txt'):
        (tmp_path / name).write_text('\n')
    (tmp_path / 'names.lst').write_text('2007_000033\n')
    (tmp_path / 'a/list.txt').write_text(LIST, encoding='utf-8-sig')
    os.symlink('..', 'a/deep/round')
    return tmp_path


def test_files_folders_patterns_and_lists(folder):
    for sources, expected in (
        (['b/1.png'], ['b/1.png']),
        (['a'], OF_A),
        (['*/1.png', 'a/*.[jJ]*'], ['b/1.png', *OF_A[:2]]),
        (['b/**/*.png'], ['b/1.png']),
        (['a/list.txt'], ['a/2.jpg', 'b/1.png', 'a/missing.png']),
        (['b', 'a', 'b/1.png', folder / 'a'], ['b/1.png', *OF_A]),  # each once
        (['a/notes.md'], ['a/notes.md']),  # whoever names it means it
    ):
        assert [path.as_posix() for path in find_images(sources)] == expected
    # Links to nothing are meant too, and folders are not.
    os.symlink('gone.png', 'b/0.png')
    (folder / 'b/2.png').mkdir()
    for source in ('b', 'b/*.png'):
        assert [path.as_posix() for path in find_images([source])] == ['b/0.png', 'b/1.png']
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
    with pytest.raises(UserError, match=text):
        find_images(sources)


GREY, DEEP = 'grey, read as colour', '{} pixels were read as 8-bit; grey, read as colour'


@pytest.mark.parametrize(
    ('name', 'pixels', 'note'),
    [
        ('colour.png', PIXELS, ''),
        ('alpha.png', np.dstack([PIXELS, PIXELS[..., :1]]), ''),
        ('grey.png', PIXELS[..., 0], GREY),
        ('grey.jpg', PIXELS[..., 0], GREY),
        ('grey16.png', LONG[..., 0], DEEP.format('I;16')),
        ('float.tif', PIXELS[..., 0].astype(np.float32), DEEP.format('F')),
        ('two.gif', None, 'the first of 2 frames'),
    ],
)
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
