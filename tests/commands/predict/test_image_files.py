"""Image files: those that files, folders, patterns and lists name, and whether they are whole."""

import os

import cv2
import numpy as np
import pytest
from PIL import Image

from mmcalib.commands.predict.image_files import check_image, find_images
from mmcalib.errors import UserError

PIXELS = np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8)
DEEP_PIXELS = PIXELS.astype(np.uint16) << 8
IMAGES_IN_A = ['a/10.JPG', 'a/2.jpg', 'a/deep/1.png']
LIST = '# images of a and b\n2.jpg\n\n b/1.png \nmissing.png\n'


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ('a/deep', 'b', 'other', 'empty'):
        (tmp_path / name).mkdir(parents=True)
    for name in (*IMAGES_IN_A, 'b/1.png'):
        Image.fromarray(PIXELS).save(name)
    for name in ('a/notes.md', 'a/.hidden.png', 'a/clip.mp4', 'other/x.md', 'nothing.txt'):
        (tmp_path / name).write_text('\n')
    (tmp_path / 'names.lst').write_text('2007_000033\n')
    (tmp_path / 'a/list.txt').write_text(LIST, encoding='utf-8-sig')
    os.symlink('..', 'a/deep/round')
    return tmp_path


@pytest.mark.parametrize(
    ('sources', 'expected'),
    [
        (['b/1.png'], ['b/1.png']),
        (['a'], IMAGES_IN_A),
        (['*/1.png', 'a/*.[jJ]*'], ['b/1.png', *IMAGES_IN_A[:2]]),
        (['b/**/*.png'], ['b/1.png']),
        (['a/list.txt'], ['a/2.jpg', 'b/1.png', 'a/missing.png']),
        (['b', 'a', 'b/1.png', '{folder}/a'], ['b/1.png', *IMAGES_IN_A]),  # each once
        (['a/notes.md'], ['a/notes.md']),  # a file that is named is meant, whatever its suffix
    ],
)
def test_find_images_sources_give_their_files(folder, sources, expected):
    actual = find_images([source.format(folder=folder) for source in sources])
    assert [path.as_posix() for path in actual] == expected


def test_find_images_broken_link_is_found_and_folder_is_not(folder):
    os.symlink('gone.png', 'b/0.png')
    (folder / 'b/2.png').mkdir()
    for source in ('b', 'b/*.png'):
        assert [path.as_posix() for path in find_images([source])] == ['b/0.png', 'b/1.png']
    assert check_image(folder / 'b/0.png') == (f'there is no file {folder}/b/0.png', '')


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
def test_find_images_without_image_raises(folder, sources, text):
    with pytest.raises(UserError, match=text):
        find_images(sources)


GREY_NOTE = 'grey, read as colour'
DEEP_ALPHA_NOTE = '16-bit RGBA pixels were read as 8-bit'
DEEP_NOTE = '{} pixels were read as 8-bit; grey, read as colour'


@pytest.mark.parametrize(
    ('name', 'pixels', 'note'),
    [
        ('colour.png', PIXELS, ''),
        ('alpha.png', np.dstack([PIXELS, PIXELS[..., :1]]), ''),
        ('grey.png', PIXELS[..., 0], GREY_NOTE),
        ('grey.jpg', PIXELS[..., 0], GREY_NOTE),
        ('grey16.png', DEEP_PIXELS[..., 0], DEEP_NOTE.format('I;16')),
        ('colour16.png', DEEP_PIXELS, '16-bit RGB pixels were read as 8-bit'),
        ('colour16.tif', DEEP_PIXELS, '16-bit RGB pixels were read as 8-bit'),
        ('alpha16.png', np.dstack([DEEP_PIXELS, DEEP_PIXELS[..., :1]]), DEEP_ALPHA_NOTE),
        ('float.tif', PIXELS[..., 0].astype(np.float32), DEEP_NOTE.format('F')),
        ('two.gif', None, 'the first of 2 frames'),
    ],
)
def test_check_image_notes_how_it_is_read(tmp_path, name, pixels, note):
    path = tmp_path / name
    if pixels is None:
        frames = [Image.fromarray(PIXELS), Image.fromarray(PIXELS[::-1])]
        frames[0].save(path, save_all=True, append_images=frames[1:])
    else:
        assert cv2.imwrite(str(path), pixels)
    assert check_image(path) == ('', note)


@pytest.mark.parametrize('suffix', ['jpg', 'png'])
def test_check_image_cut_off_is_damaged(tmp_path, suffix):
    path = tmp_path / f'image.{suffix}'
    Image.fromarray(np.tile(PIXELS, (9, 9, 1))).save(path)
    assert check_image(path) == ('', '')
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    assert check_image(path)[0].startswith('it is damaged: ')


def test_check_image_empty_or_text_has_reason(tmp_path):
    (tmp_path / 'empty.png').touch()
    assert 'is empty (0 bytes)' in check_image(tmp_path / 'empty.png')[0]
    (tmp_path / 'text.png').write_text('hello')
    assert check_image(tmp_path / 'text.png') == ('it is not an image', '')
