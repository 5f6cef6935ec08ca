"""Images that are alike, such as the frames of a video, form groups."""

import numpy as np
import pytest
from mmengine.registry import DATASETS
from overconfident_checkpoints import record_in

from mmcalib.openmmlab.datasets import Digits

CONFIG = 'mmcalib::ce/digits.py'
VIDEOS = ['val_dataloader.dataset.type=Videos']


@DATASETS.register_module(force=True)
class Videos(Digits):
    """Videos of 6 equal frames, each of one of 12 digits."""

    def load_data_list(self):
        digits = super().load_data_list()
        frames = []
        for video, frame in np.ndindex(12, 6):
            frames.append(digits[video] | {'img_path': f'v{video:02d}_{frame}.png'})
        return frames


def test_calibrate_auto_without_groups_detects_alike_neighbours(digits, calibrate):
    _, output = calibrate(CONFIG, digits, '--method', 'auto', cfg=VIDEOS)
    assert 'Neighbours among the 72 images are alike' in output
    assert '5 groups of 72 images' in output


@pytest.mark.parametrize(
    ('pattern', 'num_groups', 'offers_matrix'),
    [(r'v(\d+)_', 12, True), (r'(v\d)\d_', 2, False)],
)
def test_calibrate_auto_few_groups_offer_temperature_only(
    pattern, num_groups, offers_matrix, digits, calibrate
):
    _, output = calibrate(CONFIG, digits, '--method', 'auto', '--groups', pattern, cfg=VIDEOS)
    assert 'Neighbours among' not in output
    assert f'{num_groups} groups of 72 images' in output
    assert ('matrix' in output) == offers_matrix
    assert ('only a temperature' in output) == (not offers_matrix)


def test_calibrate_groups_that_are_alike_warns(digits, calibrate):
    _, output = calibrate(CONFIG, digits, '--groups', r'v(\d+_\d)', cfg=VIDEOS)
    assert r'--groups v(\d+_\d) names groups that are alike' in output


def test_calibrate_one_group_refused_by_auto_and_warned_of(digits, calibrate):
    error = calibrate(CONFIG, digits, '--method', 'auto', '--groups', 'v', cfg=VIDEOS, code=2)
    assert '--groups v finds the same' in error
    assert 'Reading logits' not in error
    content, output = calibrate(CONFIG, digits, '--groups', 'v', cfg=VIDEOS)
    assert record_in(content)['groups'] == 1
    assert 'one group' in output
