"""The split that a test is made on."""

from __future__ import annotations

from mmengine.runner import Runner

SPLIT_NAMES = {'val': 'validation', 'test': 'test'}
# The key of a config that names the split of its test, if that is not the test split.
TESTED_SPLIT = 'tested_split'
# The key of its own test_dataloader then, which another one replaces.
OWN_TEST_LOADER = 'own_test_dataloader'


def tested_split(runner: Runner) -> str:
    """Return the split that the test of a run is made on, ``'val'`` or ``'test'``."""
    return runner.cfg.get(TESTED_SPLIT, 'test')
