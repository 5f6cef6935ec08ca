"""Calibration of a trained model: logits, fit, proof, new checkpoint."""

import mmcalib.needs_mmengine  # noqa: F401
