"""The diagram of arrays, against the table that plain loops count."""

import numpy as np
import pytest
import torch
from drawings import words
from matplotlib.figure import Figure
from matplotlib.patches import StepPatch

import mmcalib
from mmcalib import metrics
from mmcalib.metrics import counts


def draw(n=400, num_classes=3):
    rng = np.random.default_rng(0)
    probs = rng.dirichlet([0.6] * num_classes, n)
    return probs, rng.integers(num_classes, size=n)


def bars(figure):
    return [p.get_data().values for p in figure.axes[0].patches if isinstance(p, StepPatch)]


def test_bars_are_the_accuracies_of_plain_loops():
    probs, labels = draw()
    figure = mmcalib.reliability_diagram(probs, labels, num_bins=10, title='a loss')
    assert isinstance(figure, Figure)
    counts, correct = np.zeros(10), np.zeros(10)
    for row, label in zip(probs, labels, strict=True):
        place = int(np.ceil(row.max() * 10)) - 1
        counts[place] += 1
        correct[place] += row.argmax() == label
    np.testing.assert_allclose(bars(figure)[0], 100 * correct / np.maximum(counts, 1))
    errors = [
        f'{name} {function(probs, labels, num_bins=10):.2f} %'
        for name, function in (
            ('ECE', metrics.expected_calibration_error),
            ('AECE', metrics.adaptive_calibration_error),
        )
    ]
    assert figure.axes[0].get_title() == f'a loss\n{", ".join(errors)}\nn = 400, 10 bins'
    assert '95 %' not in words(figure)  # which rows are of one image is unknown


def test_maps_lists_confidences_and_pieces_are_drawn_alike(monkeypatch):
    probs, labels = draw()
    expected = mmcalib.reliability_diagram(probs, labels)
    maps = np.moveaxis(probs.reshape(4, 10, 10, 3), -1, 1)
    targets = np.pad(labels.reshape(4, 10, 10), ((0, 0), (0, 2), (0, 0)), constant_values=255)
    maps = np.pad(maps, ((0, 0), (0, 0), (0, 2), (0, 0)))
    conf, correct = probs.max(1), probs.argmax(1) == labels
    drawn = [
        mmcalib.reliability_diagram(torch.from_numpy(maps), targets, ignore_index=255),
        mmcalib.reliability_diagram(probs.tolist(), labels.tolist()),
        mmcalib.reliability_diagram(conf=conf, correct=correct),
    ]
    monkeypatch.setattr(counts, 'PIECE_BYTES', 1)
    drawn.append(mmcalib.reliability_diagram(probs, labels))
    for figure in drawn:
        assert words(figure) == words(expected)
        np.testing.assert_allclose(bars(figure), bars(expected))


def test_bins_of_equal_count_and_a_zoom():
    probs, labels = draw()
    figure = mmcalib.reliability_diagram(probs, labels, equal_mass=True, zoom=(80, 100))
    assert 'bins of equal count' in words(figure)
    assert figure.axes[0].child_axes[0].get_xlim() == (80, 100)


def test_what_cannot_be_drawn_is_said():
    for labels, options in (([255], dict(ignore_index=255)), ([], {})):
        with pytest.raises(ValueError, match='there are no predictions to draw'):
            mmcalib.reliability_diagram([[0.5, 0.5]] * len(labels), labels, **options)
    with pytest.raises(ValueError, match='take the softmax first'):
        mmcalib.reliability_diagram([[5.0, -2.0]], [0])
