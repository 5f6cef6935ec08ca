"""What is known of every metric by its name."""

import pickle

import pytest

from mmcalib.metric_keys import PREFIX, is_percentage, metric_heading
from mmcalib.metrics.metric_definitions import NAMES, definition_of

LEVELS = ('risk@coverage_0.8', 'coverage@risk_0.05')
# Sums over classes or squares, and nats.
OTHERS = {'Brier', 'NLL', 'refinement_NLL', 'calibration_NLL', 'temperature'}
OTHERS |= {'reliability', 'resolution', 'uncertainty'}


@pytest.mark.parametrize('name', [*NAMES, *LEVELS])
def test_pages_know_its_unit(name):
    assert is_percentage(f'{PREFIX}{name}') == (name not in OTHERS)
    assert is_percentage(f'{PREFIX}{name}_bound') == (name not in OTHERS)
    definition = definition_of(name)
    if hasattr(definition, 'highest'):  # where the bootstrap has intervals to cut
        assert (definition.highest == 100) == (name not in OTHERS)


def test_levels_are_part_of_the_heading():
    assert metric_heading('calibration/risk@coverage_0.8') == 'risk@coverage_0.8 (%)'
    assert metric_heading('calibration/AURC_bound') == 'AURC bound (%)'


@pytest.mark.parametrize('name', [*NAMES, *LEVELS])
def test_a_definition_goes_to_another_process(name):
    assert pickle.loads(pickle.dumps(definition_of(name)))
