import math

import numpy as np
import pytest
import torch

from mmcalib.metrics import DisagreementMetric


def classified(information, variance, **more):
    return dict(
        mutual_information=torch.tensor(information), variance=torch.tensor(variance), **more
    )


def segmented(information, variance, **more):
    maps = dict(
        mutual_information=torch.tensor(information)[None], variance=torch.tensor(variance)[None]
    )
    return dict(disagreement=maps, **more)


def test_it_is_the_mean_over_images(tmp_path):
    metric = DisagreementMetric(out_dir=str(tmp_path / 'out'))
    metric.process(None, [classified(0.5, 0.25, sample_idx=7), classified(0.1, 0.05)])
    metric.process(None, [classified(0.3, 0.0, img_path='x/a.jpg')])
    assert metric.evaluate(3) == {
        'disagreement/mutual_information': pytest.approx(0.3),
        'disagreement/variance': pytest.approx(0.1),
    }
    lines = (tmp_path / 'out/disagreement.csv').read_text().splitlines()
    assert [line.split(',')[0] for line in lines] == ['image', 'sample 7', 'sample 1', 'x/a.jpg']
    assert not (tmp_path / 'out/maps').exists()


def test_maps_are_written_but_not_of_a_repeated_image(tmp_path):
    metric = DisagreementMetric(out_dir=str(tmp_path))
    maps = [[0.0, 1.0], [2.0, 3.0]], [[0.5, 0.5], [0.0, 0.0]]
    metric.process(None, [segmented(*maps, img_path='x/a.jpg'), segmented(*maps)])
    metric.process(None, [segmented(*maps, img_path='x/a.jpg')])
    assert metric.evaluate(2)['disagreement/mutual_information'] == 1.5
    names = sorted(path.name for path in (tmp_path / 'maps').iterdir())
    assert names == ['000000_a.npz', '000001.npz']
    with np.load(tmp_path / 'maps/000000_a.npz') as found:
        np.testing.assert_array_equal(found['mutual_information'], maps[0])
        np.testing.assert_array_equal(found['variance'], maps[1])


def test_samples_of_one_prediction_are_refused():
    with pytest.raises(ValueError, match='sample 0 has no mutual_information: it requires a'):
        DisagreementMetric().process(None, [dict(pred_score=torch.ones(2) / 2)])


def test_an_empty_evaluation_is_nan():
    assert all(math.isnan(v) for v in DisagreementMetric().compute_metrics([]).values())


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / 'file').touch()
    with pytest.raises(OSError, match='file'):
        DisagreementMetric(out_dir=str(tmp_path / 'file'))
