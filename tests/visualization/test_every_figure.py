"""Every figure: however long its names, nothing is cut; what cannot be drawn is said."""

from functools import partial

import numpy as np
import pytest
import torch
from drawings import check_nothing_is_cut, statistics, table, view, words

import mmcalib
from mmcalib.metrics.keys import ECE
from mmcalib.visualization import (
    ConfidenceMaps,
    draw_boundary_curves,
    draw_confidence_maps,
    draw_image_calibration,
    draw_image_risk,
    draw_reliability,
    draw_risk_coverage,
    draw_severity,
    draw_sweep,
    read_image_scores,
)

STATISTICS = statistics(
    protocol='paper',
    distance_bins=torch.stack([table(seed=seed) for seed in range(8)], dim=1),
    image_bins=torch.stack([table(n=50, seed=seed) for seed in range(6)]),
)
CLASSIFIED = statistics(image_bins=torch.ones(4, 3, 1))
SHIFTED = {severity: [{ECE: 3.0 + severity}, {ECE: 5.0}] for severity in range(3)}
SCORED = {'a score': np.arange(5.0)}, np.linspace(0, 1, 5)


def sweep(quality='mIoU'):
    rows = [dict(value=v, val=[{quality: 50, ECE: v}], test=[], chosen=v == 2) for v in (1, 2)]
    return dict(parameter='alpha', rows=rows)


def maps(count):
    return ConfidenceMaps([view()], [], [f'class {k}' for k in range(count)])


KINDS = {
    'reliability': (draw_reliability, STATISTICS),
    'in one panel': (partial(draw_reliability, overlay=True, zoom=(80, 100)), STATISTICS),
    'log-odds': (partial(draw_reliability, scale='logit'), STATISTICS),
    'log-odds in one panel': (partial(draw_reliability, scale='logit', overlay=True), STATISTICS),
    'by image': (draw_image_calibration, STATISTICS),
    'risk': (draw_risk_coverage, STATISTICS),
    'risk in one panel': (partial(draw_risk_coverage, overlay=True), STATISTICS),
    'by distance': (draw_boundary_curves, STATISTICS),
    'boxes': (partial(draw_severity, keys=[ECE]), SHIFTED),
    'lines': (partial(draw_severity, keys=[ECE], figure='lines'), SHIFTED),
    'sweep': (draw_sweep, sweep()),
    'images': (draw_image_risk, SCORED),
    'maps': (draw_confidence_maps, maps(3)),
}


@pytest.mark.parametrize('kind', KINDS)
def test_nothing_is_cut_and_no_word_is_broken(kind):
    draw, drawn = KINDS[kind]
    names = [f'run {i}, {"with words " * 9}/{"a_folder/" * 9}' for i in range(6)]
    for runs in (names[:1], names):
        figure = draw(dict.fromkeys(runs, drawn))
        check_nothing_is_cut(figure)
        found = words(figure).count('folder')
        assert found and found % (9 * len(runs)) == 0


@pytest.mark.parametrize(
    ('make', 'message'),
    [
        (lambda: draw_reliability({'a': statistics(torch.zeros(3, 5))}), "'a' has no predictions"),
        (lambda: draw_reliability({'a': statistics()}, zoom=(90, 110)), r'zoom .*got \(90, 110\)'),
        (lambda: draw_reliability({'a': statistics()}, num_bins=0), 'num_bins .*got 0'),
        (lambda: draw_reliability({'a': statistics()}, scale='log'), 'scale must be one of'),
        (lambda: draw_image_calibration({'a': CLASSIFIED}), 'no images of many'),
        (lambda: mmcalib.reliability_diagram([[0.5, 0.5]], [9], ignore_index=9), 'no predictions'),
        (lambda: mmcalib.reliability_diagram([[5.0, -2.0]], [0]), 'take the softmax first'),
        (lambda: draw_boundary_curves({'a': statistics()}), "'a' has no dist.*per_distance=True"),
        (lambda: draw_severity({'a': {0: [{ECE: 1.0}]}}, [ECE]), 'no test on corrupted data'),
        (lambda: draw_severity({'a': SHIFTED}, [ECE], figure='bars'), 'figure must be one of'),
        (lambda: draw_sweep({}), '0 sweeps have none of'),
        (lambda: draw_sweep({'a': sweep(), 'b': sweep('accuracy/top1')}), '/top1, mIoU in common'),
        (lambda: draw_image_risk({'a': (SCORED[0], np.full(5, np.nan))}), '0 images with a risk'),
        (lambda: draw_confidence_maps({'': ConfidenceMaps([], [], [])}), 'no image in common'),
        (lambda: draw_confidence_maps({'a': maps(3), 'b': maps(2)}), 'a, b have other classes'),
        (
            lambda: draw_confidence_maps({'': ConfidenceMaps([view()], [], [*'abc'], [[0, 0, 0]])}),
            '3 classes need as many colours, got 1',
        ),
    ],
)
def test_what_cannot_be_drawn_is_said(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_other_files_are_refused(tmp_path):
    np.savez(tmp_path / 'other.npz', x=1)
    with pytest.raises(ValueError, match=r'other\.npz cannot be read as confidence maps'):
        ConfidenceMaps.load(tmp_path / 'other.npz')
    for text in ('image,label\na,1\n', '', 'image,risk\n', 'image,risk,score\na,0,1\nb,0'):
        (tmp_path / 'images.csv').write_text(text)
        with pytest.raises(ValueError, match='cannot be read as scores of images'):
            read_image_scores(tmp_path / 'images.csv')
