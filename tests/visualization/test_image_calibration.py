"""Calibration of each segmented image: the points that are drawn, and the axes of several runs."""

import numpy as np
import pytest
import torch
from drawings import measured_statistics, statistics, words
from samples import segmented

from mmcalib.visualization import draw_image_calibration, to_rgb


def image_points(axes):
    (points,) = axes.collections
    return points


def test_image_calibration_points_equal_loop():
    samples = segmented(6)
    figure = draw_image_calibration({'a': measured_statistics(samples)})
    points = image_points(figure.axes[0]).get_offsets()
    for sample, (conf, accuracy) in zip(samples, points, strict=True):
        logits = sample['seg_logits']['data'].double()
        label = sample['gt_sem_seg']['data'][0]
        pixel_conf, predicted = logits.softmax(0).max(0)
        valid = label != 255
        is_correct = (predicted == label)[valid]
        assert conf == pytest.approx(100 * pixel_conf[valid].mean().item(), rel=1e-6)
        assert accuracy == pytest.approx(100 * is_correct.double().mean().item())
    gap = np.median(abs(np.subtract(*np.asarray(points).T)))
    assert f'median gap {gap:.2f} %' in words(figure) and '6 images' in words(figure)
    bins = torch.tensor([[[100.0], [60], [50]], [[100], [40], [50]]], dtype=torch.float64)
    both = {'both signs': statistics(image_bins=bins), 'one': statistics(image_bins=bins[:1])}
    first, second = draw_image_calibration(both).axes
    assert 'both signs\nmedian gap 10.00 %' in first.get_title()
    assert first.get_xlim() == first.get_ylim() == second.get_xlim() == second.get_ylim()


def test_image_calibration_no_point_is_cut():
    for cells in ([[100, 40, 50], [100, 100, 100]], [[100, 0, 100]], [[100, 100, 100]] * 2):
        bins = torch.tensor(cells, dtype=torch.float64)[:, :, None]
        figure = draw_image_calibration({'a': statistics(image_bins=bins)})
        to_rgb(figure)
        (axes,) = figure.axes
        points = image_points(axes)
        reach = (points.get_sizes()[0] / np.pi) ** 0.5 * figure.dpi / 72
        for pixel in axes.transData.transform(points.get_offsets()):
            assert (pixel - reach >= axes.bbox.min).all() and (pixel + reach <= axes.bbox.max).all()
        assert max(axes.get_xticks()) <= 100 and len(axes.get_xticks()) > 1
        assert [*axes.get_xticks()] == [*axes.get_yticks()]
