"""Reliability diagrams: what is drawn are the table's numbers; of arrays, those of plain loops."""

import warnings

import numpy as np
import pytest
import torch
from drawings import measured_statistics, statistics, table, words
from matplotlib.colors import to_hex
from samples import segmented

import mmcalib
from mmcalib import metrics
from mmcalib.visualization import draw_reliability


def artist(axes, label):
    """The one artist or group of bars with a label, or a label that begins so."""
    artists = [*axes.containers, *axes.lines, *axes.collections]
    (labelled,) = [one for one in artists if str(one.get_label()).startswith(label)]
    return labelled


def bars(axes, label):
    """Where each bar begins, and its two ends."""
    return [(*bar.get_xy(), bar.get_y() + bar.get_height()) for bar in artist(axes, label)]


def shares(axes):
    (histogram,) = axes.patches
    return histogram.get_data().values


def test_reliability_bars_gaps_shares_equal_bins():
    rows = torch.tensor([[4.0, 0, 6], [1, 0, 6], [1.2, 0, 5.1]], dtype=torch.float64)
    run = statistics(rows, num_bins=3, ECE=12.345, AECE=11.0)
    figure = draw_reliability({'mbls/digits': run})
    top, bottom = figure.axes
    np.testing.assert_allclose(bars(top, 'accuracy'), [(0, 0, 25), (200 / 3, 0, 100)])
    np.testing.assert_allclose(bars(top, 'over-confident'), [(0, 25, 30)])
    np.testing.assert_allclose(bars(top, 'under-confident'), [(200 / 3, 100, 85)])
    np.testing.assert_allclose(shares(bottom), [40, 0, 60])
    means = [artist(bottom, f'mean {name}').get_xdata()[0] for name in ('accuracy', 'confidence')]
    assert means == pytest.approx([70, 63])
    text = words(figure)
    for part in ('mbls/digits\nECE 12.35 %, AECE 11.00 %\nn = 10, 3 bins', 'confidence (%)',
                 'accuracy (%)', 'predictions (%)', 'calibrated', 'faded: n < 20'):  # fmt: skip
        assert part in text
    finer = draw_reliability({'': statistics(ECE=1.0, protocol='paper')}, num_bins=25)
    assert 'n = 500, errors of 10 bins, protocol paper' in words(finer)
    assert len(shares(finer.axes[1])) == 25


def test_reliability_equal_mass_histogram_equal_width():
    run = statistics(table(100), num_bins=20)
    top, bottom = draw_reliability({'': run}, equal_mass=True, num_bins=5).axes
    count, correct, conf = run.bins(5, equal_mass=True).numpy()
    np.testing.assert_allclose(shares(bottom), 100 * run.bins(5)[0] / 500)
    points = 100 * np.stack([conf, correct]) / count
    np.testing.assert_allclose(artist(top, 'bins of equal count').get_data(), points)
    gaps = np.array(artist(top, 'gap').get_segments())
    np.testing.assert_allclose(gaps.T, np.stack([points[[0, 0]], points], axis=1))


def test_reliability_panels_and_overlay_show_same_runs():
    runs = {f'run {i}': statistics(table(n=9000, seed=i)) for i in range(5)}
    figure = draw_reliability(runs)
    overlaid = draw_reliability(runs, overlay=True, zoom=(80, 100))
    top, below = overlaid.axes
    (inset,) = top.child_axes
    assert inset.get_xlim() == inset.get_ylim() == (80, 100)
    looks = set()
    for number, run in enumerate(runs.values()):
        (panel,) = (axes for axes in figure.axes if axes.get_title().startswith(f'run {number}'))
        assert panel.get_xlim() == panel.get_ylim() == (0, 100)
        whole = run.bins(10)[:, run.bins(10)[0] >= 20]
        accuracy = 100 * whole[1] / whole[0]
        np.testing.assert_allclose([y for *_, y in bars(panel, 'accuracy')][-9:], accuracy[-9:])
        for axes in (top, inset):
            line = artist(axes, f'run {number}')
            drawn = line.get_xydata()[~np.isnan(line.get_ydata())]  # without sparse bins
            np.testing.assert_allclose(drawn.T, 100 * whole[[2, 1]] / whole[0])
        outline = below.patches[number]
        assert to_hex(outline.get_edgecolor()) == to_hex(line.get_color())
        np.testing.assert_allclose(outline.get_data().values, 100 * run.bins(10)[0] / 9000)
        looks.add((line.get_color(), line.get_linestyle()))
    assert len(looks) == 5


@pytest.mark.parametrize(('fewest', 'faded'), [(19, 1), (20, 0), (0, 0)])
def test_reliability_few_predictions_faded(fewest, faded):
    rows = torch.tensor([100, fewest, 50], dtype=torch.float64)
    rows = torch.stack([rows, rows / 2, rows * torch.tensor([0.1, 0.5, 0.9])])
    figure = draw_reliability({'run': statistics(rows, num_bins=3)})
    assert ('faded: n < 20' in words(figure)) == bool(faded)
    white = [bar for bar in figure.axes[0].patches if bar.get_facecolor() == (1, 1, 1, 0.7)]
    assert [(bar.get_x(), bar.get_height()) for bar in white] == [(100 / 3, 100)] * faded


