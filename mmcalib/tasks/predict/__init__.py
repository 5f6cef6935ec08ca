"""Predictions of images without labels."""

import mmcalib.needs_mmengine  # noqa: F401
