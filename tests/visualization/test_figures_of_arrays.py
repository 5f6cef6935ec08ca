"""Figures without a work dir: of arrays, and of what measure, evaluate and a stream return."""

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from doors import draw_logits
from drawings import captions, check_nothing_is_cut, panels, words
from matplotlib.figure import Figure
from samples import as_segmented
from scipy.stats import binomtest

import mmcalib
from mmcalib.metrics import StreamingMetrics
from mmcalib.openmmlab.samples import read_sample
from mmcalib.predictions.from_arrays import read_arrays
from mmcalib.predictions.objects import map_confidence
from mmcalib.visualization import draw_risk_coverage
from mmcalib.visualization.confidence_maps import every_nth_pixel


def draw_maps(num_images=6):
    logits, labels = draw_logits(num_images, 4, 20, 24)
    labels[:, 0] = 255
    images = torch.randint(256, (num_images, 3, 20, 24), dtype=torch.uint8)
    return images, logits, labels


def measured_maps():
    _, logits, labels = draw_maps()
    return mmcalib.measure(logits.softmax(dim=1), labels, ignore_index=255, interval=0.9)


def bar_heights(figure):
    """Return the accuracies of the bins of the first diagram, in percent."""
    bars = [b for b in figure.axes[0].containers if b.get_label() == 'accuracy']
    return [bar.get_height() for bar in bars[0]]


def test_reliability_diagram_of_measured_equals_that_of_arrays():
    _, logits, labels = draw_maps()
    probs = logits.softmax(dim=1)
    stream = StreamingMetrics(['ECE', 'AECE', 'NLL'], ignore_index=255)
    stream.update(logits, labels)
    expected = mmcalib.reliability_diagram(probs, labels, ignore_index=255, title='a')
    for options in (dict(num_bins=10), dict(scale='logit'), dict(equal_mass=True)):
        check_nothing_is_cut(mmcalib.reliability_diagram(stream.compute(), **options))
    for measured in (
        mmcalib.measure(probs, labels, ignore_index=255),
        mmcalib.measure(probs, labels, ignore_index=255, interval=0.9),
        stream.compute(),
    ):
        actual = mmcalib.reliability_diagram(measured, title='a')
        assert actual.axes[0].get_title() == expected.axes[0].get_title()
        assert f'ECE {measured["ECE"]:.2f} %' in actual.axes[0].get_title()
        np.testing.assert_allclose(bar_heights(actual), bar_heights(expected))
        assert ('90 % interval' in words(actual)) == (measured.coverage is not None)


def drawn_intervals(figure, word='accuracy'):
    """Return the intervals of the bins of the first diagram, ``(n, 2)`` in percent."""
    for container in figure.axes[0].containers:
        if word in container.get_label() and 'interval' in container.get_label():
            (lines,) = container.lines[2]
            return np.array([ends[:, 1] for ends in lines.get_segments() if len(ends)])
    return None


def test_reliability_diagram_of_rows_with_interval_has_exact_ones_of_bins():
    # Bins of 8 predictions, all right, and of 40, half of them right.
    conf = np.repeat([0.95, 0.55], [8, 40])
    correct = np.r_[np.ones(8), np.arange(40) % 2].astype(bool)
    measured = mmcalib.measure(
        conf=conf, correct=correct, metrics=['ECE', 'accuracy'], interval=0.9
    )
    actual = drawn_intervals(mmcalib.reliability_diagram(measured))
    expected = [binomtest(20, 40).proportion_ci(0.9), binomtest(8, 8).proportion_ci(0.9)]
    np.testing.assert_allclose(actual, 100 * np.array(expected))
    without = mmcalib.measure(conf=conf, correct=correct, metrics=['ECE', 'accuracy'])
    assert drawn_intervals(mmcalib.reliability_diagram(without)) is None


