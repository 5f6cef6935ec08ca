"""The registered metric for out-of-distribution detection."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import Any

from mmengine.logging import print_log
from mmengine.registry import METRICS

from mmcalib.checks import check_choice
from mmcalib.metric_keys import OOD_GROUPS
from mmcalib.metrics.functional.out_of_distribution_scores import (
    NEED_LOGITS,
    SCORES,
    scores_of_logits,
    scores_of_probabilities,
)
from mmcalib.metrics.ood_state import SEEN, OODState
from mmcalib.metrics.state_metric import StateMetric
from mmcalib.samples.reading import read_ood


@METRICS.register_module()
class OODMetric(StateMetric):
    r"""Out-of-distribution detection by scores of the predictions, measured as in OpenOOD.

    Out of distribution (OOD) is a sample with a negative label, as
    :class:`~mmcalib.datasets.WithOODSets` gives, or a sample or pixel of the label `ood_index`; all
    others are in distribution (ID). For a score s, of which ID should have more, and with OOD as
    the positive kind:

    - ``AUROC``: :math:`P(s_\mathrm{ID} > s_\mathrm{OOD}) + \frac12 P(s_\mathrm{ID} =
      s_\mathrm{OOD})`.
    - ``AUPR_out``, ``AUPR_in``: average precision with OOD, and with ID, as positives.
    - ``FPR95``: the share of ID that is flagged at the threshold that flags 95 % of OOD.

    Tied scores count in the mean over their orders. OpenOOD joins the points of a precision-recall
    curve by lines, and flags all that is tied at the threshold: with distinct scores ``AUROC`` and
    ``FPR95`` are its own, and ``AUPR`` is close; docs/results/shift.md reports how close.

    The scores are those of
    :func:`~mmcalib.metrics.functional.out_of_distribution_scores.scores_of_logits`:
    ``'max_probability'``, ``'max_logit'``, ``'energy'`` and ``'entropy'``. mmpretrain leaves only
    probabilities; for ``'max_logit'`` and ``'energy'`` add ``KeepLogitsHook``.

    Keys are ``ood/max_probability/AUROC`` and so on, in percent; with named OOD sets
    ``ood/max_probability/svhn/AUROC`` of each, and ``…/near/AUROC`` and ``…/far/AUROC``, the means
    over the near and the far sets. Exact up to a million predictions of ID and a set together;
    above, from narrow bins. NaN, with a warning, where ID or OOD is absent.

    Source: Zhang et al., OpenOOD v1.5: Enhanced Benchmark for Out-of-Distribution Detection, 2023,
    and its ``auc_and_fpr_recall``. Version 1 of its code took ID as positive in FPR95.

    Args:
        scores: One or more of ``max_probability``, ``entropy``, ``max_logit`` and ``energy``.
        ood_index: Label of OOD pixels, or of a classifier's OOD samples beside negative labels.
        ignore_index: Label of the pixels to leave out. Classifiers do not use it.
        collect_device: ``'cpu'`` or ``'gpu'``, see mmengine's ``BaseMetric``.
        prefix: Replaces ``ood`` in the keys.
        collect_dir: See mmengine's ``BaseMetric``.

    Attributes:
        counts: How many predictions of ``'ID'`` and of each OOD set, ``'OOD'`` where they have no
            names, the last evaluation had; None before one, and on all but the main process.

    Raises:
        ValueError: If a score is unknown, or `ood_index` is `ignore_index`; while evaluating, for
            samples that :func:`~mmcalib.samples.reading.read_ood` refuses.
    """

    default_prefix = 'ood'

    def __init__(
        self,
        scores: Sequence[str] = ('max_probability',),
        *,
        ood_index: int | None = None,
        ignore_index: int = 255,
        collect_device: str = 'cpu',
        prefix: str | None = None,
        collect_dir: str | None = None,
    ) -> None:
        super().__init__(collect_device=collect_device, prefix=prefix, collect_dir=collect_dir)
        self.scores = (scores,) if isinstance(scores, str) else tuple(dict.fromkeys(scores))
        if not self.scores:
            raise ValueError(f'scores must be some of {SCORES}, got none')
        for score in self.scores:
            check_choice('scores', score, SCORES)
        if ood_index is not None and ood_index == ignore_index:
            raise ValueError(
                f'ood_index and ignore_index are both {ood_index}: pixels of this label cannot be '
                'left out and be out of distribution. Set ignore_index to a label that means '
                'neither, such as -1'
            )
        self.ood_index = ood_index
        self.ignore_index = ignore_index
        self.counts: dict[str, int] | None = None
        self.reset()

    def _new_state(self) -> OODState:
        return OODState(self.scores)

    def _read(self, sample: dict) -> tuple:
        name, sets = self._name(sample), self._sets()
        found, are_logits, kind = read_ood(
            sample, ood_index=self.ood_index, ignore_index=self.ignore_index, name=name
        )
        missing = [score for score in self.scores if score in NEED_LOGITS]
        if missing and not are_logits:
            raise ValueError(
                f'{" and ".join(missing)} require logits, but {name} has only probabilities: for '
                "a classifier add custom_hooks=[dict(type='KeepLogitsHook')] to the config, give "
                'a binary segmentor two channels, or take '
                f'{" and ".join(score for score in SCORES if score not in NEED_LOGITS)}'
            )
        if sets and kind.numel() and kind.max() > len(sets):
            raise ValueError(
                f'{name} has the label {-kind.max().item()}, and the data set names only '
                f'{len(sets)} OOD sets: {", ".join(sets)}'
            )
        scores = scores_of_logits if are_logits else scores_of_probabilities
        return scores(found, self.scores), kind if sets else kind.clamp(max=1)

    def _update(self, image: tuple, place: int) -> None:
        self._state.update(*image)

    def _values_of(self, state: OODState) -> dict[str, float]:
        counts, sets = state.counts(), self._sets() or {'OOD': ''}
        found = {name: counts.get(n, 0) for n, name in enumerate(sets, 1)}
        self.counts = {'ID': counts.get(SEEN, 0), **found}
        absent = [name for name, n in self.counts.items() if not n]
        text = ', '.join(f'{n:,} {name}' for name, n in found.items())
        print_log(
            f'{type(self).__name__}: {self.counts["ID"]:,} ID predictions against {text}',
            logger='current',
        )
        if absent:
            print_log(
                f'{type(self).__name__}: no prediction of {" and ".join(absent)}, so figures '
                'against it are NaN. OOD are negative labels, and those of ood_index '
                f'({self.ood_index})',
                logger='current',
                level=logging.WARNING,
            )
        values: dict[str, float] = {}
        for score in self.scores:
            of_sets = {name: state.figures(score, [number]) for number, name in enumerate(sets, 1)}
            if not self._sets():
                values |= {f'{score}/{key}': v for key, v in of_sets['OOD'].items()}
                continue
            for group in OOD_GROUPS:
                members = [of_sets[name] for name in sets if sets[name] == group]
                values |= {f'{score}/{group}/{k}': v for k, v in mean_of(members).items()}
            for name, figures in of_sets.items():
                values |= {f'{score}/{name}/{key}': v for key, v in figures.items()}
        return values

    def _sets(self) -> dict[str, str]:
        """Return the group of each OOD set that the data set names."""
        groups: dict[str, Any] = (self.dataset_meta or {}).get('ood_sets', {})
        return {name: group for group in OOD_GROUPS for name in groups.get(group, ())}


def mean_of(members: Sequence[dict[str, float]]) -> dict[str, float]:
    """Return the mean of each figure over some sets."""
    if not members:
        return {}
    keys = dict.fromkeys(key for figures in members for key in figures)
    count = len(members)
    return {key: math.fsum(figures.get(key, 0.0) for figures in members) / count for key in keys}
