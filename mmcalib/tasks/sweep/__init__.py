"""A sweep over a parameter of the loss, chosen on validation data."""

import mmcalib.needs_mmengine  # noqa: F401
