"""Labels of unseen classes in a test's config, which ``OODMetric`` alone can read."""

from __future__ import annotations

from mmengine.config import Config

from mmcalib.metrics import OODMetric
from mmcalib.runs.config_checks import as_list, metric_class
from mmcalib.runs.loss_config import type_name

# Of our default hooks, those that draw what a CalibrationMetric measures.
DRAWING = ('ReliabilityDiagramHook', 'ConfidenceMapHook')
IGNORED = 255  # by metrics, unless told otherwise


class UnseenLabels:
    """The labels outside a model's classes that an evaluator takes for unseen classes.

    None where it has an ``OODMetric`` beside metrics that compare with the true class: these would
    count each prediction of an unseen class as wrong.
    """

    def __init__(self, evaluator: object) -> None:
        metrics = as_list(evaluator)
        ours = [metric for metric in metrics if _is(metric, OODMetric)]
        self._others = [m for m in metrics if not _is(m, OODMetric)]
        self._indices = {metric.get('ood_index') for metric in ours} - {None}
        self._ignored = {metric.get('ignore_index', IGNORED) for metric in ours}
        self.measured = bool(ours)
        self.alone = self.measured and not self._others

    def __contains__(self, label: int) -> bool:
        return self.alone and (label < 0 or label in self._indices | self._ignored)

    def misread(self, classes: int) -> str | None:
        """Return the reason why the other metrics cannot read an `ood_index`, None if they can."""
        for index in self._indices:
            if not 0 <= index < classes and any(
                metric.get('ignore_index', IGNORED) != index for metric in self._others
            ):
                return f'ood_index={index} is none of the {classes} classes{self.remedy()}'
        return None

    def remedy(self) -> str:
        """Return the remedy for such labels, nothing where no metric is for them."""
        if not self.measured or self.alone:
            return ''
        names = ', '.join(type_name(metric.get('type')) for metric in self._others)
        return (
            f': OODMetric treats it as unseen, but {names} would count all its predictions as '
            'wrong. Test these in a separate run'
        )


def leave_out_diagrams(cfg: Config) -> None:
    """Take the hooks that draw a calibration out of a test that measures unseen classes alone."""
    if UnseenLabels(cfg.get('test_evaluator')).alone:
        hooks = cfg.get('default_hooks') or {}
        cfg.default_hooks = {
            name: hook
            for name, hook in hooks.items()
            if hook is None or type_name(hook.get('type')) not in DRAWING
        }


def _is(metric: dict, kind: type) -> bool:
    return issubclass(metric_class(metric), kind)
