"""The registered metric of out-of-distribution detection."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

import torch
from mmengine.registry import METRICS
from torch import Tensor

from mmcalib.choices import OOD_GROUPS
from mmcalib.errors import UserError
from mmcalib.metrics.bins import sum_by_key
from mmcalib.metrics.counts import FineBinLimit
from mmcalib.metrics.ood_scores import (
    FIGURES,
    NEED_LOGITS,
    SCORES,
    OODCounts,
    ood_figures,
    scores_of_logits,
    scores_of_probabilities,
)
from mmcalib.metrics.outcomes import check_predicted
from mmcalib.openmmlab.metrics.list_metric import ListMetric
from mmcalib.openmmlab.samples import read_field, with_logits
from mmcalib.options import check_choices
from mmcalib.predictions.image_predictions import ImagePredictions, class_columns
from mmcalib.tensors import at_least_single


@METRICS.register_module()
class OODMetric(ListMetric):
    r"""Out-of-distribution detection by scores of the predictions, measured as in OpenOOD.

    Out of distribution (OOD) is a sample with a negative label, as
    :class:`~mmcalib.openmmlab.datasets.WithOODSets` gives, or a sample or pixel of the label
    `ood_index`; all others are in distribution (ID). For a score s, of which ID should
    have more, and with OOD as the positive kind:

    - ``AUROC``: :math:`P(s_\mathrm{ID} > s_\mathrm{OOD}) + \frac12 P(s_\mathrm{ID} =
      s_\mathrm{OOD})`.
    - ``AUPR_out``, ``AUPR_in``: average precision with OOD, and with ID, as positives.
    - ``FPR95``: the share of ID that is flagged at the threshold that flags 95 % of OOD.

    Tied scores count in the mean over their orders. OpenOOD joins the points of a precision-recall
    curve by lines, and flags all that is tied at the threshold: with distinct scores ``AUROC`` and
    ``FPR95`` are its own, and ``AUPR`` is close; docs/howto/ood.md says how close.

    The scores are those of :func:`~mmcalib.metrics.ood_scores.scores_of_logits`:
    ``'max_probability'``, ``'max_logit'``, ``'energy'`` and ``'entropy'``. mmpretrain leaves only
    probabilities; for ``'max_logit'`` and ``'energy'`` add ``KeepLogitsHook``.

    Keys are ``ood/max_probability/AUROC`` and so on, in percent; with named OOD sets
    ``ood/max_probability/svhn/AUROC`` of each, and ``…/near/AUROC`` and ``…/far/AUROC``, the means
    over the near and the far sets. Above a million predictions, scores are rounded to 8 bits behind
    the first. NaN, with a warning, where ID or OOD is absent.

    Source: Zhang et al., OpenOOD v1.5: Enhanced Benchmark for Out-of-Distribution Detection, 2023,
    and its ``auc_and_fpr_recall``. Version 1 of its code took ID as positive in FPR95.

    Args:
        scores: One or more of ``max_probability``, ``entropy``, ``max_logit`` and ``energy``.
        ood_index: Label of OOD pixels, or of a classifier's OOD samples beside negative labels.
        **options: ``ignore_index``, as of :class:`CalibrationMetric`, and options of mmengine's
            ``BaseMetric``, such as ``prefix``.

    Attributes:
        counts: Numbers of ``'ID'`` predictions and of those of each OOD set in the last evaluation,
            on the main process; ``'OOD'`` if the sets have no names.

    Raises:
        ValueError: If a score is unknown, or `ood_index` is `ignore_index`; while evaluating, for
            samples that :func:`~mmcalib.openmmlab.samples.read_sample` refuses.
    """

    default_prefix = 'ood'

    def __init__(
        self,
        scores: Sequence[str] = ('max_probability',),
        *,
        ood_index: int | None = None,
        **options,
    ) -> None:
        self.ood_index = ood_index
        super().__init__(**options)
        self.scores = check_choices('scores', scores, SCORES)

    def use_ignore_index(self, ignore_index: int) -> None:
        """Leave out the pixels of a label, or raise a UserError if it is that of OOD pixels."""
        if ignore_index == self.ood_index:
            raise UserError(
                f'ood_index and ignore_index are both {ignore_index}: set ignore_index of '
                'OODMetric to a label that is neither left out nor OOD, such as -1'
            )
        super().use_ignore_index(ignore_index)

    def read(self, sample: dict) -> OODCounts:
        """Return the scores of the valid predictions of an image, and which of them are OOD."""
        predictions = self._read_predictions(sample)
        valid = predictions.valid
        # 0 in distribution, 1 of the first OOD set, and so on.
        origin = (predictions.labels[valid] - predictions.num_classes + 1).clamp(min=0).cpu()
        sets = self._sets()
        if not sets:
            origin = origin.clamp(max=1)
        elif origin.numel() and origin.max() > len(sets):
            raise UserError(
                f'{predictions.name} has the label {-origin.max().item()}, and the data set names '
                f'only {len(sets)} OOD sets: {", ".join(sets)}'
            )
        if predictions.logits is not None:
            logits = at_least_single(class_columns(predictions.logits))[:, valid.flatten()]
            scores = scores_of_logits(logits, self.scores)
        else:
            self._check_scores_of_probabilities(predictions.name)
            probs = class_columns(predictions.class_probabilities())[:, valid.flatten()]
            scores = scores_of_probabilities(probs, self.scores)
        num_origins = 1 + max(len(sets), 1)
        counts = torch.nn.functional.one_hot(origin, num_origins).T.double()
        cells = {
            name: torch.cat([values.double()[None], counts]) for name, values in scores.items()
        }
        return self.prepare_result(OODCounts(cells))

    def _read_predictions(self, sample: dict) -> ImagePredictions:
        """Return the predictions of an image, with a classifier's logits if they are known."""
        ood_index = self.ood_index
        if ood_index is None:
            if 'seg_logits' in sample:
                raise UserError(
                    f'{self.next_name(sample)} is a segmentation: give ood_index, the label of OOD '
                    'pixels'
                )
            ood_index = -1  # Negative labels are OOD in any case.
        predictions = self.read_predictions(sample, ood_index=ood_index)
        if predictions.are_maps:
            check_predicted(predictions.scores[0], predictions.predicted[0], predictions.name)
            return predictions
        logits = read_field(sample, 'logits')
        return predictions if logits is None else with_logits(predictions, logits[None])

    def _check_scores_of_probabilities(self, name: str) -> None:
        """Raise a UserError if probabilities do not tell one of the scores."""
        missing = [score for score in self.scores if score in NEED_LOGITS]
        if missing:
            others = ' and '.join(score for score in SCORES if score not in NEED_LOGITS)
            raise UserError(
                f'{" and ".join(missing)} require logits, but {name} has only probabilities: for '
                "a classifier add custom_hooks=[dict(type='KeepLogitsHook')] to the config, give "
                f'a binary segmentor two channels, or take {others}'
            )

    def compute_metrics(self, results: list[OODCounts]) -> dict[str, float]:
        """Return the figures of all images."""
        self.num_samples = len(results)
        limit = FineBinLimit()
        for result in results:  # Those of all processes may be too many together.
            limit.take(result)
        group_by_set = self._sets()
        set_names = list(group_by_set) or ['OOD']
        values = {}
        for score in self.scores:
            counts = self._count_by_value(score, results, 1 + len(set_names))
            figures_by_name = {
                set_name: ood_figures(counts[0], ood_counts)
                for set_name, ood_counts in zip(set_names, counts[1:], strict=True)
            }
            figures_by_name = mean_figures(figures_by_name, group_by_set) | figures_by_name
            for name, figures in figures_by_name.items():
                prefix = f'{score}/{name}' if group_by_set else score
                for key, value in figures.items():
                    values[f'{prefix}/{key}'] = value
        totals = counts.sum(dim=1).long().tolist()  # the same of every score
        self.counts = dict(zip(['ID', *set_names], totals, strict=True))
        self._log_counts()
        return values

    def _count_by_value(self, score: str, results: list[OODCounts], num_origins: int) -> Tensor:
        """Return how often each value of a score is that of ID and of each OOD set, ``(O, C)``."""
        empty = torch.zeros(1 + num_origins, 0, dtype=torch.float64, device='cpu')
        tables = torch.cat(
            [empty, *(result.fine_bins[score].double() for result in results)], dim=1
        )
        _, counts = sum_by_key(tables[0], tables[1:])
        return counts

    def _log_counts(self) -> None:
        """Log the numbers of predictions, with a warning if there are none of a kind."""
        self.log(', '.join(f'{count:,} {name}' for name, count in self.counts.items()))
        absent = [name for name, count in self.counts.items() if not count]
        if absent:
            self.log(
                f'no prediction of {" and ".join(absent)}, so figures against it are NaN. OOD are '
                f'negative labels, and those of ood_index ({self.ood_index})',
                logging.WARNING,
            )

    def _sets(self) -> dict[str, str]:
        """Return the group of each OOD set that the data set names."""
        sets_by_group = (self.dataset_meta or {}).get('ood_sets', {})
        group_by_set = {}
        for group in OOD_GROUPS:
            for name in sets_by_group.get(group, ()):
                group_by_set[name] = group
        return group_by_set


def mean_figures(
    figures_by_set: Mapping[str, Mapping[str, float]], group_by_set: Mapping[str, str]
) -> dict[str, dict[str, float]]:
    """Return the mean figures over the OOD sets of each group."""
    means = {}
    for group in dict.fromkeys(group_by_set.values()):
        members = [figures_by_set[name] for name in group_by_set if group_by_set[name] == group]
        means[group] = {}
        for key in FIGURES:
            means[group][key] = sum(figures[key] for figures in members) / len(members)
    return means
