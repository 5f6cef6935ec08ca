"""Every figure: however long its names, nothing is cut; what cannot be drawn is said."""

import numpy as np
import pytest
import torch
from drawings import check_nothing_is_cut, statistics, sweep, table, view, words

import mmcalib
from mmcalib import visualization as drawing
from mmcalib.metrics.keys import ECE
from mmcalib.visualization import ConfidenceMaps

STATISTICS = statistics(
    protocol='paper',
    distance_bins=torch.stack([table(seed=seed) for seed in range(8)], dim=1),
    image_bins=torch.stack([table(n=50, seed=seed) for seed in range(6)]),
)
CLASSIFIED = statistics(image_bins=torch.ones(4, 3, 1))
SHIFTED = {severity: [{ECE: 3.0 + severity}, {ECE: 5.0}] for severity in range(3)}
SCORED = {'a score': np.arange(5.0)}, np.linspace(0, 1, 5)


def maps(count, palette=None):
    return ConfidenceMaps([view()], [], [f'class {k}' for k in range(count)], palette)


KINDS = [
    ('reliability', STATISTICS, {}),
    ('reliability', STATISTICS, dict(overlay=True, zoom=(80, 100))),
    ('reliability', STATISTICS, dict(scale='logit')),
    ('reliability', STATISTICS, dict(scale='logit', overlay=True)),
    ('image_calibration', STATISTICS, {}),
    ('risk_coverage', STATISTICS, {}),
    ('risk_coverage', STATISTICS, dict(overlay=True)),
    ('boundary_curves', STATISTICS, {}),
    ('severity', SHIFTED, dict(keys=[ECE])),
    ('severity', SHIFTED, dict(keys=[ECE], figure='lines')),
    ('sweep', sweep(), {}),
    ('image_risk', SCORED, {}),
    ('confidence_maps', maps(3), {}),
]


@pytest.mark.parametrize(('kind', 'found', 'options'), KINDS)
def test_nothing_is_cut_and_no_word_is_broken(kind, found, options):
    names = [f'run {i}, {"with words " * 9}/{"a_folder/" * 9}' for i in range(6)]
    for runs in (names[:1], names):
        figure = getattr(drawing, f'draw_{kind}')(dict.fromkeys(runs, found), **options)
        check_nothing_is_cut(figure)
        count = words(figure).count('folder')
        assert count and count % (9 * len(runs)) == 0


@pytest.mark.parametrize(
    ('kind', 'runs', 'options', 'message'),
    [
        ('reliability', {'a': statistics(torch.zeros(3, 5))}, {}, "'a' has no predictions"),
        ('reliability', {'a': statistics()}, dict(zoom=(90, 110)), r'zoom .*got \(90, 110\)'),
        ('reliability', {'a': statistics()}, dict(num_bins=0), 'num_bins .*got 0'),
        ('reliability', {'a': statistics()}, dict(scale='log'), 'scale must be one of'),
        ('image_calibration', {'a': CLASSIFIED}, {}, 'no images of many'),
        ('boundary_curves', {'a': statistics()}, {}, "'a' has no dist.*per_distance=True"),
        ('severity', {'a': {0: [{ECE: 1.0}]}}, dict(keys=[ECE]), 'no test on corrupted data'),
        ('severity', {'a': SHIFTED}, dict(keys=[ECE], figure='bars'), 'figure must be one of'),
        ('sweep', {}, {}, '0 sweeps have none of'),
        ('sweep', {'a': sweep(), 'b': sweep(quality='accuracy/top1')}, {}, '/top1, mIoU in common'),
        ('image_risk', {'a': (SCORED[0], np.full(5, np.nan))}, {}, '0 images with a risk'),
        ('confidence_maps', {'': ConfidenceMaps([], [], [])}, {}, 'no image in common'),
        ('confidence_maps', {'a': maps(3), 'b': maps(2)}, {}, 'a, b have other classes'),
        ('confidence_maps', {'a': maps(3, [[0, 0, 0]])}, {}, '3 classes need as many .* got 1'),
    ],
)
def test_what_cannot_be_drawn_is_said(kind, runs, options, message):
    with pytest.raises(ValueError, match=message):
        getattr(drawing, f'draw_{kind}')(runs, **options)


def test_arrays_that_cannot_be_drawn_are_refused():
    with pytest.raises(ValueError, match='no predictions to draw'):
        mmcalib.reliability_diagram([[0.5, 0.5]], [9], ignore_index=9)
    with pytest.raises(ValueError, match='take the softmax first'):
        mmcalib.reliability_diagram([[5.0, -2.0]], [0])


def test_other_files_are_refused(tmp_path):
    np.savez(tmp_path / 'other.npz', x=1)
    with pytest.raises(ValueError, match=r'other\.npz cannot be read as confidence maps'):
        ConfidenceMaps.load(tmp_path / 'other.npz')
    for text in ('image,label\na,1\n', '', 'image,risk\n', 'image,risk,score\na,0,1\nb,0'):
        (tmp_path / 'images.csv').write_text(text)
        with pytest.raises(ValueError, match='cannot be read as scores of images'):
            drawing.read_image_scores(tmp_path / 'images.csv')
