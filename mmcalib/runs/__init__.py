"""From a config to a finished run: training, testing, calibrating a checkpoint, sweeping."""

import mmcalib.needs_mmengine  # noqa: F401
from mmcalib.registration import register_all

# Checks of configs list what is registered.
register_all()
