"""Calibrated scores of objects come true."""

import numpy as np
import pytest

from mmcalib.metrics import ObjectCalibration


def draw(count, seed):
    """Scores that are far too high, and the IoUs of such objects."""
    rng = np.random.default_rng(seed)
    scores = rng.random(count)
    return scores, np.clip(scores**2 + 0.2 * rng.standard_normal(count), 0, 1)


def test_what_is_calibrated_comes_true_on_new_objects():
    calibration = ObjectCalibration(*draw(4000, 0))
    scores, ious = draw(20_000, 1)
    right, iou = calibration(scores)
    for values, truth in ((right, ious > 0.5), (iou, ious)):
        for low in np.arange(0.1, 0.9, 0.2):
            inside = (values >= low) & (values < low + 0.2)
            assert truth[inside].mean() == pytest.approx(values[inside].mean(), abs=0.05)
    assert abs(scores.mean() - ious.mean()) > 0.1


def test_curves_rise_and_are_level_beyond_their_ends():
    right, iou = ObjectCalibration(np.array([0.4, 0.6, 0.7]), np.array([0.2, 0.9, 0.7]))(
        np.array([0.0, 0.4, 0.5, 0.65, 1.0])
    )
    np.testing.assert_allclose(right, [0, 0, 0.5, 1, 1])
    np.testing.assert_allclose(iou, [0.2, 0.2, 0.5, 0.8, 0.8])


def test_objects_without_an_iou_drop_out():
    calibration = ObjectCalibration(np.array([0.4, 0.9]), np.array([0.2, np.nan]))
    assert calibration.num_objects == 1
    assert [values.tolist() for values in calibration(np.array([0.9]))] == [[0.0], [0.2]]
    assert [len(values) for values in calibration(np.zeros(0))] == [0, 0]


def test_nothing_calibrates_nothing():
    for ious in (np.zeros(0), np.full(2, np.nan)):
        with pytest.raises(ValueError, match=r'none of the \d+ objects has a labelled pixel'):
            ObjectCalibration(np.zeros(len(ious)), ious)
    with pytest.raises(ValueError, match=r'must be \(O,\)'):
        ObjectCalibration(np.zeros(2), np.zeros(3))
