"""Reliability diagrams: what is drawn are the table's numbers; of arrays, those of plain loops."""

import numpy as np
import pytest
import torch
from drawings import check_nothing_is_cut, statistics, table, words
from matplotlib.figure import Figure
from matplotlib.patches import StepPatch

import mmcalib
from mmcalib import metrics
from mmcalib.metrics import counts
from mmcalib.visualization import draw_reliability


def image_bins(images=20, num_bins=10):
    return torch.stack([table(num_bins, n=50, seed=seed) for seed in range(images)])


def test_a_panel_says_what_was_measured_in_units():
    found = statistics(num_bins=15, ECE=12.345, AECE=11.0)
    text = words(draw_reliability({'mbls/digits': found}))
    for part in (
        'mbls/digits', 'ECE 12.35 %, AECE 11.00 %', 'n = 500, 15 bins', 'confidence (%)',
        'accuracy (%)', 'predictions (%)', 'over-confident by',
    ):  # fmt: skip
        assert part in text
    finer = draw_reliability({'': statistics(ECE=1.0, protocol='paper')}, num_bins=25)
    assert 'n = 500, errors of 10 bins, protocol paper' in words(finer)


def test_bars_and_gaps_are_those_of_the_table():
    rows = torch.tensor([[4.0, 6], [1, 6], [1.2, 5.1]], dtype=torch.float64)
    top, bottom = draw_reliability({'': statistics(rows, num_bins=3)}).axes
    accuracy, over, under, _ = (
        patch.get_data() for patch in top.patches if isinstance(patch, StepPatch)
    )
    np.testing.assert_allclose(accuracy.values, [25, 0, 100])
    np.testing.assert_allclose(over.values, [30, 0, 100])  # conf 30 over accuracy 25
    np.testing.assert_allclose(under.values, [25, 0, 85])
    (histogram,) = (patch for patch in bottom.patches if isinstance(patch, StepPatch))
    np.testing.assert_allclose(histogram.get_data().values, [40, 0, 60])


def test_bins_of_equal_count_have_a_histogram_of_equal_width():
    found = statistics(table(100), num_bins=20)
    top, bottom = draw_reliability({'': found}, equal_mass=True, num_bins=5).axes
    assert len(bottom.patches[0].get_data().values) == 5
    count, correct, conf = found.bins(5, equal_mass=True)
    line = next(line for line in top.lines if line.get_marker() == 'o')
    np.testing.assert_allclose(line.get_xdata(), 100 * conf / count)
    np.testing.assert_allclose(line.get_ydata(), 100 * correct / count)


@pytest.mark.parametrize('count', [1, 2, 5])
def test_side_by_side_and_overlaid(count):
    runs = {
        f'run {i}, {"with words " * 9}': statistics(table(seed=i), ECE=1.0, AECE=2.0)
        for i in range(count)
    }
    figure = draw_reliability(runs)
    check_nothing_is_cut(figure)
    assert len(figure.axes) == 2 * count
    assert figure.axes[0].get_xlim() == figure.axes[0].get_ylim() == (0, 100)
    figure = draw_reliability(runs, overlay=True, zoom=(80, 100))
    check_nothing_is_cut(figure)
    assert len(figure.axes) == 2 and len(figure.axes[0].child_axes) == 1
    assert figure.axes[0].child_axes[0].get_xlim() == (80, 100)
    assert all(f'run {i}, with' in words(figure) for i in range(count))


def test_no_two_runs_of_many_look_alike():
    runs = {str(i): statistics(table(seed=i)) for i in range(20)}
    top, bottom = draw_reliability(runs, overlay=True).axes
    curves = [
        (each.get_color(), each.get_linestyle())
        for each in top.lines
        if len(each.get_xdata()) > 2 and not each.get_alpha()
    ]
    outlines = [(each.get_edgecolor(), each.get_linestyle()) for each in bottom.patches]
    assert len(set(curves)) == len(set(outlines)) == 20


