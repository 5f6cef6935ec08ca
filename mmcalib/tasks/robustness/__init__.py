"""Tests on corrupted images and on other data sets."""

import mmcalib.needs_mmengine  # noqa: F401
