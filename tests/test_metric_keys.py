"""What metrics are called, and which way is better."""

import pytest

from mmcalib.metrics import keys
from mmcalib.metrics.definitions import NAMES, WITH_LEVEL
from mmcalib.metrics.image_scores import FIGURES as OF_IMAGES
from mmcalib.metrics.ood_scores import FIGURES


@pytest.mark.parametrize(
    ('key', 'heading', 'rule'),
    [
        ('calibration/risk@coverage_0.8', 'risk@coverage_0.8 (%)', 'less'),
        ('ece25/coverage@risk_0.1', 'ece25/coverage@risk_0.1 (%)', 'greater'),
        ('calibration/calibration_NLL worst', 'calibration_NLL worst (nats)', 'less'),
        ('image/risk', 'image/risk (%)', 'less'),
        ('image/soft_dice/Spearman', 'image/soft_dice/Spearman', 'greater'),
        ('ood/energy/near/AUPR_out', 'OOD AUPR_out energy near (%)', 'greater'),
        ("another's/figure", "another's/figure", 'less'),
    ],
)
def test_headings_and_rules(key, heading, rule):
    assert (keys.metric_heading(key), keys.better_rule(key)) == (heading, rule)


def test_every_metric_of_ours_has_a_kind():
    others = map(keys.base_name, (*FIGURES, *OF_IMAGES))
    assert {*NAMES, *WITH_LEVEL, *others} <= keys.KINDS.keys()