@pytest.mark.parametrize(('fewest', 'faded'), [(19, 1), (20, 0), (0, 0)])
def test_bins_of_few_predictions_are_faded_and_the_legend_says_so(fewest, faded):
    rows = torch.tensor([100, fewest, 50], dtype=torch.float64)
    rows = torch.stack([rows, rows / 2, rows * torch.tensor([0.1, 0.5, 0.9])])
    runs = {'run': statistics(rows, num_bins=3)}
    figure = draw_reliability(runs)
    whitened = [p for p in figure.axes[0].patches if p.get_facecolor() == (1, 1, 1, 0.7)]
    assert [p.get_data().values.tolist() for p in whitened] == [[0, 100, 0]] * faded
    assert ('faded: n < 20' in words(figure)) == bool(faded)
    _, whole, *_ = draw_reliability(runs, overlay=True).axes[0].lines
    assert np.isnan(whole.get_ydata()).sum() == faded


@pytest.mark.parametrize('under', [False, True])
def test_the_inset_keeps_off_the_curve(under):
    # One bin for each tenth, 20 points off the diagonal.
    conf = torch.arange(3, 9, dtype=torch.float64) / 10 + 0.05
    bins = torch.stack([torch.full((6,), 50.0), 50 * (conf + (0.2 if under else -0.2)), 50 * conf])
    figure = draw_reliability({'run': statistics(bins.double())}, overlay=True, zoom=(50, 100))
    (inset,) = figure.axes[0].child_axes
    box = inset.get_position()
    points = figure.axes[0].transData.transform(100 * bins[[2, 1]].T / 50)
    assert not any(box.contains(*figure.transFigure.inverted().transform(p)) for p in points)


def test_the_interval_of_each_bin_is_that_of_its_accuracy_over_images():
    found = statistics(image_bins=image_bins())
    count, correct, _ = found.image_bins.sum(dim=0)
    figure = draw_reliability({'run': found})
    (band,) = (c for c in figure.axes[0].collections if 'interval' in str(c.get_label()))
    ends = np.array([segment[:, 1] for segment in band.get_segments()]) / 100
    accuracy = (correct / count).numpy()
    error = np.sqrt(accuracy * (1 - accuracy) / count.numpy())
    assert (ends[:, 0] <= accuracy).all() and (accuracy <= ends[:, 1]).all()
    np.testing.assert_allclose(ends[5:, 1] - ends[5:, 0], 2 * 1.96 * error[5:], rtol=0.5)
    assert '95 % interval of accuracy' in words(figure)
    for other in (draw_reliability({'run': found}, num_bins=5), draw_reliability(
        {'run': statistics(image_bins=image_bins(4))}
    ), draw_reliability({'run': statistics()})):  # fmt: skip
        assert 'interval' not in words(other)


def test_what_cannot_be_drawn_is_said():
    with pytest.raises(ValueError, match='no run'):
        draw_reliability({})
    with pytest.raises(ValueError, match="'run' has no predictions"):
        draw_reliability({'run': statistics(torch.zeros(3, 5))})
    with pytest.raises(ValueError, match=r'interval in percent.*got \(90, 110\)'):
        draw_reliability({'run': statistics()}, zoom=(90, 110))
    with pytest.raises(ValueError, match='num_bins must be an integer of at least 1, got 0'):
        draw_reliability({'run': statistics()}, num_bins=0)


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


def test_arrays_that_cannot_be_drawn_are_refused():
    for labels, options in (([255], dict(ignore_index=255)), ([], {})):
        with pytest.raises(ValueError, match='there are no predictions to draw'):
            mmcalib.reliability_diagram([[0.5, 0.5]] * len(labels), labels, **options)
    with pytest.raises(ValueError, match='take the softmax first'):
        mmcalib.reliability_diagram([[5.0, -2.0]], [0])
