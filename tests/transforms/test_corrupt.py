"""Corruptions hold to their published parameters, and to nothing but the image and the seed."""

import colorsys
import importlib.util
import io
import sys

import numpy as np
import pytest
from mmengine.registry import TRANSFORMS
from PIL import Image
from torch.utils.data import DataLoader

from mmcalib.checks import UserError
from mmcalib.transforms import Corrupt
from mmcalib.transforms.corrupt import LEAST_SIZE, OF_PIXELS, check_size, corruption_function
from mmcalib.transforms.corruption_names import BENCHMARK, CORRUPTIONS, GROUPS, corruptions_of

needs_extra = pytest.mark.skipif(
    importlib.util.find_spec('imagecorruptions') is None,
    reason='needs mmcalib[shift]',
)
RNG = np.random.default_rng(0)
PHOTO = np.asarray(
    Image.fromarray(RNG.integers(0, 256, (6, 8, 3), dtype=np.uint8)).resize((48, 36)), np.uint8
)


def corrupted(name, severity=3, image=PHOTO, **options):
    options |= dict(type='Corrupt', corruption=name, severity=severity)
    transform = TRANSFORMS.build(options)
    return transform({'img': image.copy()})['img']


def test_the_groups_hold_the_published_fifteen_and_four():
    assert len(BENCHMARK) == 15 and len(GROUPS['holdout']) == 4
    assert corruptions_of(['benchmark', 'holdout']) == corruptions_of(['all']) == CORRUPTIONS
    assert corruptions_of(['fog', 'noise', 'fog']) == (*GROUPS['noise'], 'fog')
    with pytest.raises(ValueError, match=r"no corruption 'rain'.*; there are all, benchmark,.*fog"):
        corruptions_of(['rain'])


RANDOM = (
    *(*GROUPS['noise'], 'glass_blur', 'motion_blur', 'snow', 'frost', 'fog', 'elastic_transform'),
    *('speckle_noise', 'spatter'),
)


@needs_extra
@pytest.mark.parametrize('name', CORRUPTIONS)
def test_only_the_image_and_the_options_decide(name):
    np.random.seed(1)
    state = np.random.get_state()[1].copy()
    first = corrupted(name)
    assert (np.random.get_state()[1] == state).all()
    np.random.seed(2)
    assert first.dtype == np.uint8 and first.shape == PHOTO.shape and first.flags.c_contiguous
    np.testing.assert_array_equal(first, corrupted(name))
    assert not np.array_equal(first, PHOTO)
    # The same colours in another order are the same image.
    rgb = corrupted(name, image=PHOTO[..., ::-1], channel_order='rgb')
    np.testing.assert_array_equal(first, rgb[..., ::-1])
    np.testing.assert_array_equal(corrupted(name, 0), PHOTO)
    if name in RANDOM:
        assert not np.array_equal(first, corrupted(name, seed=1))
    if name in ('gaussian_noise', 'speckle_noise', 'snow'):
        other = PHOTO.copy()
        other[0, 0] ^= 1
        assert not np.array_equal(first[1:], corrupted(name, image=other)[1:])


# Standard deviations and shares of Hendrycks and Dietterich's code, by severity.
GREY = np.full((160, 160, 3), 128, np.uint8)


@needs_extra
@pytest.mark.parametrize('severity', [1, 3, 5])
def test_noise_has_the_published_strength(severity):
    def spread(name, image=GREY):
        return corrupted(name, severity, image).astype(float).std() / 255

    def expected(c):
        """Return the deviation of clipped normal noise on the grey image, by counting."""
        draws = np.clip(128 / 255 + c * np.random.default_rng(0).standard_normal(100_000), 0, 1)
        return draws.std()

    row = severity - 1
    gaussian = [0.08, 0.12, 0.18, 0.26, 0.38][row]
    assert spread('gaussian_noise') == pytest.approx(expected(gaussian), rel=0.02)
    speckle = [0.15, 0.2, 0.35, 0.45, 0.6][row]
    assert spread('speckle_noise') == pytest.approx(expected(speckle * 128 / 255), rel=0.02)
    photons = [60, 25, 12, 5, 3][row]
    draws = np.random.default_rng(0).poisson(photons * 128 / 255, 100_000)
    shot = np.clip(draws / photons, 0, 1).std()
    assert spread('shot_noise') == pytest.approx(shot, rel=0.02)
    amount = [0.03, 0.06, 0.09, 0.17, 0.27][row]
    changed = np.isin(corrupted('impulse_noise', severity, GREY), (0, 255)).mean()
    assert changed == pytest.approx(amount, rel=0.05)


@needs_extra
@pytest.mark.parametrize('severity', [1, 2, 5])
def test_colours_and_compression_are_the_published_formulas(severity):
    image, row = RNG.integers(0, 256, (4, 5, 3), dtype=np.uint8), severity - 1
    means, scale = image.mean((0, 1)), [0.4, 0.3, 0.2, 0.1, 0.05][row]
    expected = ((image - means) * scale + means).clip(0, 255)
    found = corrupted('contrast', severity, image, channel_order='rgb')
    np.testing.assert_allclose(found, expected, atol=1.01)
    shift = [0.1, 0.2, 0.3, 0.4, 0.5][row]
    for values, pixel in zip(
        image.reshape(-1, 3), corrupted('brightness', severity, image).reshape(-1, 3), strict=True
    ):
        h, s, v = colorsys.rgb_to_hsv(*values / 255)
        brighter = 255 * np.array(colorsys.hsv_to_rgb(h, s, min(v + shift, 1)))
        np.testing.assert_allclose(pixel, brighter, atol=1.01)
    file = io.BytesIO()
    Image.fromarray(PHOTO).save(file, 'JPEG', quality=[25, 18, 15, 10, 7][row])
    found = corrupted('jpeg_compression', severity, channel_order='rgb')
    np.testing.assert_array_equal(found, np.asarray(Image.open(file)))


