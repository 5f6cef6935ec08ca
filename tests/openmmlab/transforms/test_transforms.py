"""Corruptions have their published parameters, and depend only on the image and the seed."""

import io
import sys

import numpy as np
import pytest
from mmengine.registry import TRANSFORMS
from PIL import Image
from shifted import needs_extra

from mmcalib.choices import BENCHMARK, CORRUPTION_GROUPS, CORRUPTIONS, select_corruptions
from mmcalib.openmmlab.transforms import Corrupt, LabelUntrainedClasses
from mmcalib.openmmlab.transforms.corrupt import (
    LEAST_SIZE,
    PIXELWISE,
    check_size,
    corruption_function,
)

RNG = np.random.default_rng(0)
PHOTO = np.asarray(
    Image.fromarray(RNG.integers(0, 256, (6, 8, 3), dtype=np.uint8)).resize((48, 36)), np.uint8
)
RANDOM = ('gaussian_noise', 'impulse_noise', 'glass_blur', 'snow', 'fog', 'speckle_noise')


def corrupted(corruption, severity=3, image=PHOTO, **options):
    options |= dict(type='Corrupt', corruption=corruption, severity=severity)
    return TRANSFORMS.build(options)({'img': image.copy()})['img']


def test_select_corruptions_groups_are_the_published_ones():
    assert len(BENCHMARK) == 15 and len(CORRUPTION_GROUPS['holdout']) == 4
    assert select_corruptions(['benchmark', 'holdout']) == CORRUPTIONS
    assert select_corruptions(['all']) == CORRUPTIONS
    assert select_corruptions(['fog', 'noise', 'fog']) == (*CORRUPTION_GROUPS['noise'], 'fog')
    with pytest.raises(ValueError, match=r"corruption must be one of .*'all'.*'fog'.*, got 'rain'"):
        select_corruptions(['rain'])


@needs_extra
@pytest.mark.parametrize('name', CORRUPTIONS)
def test_corrupt_same_image_and_options_same_result(name):
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


@needs_extra
@pytest.mark.parametrize('severity', [1, 3, 5])
def test_corrupt_severities_are_the_published_ones(severity):
    """Parameters of Hendrycks and Dietterich's code, in a row of five each."""
    index = severity - 1
    grey = np.full((160, 160, 3), 128, np.uint8)
    deviation = [0.08, 0.12, 0.18, 0.26, 0.38][index]
    noise = deviation * np.random.default_rng(0).standard_normal(100_000)
    expected = (128 / 255 + noise).clip(0, 1).std()
    noisy = corrupted('gaussian_noise', severity, grey)
    assert noisy.std() / 255 == pytest.approx(expected, rel=0.02)
    changed = np.isin(corrupted('impulse_noise', severity, grey), (0, 255)).mean()
    assert changed == pytest.approx([0.03, 0.06, 0.09, 0.17, 0.27][index], rel=0.05)
    file = io.BytesIO()
    Image.fromarray(PHOTO).save(file, 'JPEG', quality=[25, 18, 15, 10, 7][index])
    actual = corrupted('jpeg_compression', severity, channel_order='rgb')
    np.testing.assert_array_equal(actual, np.asarray(Image.open(file)))


@needs_extra
@pytest.mark.parametrize('order', ['bgr', 'rgb'])
def test_corrupt_grey_image_equals_red_of_three_equal_channels(order):
    grey = PHOTO[..., 0]
    for name in ('gaussian_noise', 'frost', 'jpeg_compression'):
        three_channels = np.stack([grey] * 3, axis=2)
        expected = corrupted(name, image=three_channels, channel_order='rgb')[..., 0]
        for image in (grey, grey[..., None]):
            actual = corrupted(name, image=image, channel_order=order)
            np.testing.assert_array_equal(actual, expected.reshape(image.shape))


@needs_extra
@pytest.mark.parametrize('dtype', [np.float32, np.float64, np.uint16, np.uint8])
def test_corrupt_value_range_equals_8_bits_and_back(dtype):
    is_integer = np.issubdtype(dtype, np.integer)
    low, high = (10, 231.9) if is_integer else (-1.5, 2.5)
    scale = (high - low) / 255
    values = low + PHOTO * scale
    if is_integer:
        values = np.rint(values)
    image = values.astype(dtype)
    actual = corrupted('shot_noise', image=image, value_range=(low, high))
    levels = np.rint((image.astype(float) - low) / scale).astype(np.uint8)
    expected = low + corrupted('shot_noise', image=levels) * scale
    np.testing.assert_allclose(actual, expected, atol=0.5 if is_integer else 1e-6)
    assert actual.dtype == dtype
    outside = np.array([[-9.0, -1, 0, 1, 9]])
    actual = corrupted('contrast', image=outside, value_range=(-1, 1))
    expected = corrupted('contrast', image=outside.clip(-1, 1), value_range=(-1, 1))
    np.testing.assert_array_equal(actual, expected)


@needs_extra
def test_corrupt_invalid_option_or_image_raises():
    for options, message in (
        (dict(corruption='rain'), "one of .*'fog'.*got 'rain'"),
        (dict(severity=6), 'severity must be .*, 5.*, got 6'),
        (dict(seed='a'), "seed must be .* got 'a'"),
        (dict(channel_order='gray'), "channel_order .*'gray'"),
        (dict(value_range=(1, 1)), r'rise .* got \(1, 1\)'),
        (dict(value_range=(1, 0)), 'value_range must rise'),
        (dict(image=PHOTO.astype(np.uint16)), r'got uint16.*value_range=\(0, 65535'),
        (dict(image=PHOTO[:31]), r'31×48 pixels is smaller than the 32×32 .* leave out fog\. Any'),
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            corrupted(**dict(corruption='fog') | options)


@needs_extra
def test_check_size_small_image_names_corruptions():
    for name in PIXELWISE:
        assert corrupted(name, image=PHOTO[:2, :3]).shape == (2, 3, 3)
    with pytest.raises(ValueError, match=r'leave out snow, pixelate\.'):
        check_size((LEAST_SIZE, LEAST_SIZE - 1, 3), ['snow', 'contrast', 'pixelate'])
    check_size((LEAST_SIZE, LEAST_SIZE, 3), CORRUPTIONS)


def test_corrupt_missing_package_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, 'imagecorruptions', None)
    corruption_function.cache_clear()
    with pytest.raises(ValueError, match=r"pip install 'mmcalib\[shift\]'"):
        Corrupt('fog')
    Corrupt('fog', 0)
    corruption_function.cache_clear()


def test_label_untrained_classes_ignored_classes_get_the_label():
    original = {0: 0, 1: 255, 2: 1, 3: 255}
    transform = LabelUntrainedClasses(ood_index=254)
    assert transform({'label_map': original}) == {'label_map': {0: 0, 1: 254, 2: 1, 3: 254}}
    assert original == {0: 0, 1: 255, 2: 1, 3: 255}
    for label_map, loaded in ((None, {}), (original, {'gt_seg_map': None}), ({0: 254, 1: 255}, {})):
        with pytest.raises(ValueError, match=r'before LoadAnnotations, .* ood_index=254 be new'):
            transform({'label_map': label_map, **loaded})
    with pytest.raises(ValueError, match='below 255, which is ignored: 255'):
        LabelUntrainedClasses(ood_index=255)
