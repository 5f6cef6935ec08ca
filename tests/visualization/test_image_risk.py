"""The figure of images in the order of their scores shows the risks that loops find."""

import numpy as np
import pytest

from mmcalib.visualization import draw_image_risk, read_image_scores

RISKS = np.array([0.5, 0.0, np.nan, 0.25, 1.0])
SCORES = {'good': np.array([0.6, 0.9, 1.0, 0.7, 0.1]), 'tied': np.ones(5)}


def test_curves_are_the_mean_risks_of_the_first_images():
    figure = draw_image_risk(SCORES, RISKS, name='a run')
    curves, good, tied = figure.axes
    expected = np.cumsum([0, 0.25, 0.5, 1]) / [1, 2, 3, 4] * 100
    by_score, by_chance, best = (line.get_ydata() for line in curves.lines)
    np.testing.assert_allclose(by_score[1:], expected)
    np.testing.assert_allclose(best[1:], expected)  # the score has found the best order
    np.testing.assert_allclose(by_chance, 100 * 1.75 / 4)
    np.testing.assert_allclose(good.collections[0].get_offsets()[:, 1], [0, 25, 50, 100])
    np.testing.assert_allclose(good.lines[0].get_ydata(), expected)
    assert tied.get_title().startswith('tied')
    assert '4 images' in curves.get_title()


def test_the_file_of_a_metric_is_read(tmp_path):
    file = tmp_path / 'images.csv'
    file.write_text('image,risk,confidence\na.png,0.25,0.9\nb.png,nan,0.5\n')
    scores, risks = read_image_scores(file)
    np.testing.assert_equal(risks, [0.25, np.nan])
    np.testing.assert_equal(scores, {'confidence': np.array([0.9, 0.5])})


def test_what_has_nothing_to_draw_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match='ImageScoreMetric'):
        read_image_scores(tmp_path / 'none.csv')
    (tmp_path / 'other.csv').write_text('image,label\na,1\n')
    with pytest.raises(ValueError, match=r"first line is \['image', 'label'\]"):
        read_image_scores(tmp_path / 'other.csv')
    (tmp_path / 'empty.csv').touch()
    with pytest.raises(ValueError, match='holds no scores'):
        read_image_scores(tmp_path / 'empty.csv')
    with pytest.raises(ValueError, match='0 images with a risk'):
        draw_image_risk(SCORES, np.full(5, np.nan), name='a run')
