"""Every figure: however long its names, nothing is cut; what cannot be drawn is said."""

from functools import partial

import numpy as np
import pytest
import torch
from drawings import check_nothing_is_cut, statistics, sweep, table, view, words
from matplotlib.cbook import is_math_text
from matplotlib.text import Text

import mmcalib
from mmcalib.commands.predict.picture import draw_classification, draw_segmentation
from mmcalib.metrics.metric_text import ECE
from mmcalib.reports.figures.severity import draw_severity
from mmcalib.reports.figures.sweep import PARAMETERS, draw_sweep
from mmcalib.visualization import (
    ConfidenceMaps,
    draw_boundary_curves,
    draw_confidence_maps,
    draw_image_calibration,
    draw_image_risk,
    draw_reliability,
    draw_risk_coverage,
    read_image_scores,
)
from mmcalib.visualization.pixels import save_figure

STATISTICS = statistics(
    protocol='paper',
    distance_bins=torch.stack([table(seed=seed) for seed in range(8)], dim=1),
    image_bins=torch.stack([table(n=50, seed=seed) for seed in range(6)]),
)
CLASSIFIED = statistics(image_bins=torch.ones(4, 3, 1))
SHIFTED = {severity: [{ECE: 3.0 + severity}, {ECE: 5.0}] for severity in range(3)}
ONE_RUN = {'a': statistics()}
SCORED = {'a score': np.arange(5.0)}, np.linspace(0, 1, 5)


def maps(count, palette=None):
    return ConfidenceMaps([view()], [], [f'class {k}' for k in range(count)], palette)


KINDS = [
    (draw_reliability, STATISTICS, {}),
    (draw_reliability, STATISTICS, dict(overlay=True, zoom=(80, 100))),
    (draw_reliability, STATISTICS, dict(scale='logit')),
    (draw_image_calibration, STATISTICS, {}),
    (draw_risk_coverage, STATISTICS, {}),
    (draw_risk_coverage, STATISTICS, dict(overlay=True)),
    (draw_boundary_curves, STATISTICS, {}),
    (draw_severity, SHIFTED, dict(keys=[ECE])),
    (draw_severity, SHIFTED, dict(keys=[ECE], figure='lines')),
    (draw_sweep, sweep(), {}),
    (draw_image_risk, SCORED, {}),
    (draw_confidence_maps, maps(3), {}),
]


@pytest.mark.parametrize(('draw', 'content', 'options'), KINDS)
def test_figure_long_names_not_cut(draw, content, options):
    names = [f'run {i}, {"with words " * 9}/{"a_folder/" * 9}' for i in range(4)]
    for runs in (names[:1], names):
        figure = draw(dict.fromkeys(runs, content), **options)
        check_nothing_is_cut(figure)
        count = words(figure).count('folder')
        assert count and count % (9 * len(runs)) == 0


@pytest.mark.parametrize(
    ('draw', 'runs', 'message'),
    [
        (
            draw_reliability,
            {'a': statistics(torch.zeros(3, 5))},
            "'a' has no predictions",
        ),
        (
            partial(draw_reliability, zoom=(90, 110)),
            ONE_RUN,
            r'zoom .*got \(90, 110\)',
        ),
        (partial(draw_reliability, num_bins=0), ONE_RUN, 'num_bins .*got 0'),
        (partial(draw_reliability, scale='log'), ONE_RUN, 'scale must be one of'),
        (draw_image_calibration, {'a': CLASSIFIED}, 'no images of many'),
        (
            draw_boundary_curves,
            ONE_RUN,
            "'a' has no dist.*per_distance=True",
        ),
        (partial(draw_severity, keys=[ECE]), {'a': {0: [{ECE: 1.0}]}}, 'no test on corrupted'),
        (
            partial(draw_severity, keys=[ECE], figure='bars'),
            {'a': SHIFTED},
            'figure must be one of',
        ),
        (draw_sweep, {}, '0 sweeps have none of'),
        (
            draw_sweep,
            {'a': sweep(), 'b': sweep(quality='accuracy/top1')},
            '/top1, mIoU in common',
        ),
        (
            draw_image_risk,
            {'a': (SCORED[0], np.full(5, np.nan))},
            '0 images with a risk',
        ),
        (draw_confidence_maps, {'': ConfidenceMaps([], [], [])}, 'no image in common'),
        (draw_confidence_maps, {'a': maps(3), 'b': maps(2)}, 'a, b have other classes'),
        (
            draw_confidence_maps,
            {'a': maps(3, [[0, 0, 0]])},
            '3 classes need as many .* got 1',
        ),
    ],
)
def test_figure_invalid_input_raises(draw, runs, message):
    with pytest.raises(ValueError, match=message):
        draw(runs)