@pytest.mark.parametrize('under', [False, True])
def test_reliability_zoom_inset_off_the_curve(under):
    # One bin for each tenth, 20 points off the diagonal.
    conf = torch.arange(3, 9, dtype=torch.float64) / 10 + 0.05
    bins = torch.stack([torch.full((6,), 50.0), 50 * (conf + (0.2 if under else -0.2)), 50 * conf])
    figure = draw_reliability({'run': statistics(bins.double())}, overlay=True, zoom=(50, 100))
    (inset,) = figure.axes[0].child_axes
    box = inset.get_position()
    points = figure.axes[0].transData.transform(100 * bins[[2, 1]].T / 50)
    assert not any(box.contains(*figure.transFigure.inverted().transform(p)) for p in points)


def test_reliability_band_equals_interval_over_images():
    images = torch.stack([table(n=50, seed=seed) for seed in range(20)])
    run = statistics(image_bins=images)
    count, correct, _ = images.sum(dim=0)
    axes, _ = draw_reliability({'run': run}).axes
    (band,) = artist(axes, '95 % interval of accuracy').lines[2]
    ends = np.array([segment[:, 1] for segment in band.get_segments()]) / 100
    accuracy = (correct / count).numpy()
    np.testing.assert_allclose([y for *_, y in bars(axes, 'accuracy')], 100 * accuracy)
    error = np.sqrt(accuracy * (1 - accuracy) / count.numpy())
    assert (ends[:, 0] <= accuracy).all() and (accuracy <= ends[:, 1]).all()
    np.testing.assert_allclose(ends[5:, 1] - ends[5:, 0], 2 * 1.96 * error[5:], rtol=0.5)
    few = {'run': statistics(image_bins=images[:4])}
    for other in (draw_reliability({'run': run}, num_bins=5), draw_reliability(few)):
        assert 'interval' not in words(other)


def test_reliability_logit_scale_spreads_high_confidences():
    run = measured_statistics(segmented(6))
    figure = draw_reliability({'a': run}, scale='logit')
    top, below = figure.axes
    assert len(artist(top, 'bins of equal count').get_xdata()) == run.num_bins
    # 90 and 99 % are as far apart as 99 and 99.9 %, but for a few hundredths; and so on.
    for transform in (top.transData, below.transData):
        ends = transform.transform([(x, x) for x in (90, 99, 99.9, 99.99)])
        steps = np.diff(ends, axis=0)[:, : 2 if transform is top.transData else 1]
        np.testing.assert_allclose(steps[1:], steps[:-1], rtol=0.05)
    assert shares(below).sum() == pytest.approx(100)
    assert '99.99' in words(figure)
    sure = mmcalib.reliability_diagram(conf=np.ones(50), correct=np.ones(50, bool), scale='logit')
    assert shares(sure.axes[1])[-1] == 100


def test_reliability_diagram_arrays_equal_loop():
    rng = np.random.default_rng(0)
    probs = rng.dirichlet([0.6] * 3, 400)
    labels = rng.integers(3, size=400)
    figure = mmcalib.reliability_diagram(probs, labels, num_bins=10, title='a loss')
    count, correct = np.zeros((2, 10))
    for row, label in zip(probs, labels, strict=True):
        bin_index = int(np.ceil(row.max() * 10)) - 1
        count[bin_index] += 1
        correct[bin_index] += row.argmax() == label
    expected = 100 * correct[count > 0] / count[count > 0]
    ece = metrics.expected_calibration_error(probs, labels, num_bins=10)
    aece = metrics.adaptive_calibration_error(probs, labels, num_bins=10)
    title = f'a loss\nECE {ece:.2f} %, AECE {aece:.2f} %\nn = 400, 10 bins'
    maps = np.moveaxis(probs.reshape(4, 10, 10, 3), -1, 1)
    targets = np.pad(labels.reshape(4, 10, 10), ((0, 0), (0, 2), (0, 0)), constant_values=255)
    maps = torch.from_numpy(np.pad(maps, ((0, 0), (0, 0), (0, 2), (0, 0))))
    figures = [
        figure,
        mmcalib.reliability_diagram(maps, targets, ignore_index=255, num_bins=10, title='a loss'),
        mmcalib.reliability_diagram(
            conf=probs.max(1).tolist(),
            correct=probs.argmax(1) == labels,
            num_bins=10,
            title='a loss',
        ),
    ]
    for figure in figures:
        axes = figure.axes[0]
        np.testing.assert_allclose([end for *_, end in bars(axes, 'accuracy')], expected)
        assert axes.get_title() == title
        # It is unknown which rows are of one image, so there is no interval.
        assert '95 %' not in words(figure)
    equal = mmcalib.reliability_diagram(probs, labels, equal_mass=True, zoom=(80, 100))
    assert 'bins of equal count' in words(equal) and equal.axes[0].child_axes


def binary_rows():
    torch.manual_seed(0)
    logits = 2 * torch.randn(400)
    labels = (torch.rand(400) < (logits - 1).sigmoid()).long()
    return logits.sigmoid(), labels