class Images(list):
    """Of which an item is a number of each of three corruptions."""

    def __getitem__(self, index):
        transforms = [Corrupt(name, 4) for name in ('impulse_noise', 'motion_blur', 'frost')]
        image = super().__getitem__(index)
        return [int(each({'img': image})['img'].astype(int).sum()) for each in transforms]


@needs_extra
def test_workers_change_nothing():
    images = Images(np.roll(PHOTO, k, axis=0) for k in range(5))
    loaders = [DataLoader(images, num_workers=n, collate_fn=list) for n in (0, 2)]
    assert list(loaders[0]) == list(loaders[1])


OPTIONS = [
    (dict(corruption='rain'), "one of .*'fog'.*got 'rain'"),
    (dict(severity=6), 'severity must be .*, 5.*, got 6'),
    (dict(seed='a'), "seed must be .* got 'a'"),
    (dict(channel_order='gray'), "channel_order .*'gray'"),
    (dict(value_range=(1, 1)), r'rise .* got \(1, 1\)'),
    (dict(value_range=(0, np.inf)), 'value_range must rise'),
]


@pytest.mark.parametrize(('options', 'message'), OPTIONS)
def test_wrong_options(options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        Corrupt(**dict(corruption='fog') | options)


@needs_extra
@pytest.mark.parametrize('name', ['gaussian_noise', 'glass_blur', 'frost', 'jpeg_compression'])
@pytest.mark.parametrize('order', ['bgr', 'rgb'])
def test_a_grey_image_is_three_equal_colours_and_keeps_red(name, order):
    grey = PHOTO[..., 0]
    expected = corrupted(name, image=np.stack([grey] * 3, axis=2), channel_order='rgb')[..., 0]
    np.testing.assert_array_equal(corrupted(name, image=grey, channel_order=order), expected)
    last = corrupted(name, image=grey[..., None], channel_order=order)
    np.testing.assert_array_equal(last, expected[..., None])


@needs_extra
@pytest.mark.parametrize('dtype', [np.float32, np.float64, np.uint16, np.uint8])
@pytest.mark.parametrize('image', [PHOTO, PHOTO[..., 0]], ids=['colour', 'grey'])
def test_values_of_a_range_are_brought_to_8_bits_and_back(image, dtype):
    low, high = (-1.5, 2.5) if dtype in (np.float32, np.float64) else (10, 229.3)
    values = low + image * ((high - low) / 255)
    if dtype in (np.uint8, np.uint16):
        values = np.rint(values)
    given = values.astype(dtype)
    found = corrupted('shot_noise', image=given, value_range=(low, high))
    assert found.dtype == dtype
    levels = np.rint((given.astype(float) - low) * (255 / (high - low))).astype(np.uint8)
    expected = low + corrupted('shot_noise', image=levels) * ((high - low) / 255)
    np.testing.assert_allclose(found, expected, atol=0.5 if dtype().itemsize < 4 else 1e-6)


@needs_extra
def test_values_outside_of_a_range_are_clipped():
    image = np.array([[-9.0, -1, 0, 1, 9]])
    given = image, image.clip(-1, 1)
    found = [corrupted('contrast', image=x, value_range=(-1, 1)) for x in given]
    np.testing.assert_array_equal(*found)


@needs_extra
@pytest.mark.parametrize(
    ('image', 'message'),
    [
        (PHOTO.astype(np.uint16), r'8-bit images, got uint16.*value_range=\(0, 65535\)'),
        (PHOTO.astype(np.float32), '8-bit images, got float32'),
        (PHOTO[:31], r'31×48 pixels is smaller than the 32×32 .* leave out fog\. Any .* contrast'),
    ],
)
def test_wrong_images(image, message):
    with pytest.raises(ValueError, match=message):
        Corrupt('fog')({'img': image})


@needs_extra
def test_what_is_done_pixel_by_pixel_takes_any_size():
    for name in OF_PIXELS:
        assert corrupted(name, image=PHOTO[:2, :3]).shape == (2, 3, 3)
    with pytest.raises(ValueError, match=r'leave out snow, pixelate\.'):
        check_size((LEAST_SIZE, LEAST_SIZE - 1, 3), ['snow', 'contrast', 'pixelate'])
    check_size((LEAST_SIZE, LEAST_SIZE, 3), CORRUPTIONS)


def test_a_missing_extra_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, 'imagecorruptions', None)
    corruption_function.cache_clear()
    with pytest.raises(UserError, match=r"pip install 'mmcalib\[shift\]'"):
        Corrupt('fog')
    Corrupt('fog', 0)
    corruption_function.cache_clear()