@pytest.mark.parametrize('of_class', [1, 'predicted'])
def test_reliability_diagram_of_two_classes_in_groups_has_intervals_over_these(of_class):
    probs = np.repeat(np.random.default_rng(0).random(40), 25)
    labels = (np.random.default_rng(1).random(1000) < probs).astype(int)
    word = 'share of labels 1' if of_class == 1 else 'accuracy'
    numbers = []
    for groups in (None, np.arange(1000) // 25):
        measured = mmcalib.measure(probs, labels, interval=0.95, groups=groups)
        figure = mmcalib.reliability_diagram(measured, of_class=of_class, num_bins=15)
        numbers.append(len(drawn_intervals(figure, word)))
    assert numbers[1] < numbers[0]  # Bins of fewer than five groups have none.


def test_reliability_diagram_with_one_run_without_classwise_ece_draws_each_as_it_can():
    probs = np.random.default_rng(0).random(500)
    labels = (np.random.default_rng(1).random(500) < probs).astype(int)
    runs = {'a': mmcalib.measure(probs, labels)}
    runs['b'] = mmcalib.measure(probs, labels, ['ECE', 'NLL'])
    apart = mmcalib.reliability_diagram(runs)
    assert [axes.get_xlabel() for axes in apart.axes[2:]] == ['P(y = 1) (%)', 'confidence (%)']
    titles = [axes.get_title().replace('\n', ' ') for axes in apart.axes[:2]]
    assert 'of P(y = 1)' in titles[0]
    assert titles[1].startswith('b, of the predicted class, since it has no such bins of P(y = 1)')


def test_reliability_diagram_of_several_labels_and_measurements_has_panels():
    torch.manual_seed(0)
    probs = torch.rand(100, 3)
    labels = (torch.rand(100, 3) < probs).long()
    labels[:, 2] = 255
    measured = mmcalib.measure(probs, labels, ['ECE', 'NLL'], ignore_index=255)
    figure = mmcalib.reliability_diagram(measured)
    titles = [axes.get_title() for axes in figure.axes if axes.get_title()]
    assert len(titles) == 2  # Nothing is known about the third label.
    for label, title in enumerate(titles):
        assert title.startswith(f'label {label}\nECE {measured["ECE"][label]:.2f} %')
    pooled = mmcalib.reliability_diagram(probs[:, :2], labels[:, :2])
    assert 'pooled over labels' in pooled.axes[0].get_title()
    binary = mmcalib.measure(probs[:, 0], labels[:, 0], ['ECE'])
    figure = mmcalib.reliability_diagram({'one': binary, 'other': binary}, overlay=True)
    assert {'one', 'other'} <= {text.split('\n')[0] for text in legend_texts(figure)}


def legend_texts(figure):
    return [text.get_text() for legend in figure.legends for text in legend.get_texts()]


def drawn_lines_and_bars(axes):
    """Return the corners of all that is drawn in axes, but for the connectors of an inset."""
    lines = [line.get_xydata() for line in axes.lines]
    bars = [patch.get_path().vertices for patch in axes.patches]
    points = [np.asarray(points.get_offsets()) for points in axes.collections]
    return [*lines, *bars, *points]


def curves_of_risk(measured, **options):
    return draw_risk_coverage({'a': measured.statistics}, **options)


# Function, and options that change what stands in the panel.
ONE_PANEL_CASES = [
    (mmcalib.reliability_diagram, {}),
    (mmcalib.reliability_diagram, {'scale': 'logit'}),
    (mmcalib.reliability_diagram, {'equal_mass': True, 'zoom': (80, 100)}),
    (mmcalib.image_calibration_diagram, {}),
    (curves_of_risk, {}),
]


@pytest.mark.parametrize(('draw', 'options'), ONE_PANEL_CASES)
def test_figure_in_given_axes_equals_its_own_figure(draw, options):
    measured = measured_maps()
    expected = draw(measured, **options).axes[0]
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 4))
    left.plot([0, 2], [0, 3])
    limits = left.get_xlim(), left.get_ylim()
    try:
        assert draw(measured, ax=right, **options) is figure
    finally:
        plt.close(figure)
    assert figure.axes == [left, right]
    assert (left.get_xlim(), left.get_ylim()) == limits
    assert not figure.legends
    assert (right.get_xlim(), right.get_ylim()) == (expected.get_xlim(), expected.get_ylim())
    assert right.get_title() == expected.get_title()
    assert right.get_xlabel()
    assert right.get_ylabel() == expected.get_ylabel()
    assert any(label.get_visible() and label.get_text() for label in right.get_xticklabels())
    labels_of_legend = right.get_legend_handles_labels()[1]
    assert labels_of_legend == expected.get_legend_handles_labels()[1]
    actual_shapes = drawn_lines_and_bars(right)
    expected_shapes = drawn_lines_and_bars(expected)
    assert len(actual_shapes) == len(expected_shapes) > 0
    for actual_shape, expected_shape in zip(actual_shapes, expected_shapes, strict=True):
        np.testing.assert_allclose(actual_shape, expected_shape)


