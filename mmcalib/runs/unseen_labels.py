"""Diagrams in a test of unseen classes, which measures no calibration."""

from __future__ import annotations

from mmengine.config import Config

from mmcalib.metrics import OODMetric
from mmcalib.runs.config_checks import as_list, metric_class
from mmcalib.runs.loss_config import type_name

# Of our default hooks, those that draw what a CalibrationMetric measures.
DRAWING = ('ReliabilityDiagramHook', 'ConfidenceMapHook')


def leave_out_diagrams(cfg: Config) -> None:
    """Take the hooks that draw a calibration out of a test that measures unseen classes alone."""
    metrics = as_list(cfg.get('test_evaluator'))
    if metrics and all(issubclass(metric_class(metric), OODMetric) for metric in metrics):
        hooks = cfg.get('default_hooks') or {}
        cfg.default_hooks = {
            name: hook
            for name, hook in hooks.items()
            if hook is None or type_name(hook.get('type')) not in DRAWING
        }
