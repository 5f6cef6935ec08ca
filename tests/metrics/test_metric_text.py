"""Names, units and rules of metrics by their keys."""

import pytest

from mmcalib.metrics import metric_text
from mmcalib.metrics.definitions import NAMES, WITH_LEVEL
from mmcalib.metrics.image_scores import FIGURES as IMAGE_FIGURES
from mmcalib.metrics.ood_scores import FIGURES as OOD_FIGURES


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
def test_metric_heading_and_better_rule_any_key(key, heading, rule):
    assert metric_text.metric_heading(key) == heading
    assert metric_text.better_rule(key) == rule


def test_units_every_metric_of_the_library_is_known():
    figures = (*OOD_FIGURES, *IMAGE_FIGURES)
    expected = {*NAMES, *WITH_LEVEL, *(metric_text.base_name(figure) for figure in figures)}
    assert expected <= metric_text.UNITS.keys()