@pytest.mark.parametrize('draw', [mmcalib.reliability_diagram, mmcalib.image_calibration_diagram])
def test_figure_of_several_panels_in_given_axes_raises(draw):
    measured = measured_maps()
    axes = Figure().subplots()
    with pytest.raises(ValueError, match='ax has place for one panel, and 2 are drawn'):
        draw({'before': measured, 'after': measured}, ax=axes)
    assert not axes.has_data()


def test_reliability_diagram_of_arrays_and_overlay_are_drawn_in_given_axes():
    _, logits, labels = draw_maps()
    probs = logits.softmax(dim=1)
    axes = Figure().subplots()
    mmcalib.reliability_diagram(probs, labels, ignore_index=255, title='arrays', ax=axes)
    assert axes.get_title().startswith('arrays\nECE')
    measured = mmcalib.measure(probs, labels, ignore_index=255)
    axes = Figure().subplots()
    mmcalib.reliability_diagram({'before': measured, 'after': measured}, overlay=True, ax=axes)
    labels_of_legend = axes.get_legend_handles_labels()[1]
    assert [text.split('\n')[0] for text in labels_of_legend[:2]] == ['before', 'after']


@pytest.mark.parametrize('groups', [None, list('aabbcd')])
def test_image_calibration_diagram_points_equal_loop(groups):
    _, logits, labels = draw_maps()
    probs = logits.softmax(dim=1)
    unit = 'group' if groups else 'image'
    groups = groups or list(range(6))
    expected = []
    for name in sorted(set(groups)):
        chosen = torch.tensor([group == name for group in groups])
        conf, predicted = probs[chosen].max(dim=1)
        valid = labels[chosen] != 255
        accuracy = (predicted == labels[chosen])[valid].double().mean().item()
        expected.append((100 * conf[valid].mean().item(), 100 * accuracy))
    measured = mmcalib.measure(probs, labels, ignore_index=255, interval=0.9, groups=groups)
    figures = [mmcalib.image_calibration_diagram(measured)]
    if unit == 'image':
        measured = mmcalib.measure(probs, labels, ignore_index=255, interval=0.9)
        figures = [
            mmcalib.image_calibration_diagram(measured),
            mmcalib.image_calibration_diagram(probs, labels, ignore_index=255),
        ]
    for figure in figures:
        (points,) = figure.axes[0].collections
        np.testing.assert_allclose(points.get_offsets(), expected, rtol=1e-5)
        assert f'{len(expected)} {unit}s' in words(figure)
        assert unit in legend_texts(figure)


@pytest.mark.parametrize('kind', ['tensors', 'arrays', 'floats'])
def test_confidence_maps_of_arrays_show_pixels(kind):
    images, logits, labels = draw_maps(num_images=2)
    probs = logits.softmax(dim=1)
    palette = [[10, 20, 30], [200, 0, 0], [0, 200, 0], [0, 0, 200]]
    images[:, :, 0, 0] = 0
    images[:, :, 0, 1] = 255
    if kind == 'arrays':
        inputs = images.movedim(1, -1).numpy(), probs.numpy(), labels.numpy()
    elif kind == 'floats':  # Normalised inputs of a model, stretched to bytes.
        inputs = images / 255 * 4 - 2, probs, labels
    else:
        inputs = images, probs, labels
    figure = mmcalib.confidence_maps(*inputs, ignore_index=255, palette=palette)
    image, label, *_ = panels(figure)
    difference = np.abs(image.astype(int) - images[0].movedim(0, -1).numpy())
    assert difference.max() <= (1 if kind == 'floats' else 0)
    valid = labels[0] != 255
    np.testing.assert_array_equal(label[valid], np.array(palette)[labels[0][valid]])
    for index, caption in enumerate(captions(figure)):
        measured = mmcalib.measure(
            probs[index, None], labels[index, None], ['ECE', 'accuracy'], ignore_index=255
        )
        assert caption.startswith(f'image {index}: ECE {measured["ECE"]:.2f} %')
        assert f'accuracy {measured["accuracy"]:.2f} %' in caption
    check_nothing_is_cut(figure)


