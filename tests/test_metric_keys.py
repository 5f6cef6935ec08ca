"""What metrics are called, and in which unit they are."""

import pytest

from mmcalib.metrics import keys
from mmcalib.metrics.definitions import NAMES, WITH_LEVEL
from mmcalib.metrics.image_scores import FIGURES as OF_IMAGES
from mmcalib.metrics.ood_metric import FIGURES

# Of Brier's score and its parts, and in nats; docs/reference/metrics.md has the units.
NOT_IN_PERCENT = ('NLL', 'refinement_NLL', 'calibration_NLL', 'temperature', 'Brier')
NOT_IN_PERCENT += ('reliability', 'resolution', 'uncertainty')


@pytest.mark.parametrize('name', [*NAMES, *(f'{kind}_0.8' for kind in WITH_LEVEL)])
def test_every_metric_of_ours_has_its_unit(name):
    for prefix in ('calibration', 'ece25'):
        assert keys.is_percentage(f'{prefix}/{name}') == (name not in NOT_IN_PERCENT)


@pytest.mark.parametrize('name', FIGURES)
def test_figures_of_the_unseen_are_in_percent(name):
    assert keys.is_percentage(f'ood/energy/svhn/{name}')


@pytest.mark.parametrize(
    ('key', 'heading'),
    [
        ('accuracy/top1', 'top-1 (%)'),
        ('accuracy/top5', 'top-5 (%)'),
        ('mIoU', 'mIoU (%)'),
        ('calibration/ECE', 'ECE (%)'),
        ('calibration/risk@coverage_0.8', 'risk@coverage_0.8 (%)'),
        ('ece25/ECE', 'ece25/ECE (%)'),
        ('calibration/NLL', 'NLL (nats)'),
        ('calibration/refinement_NLL', 'refinement_NLL (nats)'),
        ('calibration/calibration_NLL worst', 'calibration_NLL worst (nats)'),
        ('calibration/temperature', 'temperature'),
        ('calibration/Brier', 'Brier'),
        ('image/risk', 'image/risk (%)'),
        ('image/soft_dice/AURC', 'image/soft_dice/AURC (%)'),
        ('image/soft_dice/Spearman', 'image/soft_dice/Spearman'),
        ("another's/figure", "another's/figure"),
    ],
)
def test_headings(key, heading):
    assert keys.metric_heading(key) == heading


@pytest.mark.parametrize(
    ('name', 'rule'),
    [
        ('ECE', 'less'),
        ('AECE', 'less'),
        ('risk@coverage_0.8', 'less'),
        ('coverage@risk_0.1', 'greater'),
        ('AUROC', 'greater'),
        ('near/AUPR_out', 'greater'),
        ('near/FPR95', 'less'),
        ('accuracy', 'greater'),
        ('uncertainty', None),
        ('refinement_NLL', 'less'),
        ('temperature', None),
        ('gap', None),
    ],
)
def test_which_way_is_better(name, rule):
    assert keys.better_rule(f'ece25/{name}') == rule


def test_every_name_with_a_better_side_is_a_metrics():
    others = map(keys.base_name, (*FIGURES, *OF_IMAGES))
    assert {*NAMES, *WITH_LEVEL, *others} <= keys.KINDS.keys()


def test_headline_metrics_come_first_and_ends_of_intervals_have_no_column():
    found = ['aAcc', 'calibration/AECE', 'calibration/ECE', 'calibration/ECE_low', 'mIoU', 'aAcc']
    assert keys.columns_of(found) == ['mIoU', 'calibration/ECE', 'calibration/AECE', 'aAcc']
