"""The result of a calibration: a table for people, and a dict for JSON and checkpoints."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from torch import nn

from mmcalib.calibration.advice import advice, interval_text, units_text
from mmcalib.calibration.before_after import Effect
from mmcalib.calibration.choose import NONE
from mmcalib.calibration.cross_fit import Scalings
from mmcalib.calibration.fit import Fitted
from mmcalib.calibration.held_out import HeldOut
from mmcalib.calibration.prove import Placement
from mmcalib.files import without_nan
from mmcalib.metrics.metric_text import PREFIX, metric_heading, number_text
from mmcalib.posthoc.per_label import MOST_LABELS, Scaler, ScalerPerLabel
from mmcalib.posthoc.scaler import values_text
from mmcalib.tables import TextTable
from mmcalib.version import __version__


@dataclass
class Calibrated:
    """A calibrated model, and what the calibration did; as text, a table.

    Attributes:
        scaler: The scaling fitted to all predictions; None if the choice fell on no scaling.
        effects: Metrics before and after: ``'fitted'`` on the images of the fit, and ``'tested'``
            on those of a test split, if there is one.
        num_images: The number of images that were read for the fit.
        num_groups: The number of independent groups that they are of; each image may be one.
        population: The number of valid predictions of these images.
        num_fitted: The number of those that the scaling was fitted to.
        num_folds: The number of folds of the cross-fit; 0 without one.
        seed: The seed of the draw and of the folds.
        num_bins: The number of bins of ECE and AECE.
        unit: The name of what each image is: ``'image'``; of a loader that tells no images,
            ``'prediction'``, or ``'row'`` of several labels.
        groups_are_runs: Whether neighbouring images were alike, so that runs of them are groups.
        placement: The place of the scaling; None if it is in no single model.
        fit_errors: The ``standard_error`` of a temperature over groups, and the ``sampling_error``,
            the part of it that is due to the draw; of several labels the ``standard_errors`` of
            each, NaN where a label takes the scaling of all; empty for other methods.
        candidates: The methods that ``method='auto'`` compared, see
            :func:`~mmcalib.calibration.choose.choose_method`.
        information: The number of standard errors by which the NLL falls as 1/T leaves 0; below 2
            the logits carry no information about the labels. None of several labels.
        majority: The share of the most frequent class among the labels of the predictions that were
            measured, in percent, which a model of use predicts better than; None of several labels.
        unlabelled: The classes without a label, by number or name.
        class_prior: The frequencies of the classes in use that the scaling of the model was shifted
            to; None if it was not.
        unshifted: The scaling without this shift, by which a test split is measured; `scaler` if
            there is none.
        split: The name of the split of the fit; None for a loader.
        class_names: The names of the classes in sentences; none for their numbers.
        model: The calibrated copy, in evaluation mode; None where a checkpoint is written instead.
    """

    scaler: Scaler | None
    effects: dict[str, Effect]
    num_images: int
    num_groups: int
    population: int
    num_fitted: int
    num_folds: int
    seed: int
    num_bins: int
    unit: str = 'image'
    groups_are_runs: bool = False
    placement: Placement | None = None
    fit_errors: dict[str, Any] = field(default_factory=dict)
    candidates: list[dict] = field(default_factory=list)
    information: float | None = None
    majority: float | None = None
    unlabelled: list = field(default_factory=list)
    class_prior: list[float] | None = None
    unshifted: Scaler | None = None
    split: str | None = None
    class_names: Sequence[str] = ()
    model: nn.Module | None = None

    @property
    def method(self) -> str:
        """The name of the method, ``'none'`` for no scaling."""
        return NONE if self.scaler is None else self.scaler.method

    @property
    def before(self) -> dict[str, float]:
        """Metrics of the model as it was, by name, in percent but for NLL and Brier score."""
        return self.effects['fitted'].before

    @property
    def after(self) -> dict[str, float]:
        """The same after the scaling, cross-fitted if `num_folds` is not 0."""
        return self.effects['fitted'].after

    @property
    def errors(self) -> dict[str, dict[str, float]]:
        """Standard errors of ``'before'`` and ``'after'``, by name, over images or groups."""
        return self.effects['fitted'].errors

    @property
    def num_predictions(self) -> int:
        """The number of predictions that were measured on the images of the fit."""
        return self.effects['fitted'].num_predictions

    @property
    def changed(self) -> int:
        """The number of those whose class the calibrated model predicts otherwise."""
        return self.effects['fitted'].changed

    @property
    def standard_error(self) -> float | None:
        """The standard error of a temperature, over images or groups; None of other methods."""
        return self.fit_errors.get('standard_error')

    @property
    def label_errors(self) -> list[float]:
        """The standard error of the temperature of each label; NaN of other methods."""
        return self.fit_errors.get('standard_errors', [math.nan] * len(self.scaler.scalers))

    @property
    def has_several_labels(self) -> bool:
        """Whether an image may have several labels."""
        return self.information is None

    @property
    def measured_scaler(self) -> Scaler | None:
        """The scaling that the figures are of, which knows no other frequencies of the classes."""
        return self.scaler if self.class_prior is None else self.unshifted

    @property
    def folded_into(self) -> list[str]:
        """The names of the layers with other weights; none if the scaling is attached."""
        return [] if self.placement is None else self.placement.layers

    @property
    def attached(self) -> str | None:
        """The reason why the scaling is attached; None if it is folded."""
        return None if self.placement is None else self.placement.reason

    @property
    def difference(self) -> float:
        """The largest difference of a probability of the calibrated model from the scaled one."""
        return 0.0 if self.placement is None else self.placement.difference

    def to_dict(self) -> dict[str, Any]:
        """Return plain numbers, lists and texts, as JSON holds them; None in place of NaN."""
        record: dict[str, Any] = {
            'method': self.method,
            'split': self.split,
            'images': self.num_images,
            'groups': self.num_groups,
            'groups_are_runs': self.groups_are_runs,
            'num_predictions': self.population,
            'num_fitted': self.num_fitted,
            'folds': self.num_folds,
            'seed': self.seed,
            'num_bins': self.num_bins,
            'candidates': self.candidates or None,
            'information': self.information,
            'majority': self.majority,
            'unlabelled': self.unlabelled,
            'class_prior': self.class_prior,
            'fitted': None,
            'tested': None,
            'version': __version__,
        }
        for name, effect in self.effects.items():
            record[name] = asdict(effect)
        if self.scaler is not None:
            record['options'] = self.scaler.get_params()
            record['parameters'] = self.scaler.parameters
            record |= self.fit_errors
        if self.placement is not None:
            record['layers'] = self.placement.layers
            record['attached'] = self.placement.reason
            record['difference'] = self.placement.difference
            record['proven_images'] = self.placement.num_images
        return without_nan(record)

    def __str__(self) -> str:
        parts = []
        if self.candidates:
            parts.append(self._candidates_table())
        parts.append(self._metrics_table())
        if any(self.errors.values()):
            kind = self.unit if self.num_groups == self.num_images else 'group'
            parts.append(f'± is one standard error: by about this, other {kind}s would differ.')
        if isinstance(self.scaler, ScalerPerLabel):
            parts.append(self._labels_table(self.scaler))
        parts += self.sentences()
        return '\n'.join(parts)

    def _metrics_table(self) -> str:
        """Return the metrics before and after on each split, with their standard errors."""
        split_names = {'fitted': self.split, 'tested': 'test'}
        # ClasswiseECE is among the metrics of sigmoids alone, which have two classes.
        headings = ['', *(metric_heading(PREFIX + name, num_classes=2) for name in self.before)]
        rows = []
        for name, effect in self.effects.items():
            row = self._metrics_row('before', effect.before, effect.errors['before'])
            rows.append([split_names[name] or '', *row])
            if self.scaler is not None:
                row = self._metrics_row('after', effect.after, effect.errors['after'])
                rows.append([split_names[name] or '', *row])
        headings = ['split', *headings]
        if self.split is None and len(self.effects) == 1:
            headings = headings[1:]
            rows = [row[1:] for row in rows]
        return TextTable(headings, rows).write('text')

    @staticmethod
    def _metrics_row(when: str, values: dict[str, float], errors: dict[str, float]) -> list[str]:
        """Return the cells of a row: when, and each metric with its standard error."""
        cells = [when]
        for name, value in values.items():
            text = number_text(value, PREFIX + name)
            if name in errors:
                text += f' ± {number_text(errors[name], PREFIX + name)}'
            cells.append(text)
        return cells

    def _labels_table(self, scaler: ScalerPerLabel) -> str:
        """Return the learned parameters of each label, temperatures with their standard errors."""
        shown = scaler.shown_parameters()
        rows = []
        for label, parameters in enumerate(shown[:MOST_LABELS]):
            name = f'{label} (shared)' if label in scaler.shared_labels else str(label)
            cells = [values_text(value) for value in parameters.values()]
            if not math.isnan(self.label_errors[label]):
                temperature = parameters['temperature']
                cells[0] += f' {interval_text(temperature, self.label_errors[label])}'
            rows.append([name, *cells])
        table = '\n' + TextTable(['label', *shown[0]], rows).write('text')
        if len(shown) > MOST_LABELS:
            table += f'\nand {len(shown) - MOST_LABELS} more labels, in scaler.scalers'
        return table + '\n'

    def _candidates_table(self) -> str:
        """Return the methods that were compared, with the chosen one marked."""
        quality = 'accuracy' if self.candidates[0]['miou'] is None else 'mIoU'
        chosen = self.measured_scaler
        chosen_method = NONE if chosen is None else chosen.method
        rows = []
        for candidate in self.candidates:
            mark = '→' if candidate['method'] == chosen_method else ''
            row = [mark, candidate['method']]
            if candidate['problem']:
                row += [candidate['problem'], '', '', '']
            else:
                row += [
                    f'{candidate["nll"]:.4f}',
                    f'{candidate["above_best"]:.4f} ± {candidate["standard_error"]:.4f}',
                    f'{candidate[quality.lower()]:.2f}',
                    f'{candidate["seconds"]:.1f}',
                ]
            rows.append(row)
        headings = ['', 'method', 'NLL', 'above the best', quality, 'seconds a fit']
        table = TextTable(headings, rows, alignment='llrrrr').write('text')
        return f'Cross-validated over {units_text(self)}:\n{table}\n'

    def sentences(self) -> list[str]:
        """Return what was fitted and where it went, and every reason to keep the original."""
        return advice(self)


def result(
    data: HeldOut,
    fitted: Fitted,
    scalings: Scalings,
    effect: Effect,
    placement: Placement | None,
    *,
    unit: str = 'image',
    num_bins: int = 15,
) -> Calibrated:
    """Return the result of a calibration, without the model.

    Args:
        data: The predictions of the fit.
        fitted: The scaling.
        scalings: The scalings that have scored the images.
        effect: The metrics before and after.
        placement: The place of the scaling; None if it is in no single model.
        unit: The name of what each image is, see :class:`Calibrated`.
        num_bins: The number of bins of ECE and AECE.
    """
    return Calibrated(
        scaler=fitted.scaler,
        effects={'fitted': effect},
        num_images=data.draw.num_images,
        num_groups=data.groups.count,
        population=data.draw.population,
        num_fitted=len(data.pooled),
        num_folds=0 if scalings.fold_of_image is None else len(scalings.scalers),
        seed=data.seed,
        num_bins=num_bins,
        unit=unit,
        groups_are_runs=data.groups.are_runs,
        placement=placement,
        fit_errors=fitted.errors,
        candidates=fitted.candidates,
        information=data.information,
        majority=effect.majority,
        unlabelled=data.draw.unlabelled or [],
        class_prior=fitted.class_prior,
        unshifted=fitted.unshifted,
    )
