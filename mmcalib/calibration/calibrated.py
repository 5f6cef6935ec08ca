"""The result of a calibration: a table for people, and a dict for JSON and checkpoints."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from torch import nn

from mmcalib.calibration.before_after import Effect, worse_metrics
from mmcalib.calibration.choose import (
    FEW_GROUPS,
    FEW_GROUPS_OF_LABELS,
    INDISTINCT,
    LEAST_GROUPS,
    NONE,
    errors_from_one,
    interval_text,
    is_of_logarithm,
)
from mmcalib.calibration.cross_fit import Scalings
from mmcalib.calibration.data_checks import SAME_ORDER, data_warnings
from mmcalib.calibration.find_layer import layer_text
from mmcalib.calibration.fit import Fitted
from mmcalib.calibration.held_out import HeldOut
from mmcalib.calibration.independent_groups import FOLDS
from mmcalib.calibration.prove import Placement
from mmcalib.files import without_nan
from mmcalib.metrics.names import PREFIX, metric_heading, number_text
from mmcalib.posthoc.affine import TemperatureScaler
from mmcalib.posthoc.per_label import (
    MOST_LABELS,
    Scaler,
    ScalerPerLabel,
    label_names,
    shared_sentence,
)
from mmcalib.posthoc.scaler import values_text
from mmcalib.tables import TextTable
from mmcalib.version import __version__

KEEP = 'Keep your model, or calibrate on more images to be sure.'
POOLED = (
    'Before and after are pooled over labels; ECE_macro of a measurement is the mean of labels.'
)
MANY_GROUPS = (
    'The first within a standard error of the lowest NLL is chosen, for images like these. On '
    'images of another place or camera, class frequencies differ: measure there, or take a '
    'temperature.'
)


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
        errors = self.fit_errors.get('standard_errors', [math.nan] * len(shown))
        rows = []
        for label, parameters in enumerate(shown[:MOST_LABELS]):
            name = f'{label} (shared)' if label in scaler.shared_labels else str(label)
            cells = [values_text(value) for value in parameters.values()]
            if not math.isnan(errors[label]):
                temperature = parameters['temperature']
                cells[0] += f' {interval_text(temperature, errors[label])}'
            rows.append([name, *cells])
        table = '\n' + TextTable(['label', *shown[0]], rows).write('text')
        if len(shown) > MOST_LABELS:
            table += f'\nand {len(shown) - MOST_LABELS} more labels, in scaler.scalers'
        return table + '\n'

    def _candidates_table(self) -> str:
        """Return the methods that were compared, with the chosen one marked."""
        quality = 'accuracy' if self.candidates[0]['miou'] is None else 'mIoU'
        chosen = self._measured_scaler
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
        return f'Cross-validated over {self._units()}:\n{table}\n'

    def sentences(self) -> list[str]:
        """Return what was fitted and where it went, and every reason to keep the original."""
        sentences = [*self._sentences_about_choice()]
        if self._has_several_labels:
            sentences.append(POOLED)
        if self.scaler is not None:
            sentences += self._sentences_about_fit()
        sentences += self._sentences_about_data()
        if self.scaler is not None:
            sentences += self._signs_of_no_gain()
        return sentences

    @property
    def _measured_scaler(self) -> Scaler | None:
        """The scaling that the figures are of, which knows no other frequencies of the classes."""
        return self.scaler if self.class_prior is None else self.unshifted

    @property
    def _are_few(self) -> bool:
        return self.num_groups < LEAST_GROUPS

    @property
    def _has_several_labels(self) -> bool:
        return self.information is None

    def _num_images_text(self) -> str:
        return '1 image' if self.num_images == 1 else f'{self.num_images:,} images'

    def _units(self) -> str:
        """Return the number and the kind of what is independent, such as ``797 images``."""
        images = self._num_images_text()
        if self.num_groups == self.num_images:
            return images
        groups = '1 group' if self.num_groups == 1 else f'{self.num_groups:,} groups'
        return f'{groups} of {images}'

    def _sentences_about_choice(self) -> Iterator[str]:
        if self.candidates:
            if not self._are_few:
                yield MANY_GROUPS
            elif self._has_several_labels:
                yield FEW_GROUPS_OF_LABELS
            else:
                yield FEW_GROUPS
        if self.scaler is None:
            is_by_temperature = self._are_few and not self._has_several_labels
            reason = 'is chosen' if is_by_temperature else 'improves on none by a standard error'
            yield f'No scaling {reason}, of {self.population:,} predictions of {self._units()}.'

    def _sentences_about_fit(self) -> Iterator[str]:
        if isinstance(self.scaler, TemperatureScaler):
            scaling = f'Temperature {self.scaler.temperature_:.4g}'
        elif isinstance(self.scaler, ScalerPerLabel):
            scaling = f'Scaling of each label by {self.method}'
        else:
            scaling = f'Scaling by {self.method} ({self.scaler.parameter_text()})'
        if self.standard_error is not None:
            scaling += f' {self._interval_text(self.scaler.temperature_)}'
        on_split = '' if self.split is None else f' on {self.split}'
        yield (
            f'{scaling}, fitted on {self.num_fitted:,} of {self.population:,} predictions of '
            f'{self._units()}{on_split}.'
        )
        if self.num_folds:
            yield (
                'Before and after are cross-fitted: each image is scored by a scaling fitted on '
                f'the other {self.num_folds - 1} of {self.num_folds} folds.'
            )
        else:
            yield 'Before and after are of images that the scaling was fitted on.'
        if self.class_prior is not None:
            prior = ', '.join(f'{100 * frequency:.3g}' for frequency in self.class_prior)
            on_test = ', on test too,' if 'tested' in self.effects else ''
            yield (
                f'The scaling of the model is then shifted to classes of which {prior} % are in '
                f'use. Before and after{on_test} are without this shift, of the frequencies in '
                'these data.'
            )
        if isinstance(self.scaler, ScalerPerLabel) and self.scaler.shared_labels:
            yield shared_sentence(self.scaler.shared_labels)
        for name, effect in self.effects.items():
            on_split = ' on test' if name == 'tested' else ''
            sentence = (
                f'{effect.changed:,} of {effect.num_predictions:,} predicted classes{on_split} '
                'change'
            )
            if effect.changed and effect.threshold is not None:
                sentence += (
                    f', since P(y = 1) moves across the threshold {effect.threshold:g}, which stays'
                )
            yield f'{sentence}.'
        if self.placement is None:
            return
        if self.placement.reason is None:
            where = f'Folded into {layer_text(self.placement.layers)}'
        else:
            where = f'Attached behind the model, because {self.placement.reason}'
        yield (
            f'{where}: its probabilities equal the scaled ones within {self.difference:.1e}, on '
            f'{self.placement.num_images:,} of {self._num_images_text()}.'
        )

    def _interval_text(self, temperature: float) -> str:
        """Return the interval of a temperature, and what it is of."""
        interval = interval_text(temperature, self.standard_error)
        sampling_error = self.fit_errors['sampling_error']
        if is_of_logarithm(temperature, self.standard_error):
            source = f'standard error of the logarithm over {self._units()}'
            share = sampling_error / self.standard_error
            drawn = f'{100 * share:.0f} %'
        else:
            source = f'standard error over {self._units()}'
            drawn = f'± {sampling_error:.2g}'
        if sampling_error:
            source += f', {drawn} of it from the draw'
        return f'{interval} ({source})'

    def _sentences_about_data(self) -> Iterator[str]:
        if self.groups_are_runs:
            yield (
                f'Neighbours among the {self.num_images:,} images are alike, as frames of a video '
                f'are: {FOLDS} stretches of them are taken for what is independent. If they are of '
                'several videos, patients or flights, name these: groups=…, or --groups PATTERN.'
            )
        elif self.num_groups == 1:
            yield 'All images are of one group, so nothing tells how the scaling holds on others.'
        elif self._are_few:
            yield (
                f'{self._units()} are few, and tell of others less than the standard error says: '
                'calibrate on more.'
            )
        yield from self._sentences_about_rates()
        rates = self.effects['fitted'].rates.get('before')
        yield from data_warnings(
            self.information,
            self.unlabelled,
            self.before['accuracy'],
            self.majority,
            accuracy_error=self.errors['before'].get('accuracy', math.inf),
            num_classes=None if rates is None else len(rates.probs),
        )

    def _sentences_about_rates(self) -> Iterator[str]:
        """Yield which classes are predicted more or less often than they occur, after the scaling.

        It is said of the last effect, which is that of a test split if there is one.
        """
        *_, effect = self.effects.values()
        rates = effect.rates.get('before' if self.scaler is None else 'after')
        if rates is None:
            return
        remedy = None
        measured = self._measured_scaler
        if measured is not None and measured.has_shift:
            remedy = (
                'the scaling has not seen these frequencies, so fit it to data like those in use'
            )
        yield from rates.sentences(remedy)

    def _signs_of_no_gain(self) -> Iterator[str]:
        """Yield what speaks against the scaling, and what to do."""
        signs: list[str] = []
        if isinstance(self.scaler, TemperatureScaler):
            signs += self._signs_of_temperature(self.scaler)
        elif isinstance(self.scaler, ScalerPerLabel):
            signs += self._signs_of_labels(self.scaler)
        yield from signs
        for name, effect in self.effects.items():
            worse = worse_metrics(effect.before, effect.after)
            if worse:
                split = 'test' if name == 'tested' else self.split
                on_split = '' if split is None else f' on {split}'
                changes = ', '.join(f'{metric} {change}' for metric, change in worse.items())
                has_remedy = signs and isinstance(self.scaler, TemperatureScaler)
                advice = '' if has_remedy else self._advice(worse)
                yield f'Worse than before{on_split}: {changes}. {advice}'.rstrip()

    def _signs_of_temperature(self, scaler: TemperatureScaler) -> Iterator[str]:
        if scaler.at_bound_:
            yield f'The temperature is at the bound of its search, so it means little: {SAME_ORDER}'
        elif scaler.temperature_ == 1:
            yield f'No gain: a temperature of 1 changes nothing. {KEEP}'
        elif self.standard_error:
            distance = errors_from_one(scaler.temperature_, self.standard_error)
            if distance <= INDISTINCT:
                unit = 'standard errors of the logarithm'
                if not is_of_logarithm(scaler.temperature_, self.standard_error):
                    unit = 'standard errors'
                    # The scale of the printed interval.
                    distance = abs(scaler.temperature_ - 1) / self.standard_error
                yield (
                    'No gain expected: a temperature of 1, which changes nothing, is only '
                    f'{distance:.1f} {unit} away. {KEEP}'
                )

    def _signs_of_labels(self, scaler: ScalerPerLabel) -> Iterator[str]:
        at_bound = []
        near_one = []
        errors = self.fit_errors.get('standard_errors', [math.nan] * len(scaler.scalers))
        for label, label_scaler in enumerate(scaler.scalers):
            if not isinstance(label_scaler, TemperatureScaler):
                continue
            if label_scaler.at_bound_:
                at_bound.append(label)
                continue
            # The error is NaN of a label that takes the scaling of all labels together.
            distance = errors_from_one(label_scaler.temperature_, errors[label])
            if distance <= INDISTINCT:
                near_one.append(label)
        if at_bound:
            yield (
                f'The temperature of {label_names(at_bound)} is at the bound of its search, so it '
                'means little: are the labels in the same order as those of the model?'
            )
        if near_one:
            sentence = (
                f'No gain expected of {label_names(near_one)}: a temperature of 1, which changes '
                'nothing, is within two standard errors.'
            )
            yield f'{sentence} {KEEP}' if len(near_one) == len(scaler.scalers) else sentence

    def _advice(self, worse: Collection[str]) -> str:
        """Return what metrics mean that are worse than before, and what to do."""
        is_of_grid = isinstance(self.scaler, TemperatureScaler) and self.scaler.criterion != 'nll'
        if is_of_grid:
            return "The fit is to the ECE of its grid alone: criterion='nll' is to the NLL."
        if 'NLL' in worse:
            return f'The fit lowers the NLL, and does not here: {self._remedy()}.'
        if 'accuracy' in worse:
            return 'This method changes predicted classes: take a temperature to keep them.'
        return 'The NLL, which the fit lowers, is not worse: judge by it, as bins are noisier.'

    def _remedy(self) -> str:
        """Return what to do if a scaling does not hold on other images."""
        if self.method == TemperatureScaler.method:
            return 'keep your model, or calibrate on more images that are like these'
        return 'take a temperature, or calibrate on more images that are like these'


def result(
    data: HeldOut,
    fitted: Fitted,
    scalings: Scalings,
    effect: Effect,
    placement: Placement | None,
    *,
    seed: int = 0,
    num_bins: int = 15,
) -> Calibrated:
    """Return the result of a calibration, without the model.

    Args:
        data: The predictions of the fit.
        fitted: The scaling.
        scalings: The scalings that have scored the images.
        effect: The metrics before and after.
        placement: The place of the scaling; None if it is in no single model.
        seed: The seed of the draw and of the folds.
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
        seed=seed,
        num_bins=num_bins,
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