def test_confidence_maps_worst_are_those_of_the_largest_error():
    images, logits, labels = draw_maps()
    probs = (logits * torch.linspace(0.1, 3, 6)[:, None, None, None]).softmax(dim=1)
    errors = [mmcalib.measure(probs[n, None], labels[n, None], 'ECE', ignore_index=255)
              for n in range(6)]  # fmt: skip
    figure = mmcalib.confidence_maps(images, probs, labels, ignore_index=255, worst=2)
    expected = np.argsort(errors)[::-1][:2]
    assert [caption.split(':')[0] for caption in captions(figure)] == [
        f'image {n}' for n in expected
    ]


MAPS = torch.full((2, 3, 4, 5), 1 / 3), torch.zeros(2, 4, 5, dtype=torch.int64)
ROWS = torch.full((2, 3), 1 / 3), torch.zeros(2, dtype=torch.int64)
IMAGES = torch.zeros(2, 3, 4, 5)


@pytest.mark.parametrize(
    ('draw', 'message'),
    [
        (lambda: mmcalib.reliability_diagram(mmcalib.measure(*ROWS, 'ECE')), 'float'),
        (
            lambda: mmcalib.reliability_diagram(mmcalib.compare(ROWS[0], *ROWS)),
            'got Comparison',
        ),
        (lambda: mmcalib.reliability_diagram({'ECE': 1.0}), 'several metrics'),
        (
            lambda: mmcalib.reliability_diagram(mmcalib.measure(*ROWS), ROWS[1]),
            'leave out labels',
        ),
        (
            lambda: mmcalib.image_calibration_diagram(mmcalib.measure(*MAPS)),
            'interval=0.95',
        ),
        (lambda: mmcalib.image_calibration_diagram(*ROWS), 'no images'),
        (lambda: mmcalib.confidence_maps(IMAGES[:1], *MAPS), r'size of labels'),
        (lambda: mmcalib.confidence_maps(IMAGES, *MAPS, names=['a']), 'names'),
        (lambda: mmcalib.confidence_maps(IMAGES, *MAPS, classes=['a']), '3 names'),
        (lambda: mmcalib.confidence_maps(IMAGES, *ROWS), 'maps'),
        (lambda: mmcalib.confidence_maps(IMAGES, *MAPS, worst=0), 'worst'),
    ],
)
def test_figure_invalid_input_raises(draw, message):
    with pytest.raises((TypeError, ValueError), match=message):
        draw()


def test_map_confidence_of_probabilities_is_that_of_logits():
    _, logits, labels = draw_maps(num_images=1)
    predictions = read_arrays(logits.softmax(dim=1), labels, ignore_index=255)
    expected = logits.softmax(dim=1).amax(dim=1)[0]
    torch.testing.assert_close(map_confidence(predictions), expected)


def test_every_nth_pixel_binary_map_equals_slices():
    probs = torch.rand(1, 9, 7, generator=torch.Generator().manual_seed(0))
    predicted = probs[0] > 0.3
    sample = as_segmented(probs, predicted, torch.ones(9, 7))
    predictions = read_sample(sample, 'image.jpg')
    actual = map_confidence(every_nth_pixel(predictions, 4))
    torch.testing.assert_close(actual, torch.where(predicted, probs, 1 - probs)[0, ::4, ::4])