def drawn_heights(figure):
    """Return the tops of the bars, each a line across its bin, in percent."""
    (lines,) = (
        entry
        for entry in figure.axes[0].collections
        if type(entry).__name__ == 'LineCollection' and entry.get_linewidth()[0] == 1.8
    )
    return [segment[0][1] for segment in lines.get_segments()]


@pytest.mark.parametrize('of_class', [None, 1])
def test_reliability_of_one_sigmoid_shows_the_share_of_positives(of_class):
    probs, labels = binary_rows()
    figure = mmcalib.reliability_diagram(probs, labels, num_bins=5, of_class=of_class)
    expected = []
    for low in (0.0, 0.2, 0.4, 0.6, 0.8):
        in_bin = (probs > low) & (probs <= low + 0.2)
        expected.append(100 * labels[in_bin].double().mean().item())
    assert drawn_heights(figure) == pytest.approx(expected)
    assert figure.axes[0].get_ylabel() == 'share of labels 1 (%)'
    assert figure.axes[1].get_xlabel() == 'P(y = 1) (%)'


def test_reliability_of_a_measured_sigmoid_equals_that_of_its_arrays():
    probs, labels = binary_rows()
    expected = drawn_heights(mmcalib.reliability_diagram(probs, labels))
    for measured in (mmcalib.measure(probs, labels), mmcalib.measure(probs, labels, interval=0.9)):
        assert drawn_heights(mmcalib.reliability_diagram(measured)) == pytest.approx(expected)


def test_reliability_of_the_predicted_class_is_drawn_on_request():
    probs, labels = binary_rows()
    for given in ((probs, labels), (mmcalib.measure(probs, labels),)):
        figure = mmcalib.reliability_diagram(*given, of_class='predicted')
        assert figure.axes[0].get_ylabel() == 'accuracy (%)'


@pytest.mark.parametrize(
    ('given', 'options', 'words'),
    [
        ('arrays', dict(of_class=3), 'of_class must be from 0 to 2, got 3'),
        ('arrays', dict(of_class=-1), 'of_class must be an integer'),
        ('measured', dict(of_class=1), 'measure ClasswiseECE'),
        ('classes', dict(of_class=1, num_bins=7), '15 bins of equal width were counted'),
        ('confidences', dict(of_class=1), 'needs probs and labels'),
    ],
)
def test_reliability_of_a_class_that_is_not_known_raises(given, options, words):
    probs = torch.full((6, 3), 1 / 3)
    labels = torch.tensor([0, 1, 2, 0, 1, 2])
    arguments = {
        'arrays': dict(probs=probs, labels=labels),
        'measured': dict(probs=mmcalib.measure(probs, labels)),
        'classes': dict(probs=mmcalib.measure(probs, labels, ['ECE', 'ClasswiseECE'])),
        'confidences': dict(conf=probs[:, 0], correct=labels == 0),
    }
    with pytest.raises(ValueError, match=words):
        mmcalib.reliability_diagram(**arguments[given], **options)


def test_reliability_grid_of_several_labels_pairs_before_and_after():
    probs, labels = binary_rows()
    several = [torch.stack([values] * 3, dim=1) for values in (probs, labels)]
    measured = mmcalib.measure(*several)
    figure = mmcalib.reliability_diagram({'before': measured, 'after': measured})
    titles = [axes.get_title().split('\n')[0] for axes in figure.axes]
    expected = [f'{when} label {label}' for label in range(3) for when in ('before', 'after')]
    assert [title for title in titles if title] == expected


def test_reliability_runs_of_which_one_lacks_the_classes_are_all_of_confidences():
    probs, labels = binary_rows()
    figure = mmcalib.reliability_diagram(
        {'new': mmcalib.measure(probs, labels), 'old': mmcalib.measure(probs, labels, ['ECE'] * 2)},
        overlay=True,
    )
    assert figure.axes[0].get_ylabel() == 'accuracy (%)'
    labels = figure.axes[0].get_legend_handles_labels()[1]
    new, old, *_ = [text.replace('\n', ' ') for text in labels]
    assert new.startswith('new ECE')
    assert old.startswith('old, of the predicted class, since it has no such bins of P(y = 1) ECE')


def test_reliability_diagram_measured_two_classes_other_bins_warns_of_confidences():
    torch.manual_seed(0)
    p = torch.rand(300)
    labels = (torch.rand(300) < p).long()
    probs = torch.stack([1 - p, p], dim=1)
    measured = {'raw': mmcalib.measure(probs, labels, ['ECE', 'ClasswiseECE'])}
    for options in (dict(equal_mass=True, zoom=(0, 20)), dict(num_bins=7), dict(scale='logit')):
        with pytest.warns(UserWarning, match='confidences of the predicted class.* probs and lab'):
            mmcalib.reliability_diagram(measured, **options)
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        mmcalib.reliability_diagram(measured)
        mmcalib.reliability_diagram(measured, equal_mass=True, of_class='predicted')
        mmcalib.reliability_diagram(probs, labels, equal_mass=True, zoom=(0, 20))
