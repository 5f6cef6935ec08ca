"""Metrics on data samples, as mmengine's evaluator runs them."""

from mmengine.evaluator import Evaluator

from mmcalib.openmmlab.metrics import CalibrationMetric


def evaluate(samples, *metrics, batch=4, size=None, meta=None):
    """Return the values of metrics of samples, by default of a CalibrationMetric."""
    evaluator = Evaluator(list(metrics) or [CalibrationMetric()])
    evaluator.dataset_meta = meta
    for start in range(0, len(samples), batch):
        evaluator.process(samples[start : start + batch])
    return evaluator.evaluate(len(samples) if size is None else size)