NAMES = ['_background_', '$5 or $6', '$x_$', r'\frac{$', 'tab\tand \x1b[31m', 'no text \udce9']


@pytest.mark.parametrize(('draw', 'content', 'options'), KINDS)
def test_figure_any_run_name_shown_as_it_is(draw, content, options, tmp_path):
    runs = dict.fromkeys([*NAMES, 'two\nlines'], content)
    check_shown(draw(runs, **options), NAMES, tmp_path)


def test_figure_any_class_or_image_name_shown_as_it_is(tmp_path):
    classes = [*NAMES, 'two\nlines']
    views = [view(number, name=name, num_classes=7) for number, name in enumerate(classes)]
    figure = draw_confidence_maps({'a': ConfidenceMaps(views, [], classes)})
    check_shown(figure, NAMES, tmp_path)
    save_figure(figure, tmp_path / 'figure.pdf')
    shown = [text.get_text() for text in figure.legends[0].get_texts()]
    assert shown[7:10] == ['right', 'wrong', 'ignored']


@pytest.mark.parametrize('name', [*NAMES, 'two\nlines'], ids=ascii)
def test_picture_any_class_name_has_one_line(name):
    for draw in (draw_classes, draw_objects):
        picture = draw(classes=[name, name], captions=[f'{name}.png: a caption'])
        plain_picture = draw(classes=['a', 'a'], captions=['b'])
        assert picture.height == plain_picture.height


def draw_classes(**texts):
    image = np.zeros((8, 8, 3), np.uint8)
    return draw_classification(image, np.array([0.75, 0.25]), **texts)


def draw_objects(**texts):
    predicted = np.zeros((8, 8), np.int64)
    return draw_segmentation(
        np.zeros((8, 8, 3), np.uint8),
        predicted,
        np.ones((8, 8)),
        threshold=0.5,
        palette=None,
        objects=predicted + 1,
        scores={1: (0, '90 %')},
        **texts,
    )


def check_shown(figure, names, folder):
    """Names stand in the figure, as escapes where they must, and are no mathematics."""
    save_figure(figure, folder / 'figure.png', dpi=50)
    texts = {text.get_text() for text in figure.findobj(Text)} - {*PARAMETERS.values()}
    assert not any(map(is_math_text, texts))
    shown = ' '.join(texts).replace(r'\$', '$').replace('\u200b', '')
    for name in names:
        assert ''.join(c if c.isprintable() else ascii(c)[1:-1] for c in name) in shown


def test_reliability_diagram_invalid_arrays_raises():
    with pytest.raises(ValueError, match='no predictions to draw'):
        mmcalib.reliability_diagram([[0.5, 0.5]], [9], ignore_index=9)
    with pytest.raises(ValueError, match='take the softmax first'):
        mmcalib.reliability_diagram([[5.0, -2.0]], [0])


def test_figure_files_of_another_kind_raise(tmp_path):
    np.savez(tmp_path / 'other.npz', x=1)
    with pytest.raises(ValueError, match=r'other\.npz cannot be read as confidence maps'):
        ConfidenceMaps.load(tmp_path / 'other.npz')
    for text in ('image,label\na,1\n', '', 'image,risk\n', 'image,risk,score\na,0,1\nb,0'):
        (tmp_path / 'images.csv').write_text(text)
        with pytest.raises(ValueError, match='cannot be read as scores of images'):
            read_image_scores(tmp_path / 'images.csv')
