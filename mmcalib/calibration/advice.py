"""Sentences on a calibration: its steps, and every reason to keep the model as it was."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from mmcalib.calibration.before_after import Effect
from mmcalib.calibration.choose import INDISTINCT, LEAST_GROUPS, errors_from_one
from mmcalib.calibration.data_checks import NO_INFORMATION, SAME_ORDER
from mmcalib.calibration.find_layer import layer_text
from mmcalib.calibration.independent_groups import FOLDS
from mmcalib.metrics.metric_text import PREFIX, better_rule, number_text
from mmcalib.posthoc.affine import TemperatureScaler
from mmcalib.posthoc.isotonic import IsotonicScaler
from mmcalib.posthoc.per_label import Scaler, ScalerPerLabel, label_names, shared_sentence
from mmcalib.posthoc.temperature_search import INFORMATIVE
from mmcalib.texts import unlabelled_sentence

if TYPE_CHECKING:
    from mmcalib.calibration.calibrated import Calibrated

FEW_GROUPS = (
    'Of fewer than ten groups only a temperature is taken, and only if it is above 1 by two '
    'standard errors: they do not tell which other scaling would hold on further ones.'
)
FEW_GROUPS_OF_LABELS = (
    'Of fewer than ten groups only a temperature is compared with no scaling: they do not tell '
    'which other scaling would hold on further ones.'
)
MANY_GROUPS = (
    'The first within a standard error of the lowest NLL is chosen, for data like these. In data '
    'of another place, time or device, class frequencies differ: measure there, or take a '
    'temperature.'
)
POOLED = (
    'Before and after are pooled over labels; ECE_macro of a measurement is the mean of labels.'
)
# Points between mean confidence and accuracy that are worth a sentence, and the standard errors
# that they are away from 0: 4, since it is said of any calibration.
LARGE_GAP = 3
CERTAIN = 4
KEEP = 'Keep your model, or calibrate on more data to be sure.'


def advice(calibrated: Calibrated) -> list[str]:
    """Return what was fitted and where it went, and every reason to keep the original."""
    sentences = [*about_choice(calibrated)]
    if calibrated.has_several_labels:
        sentences.append(POOLED)
    if calibrated.scaler is not None:
        sentences += about_fit(calibrated)
    sentences += about_data(calibrated)
    if calibrated.scaler is not None:
        sentences += signs_of_no_gain(calibrated)
    return sentences


def about_choice(calibrated: Calibrated) -> Iterator[str]:
    """Yield how the method was chosen."""
    are_few = calibrated.num_groups < LEAST_GROUPS
    if calibrated.candidates:
        if not are_few:
            yield MANY_GROUPS
        else:
            yield FEW_GROUPS_OF_LABELS if calibrated.has_several_labels else FEW_GROUPS
    if calibrated.scaler is None:
        is_by_temperature = are_few and not calibrated.has_several_labels
        reason = 'is chosen' if is_by_temperature else 'improves on none by a standard error'
        yield f'No scaling {reason}, of {population_text(calibrated)}.'


def about_fit(calibrated: Calibrated) -> Iterator[str]:
    """Yield what was fitted, what it changes, and where it went."""
    scaler = calibrated.scaler
    if isinstance(scaler, TemperatureScaler):
        scaling = f'Temperature {scaler.temperature_:.4g}'
    elif isinstance(scaler, ScalerPerLabel):
        scaling = f'Scaling of each label by {scaler.method}'
    else:
        scaling = f'Scaling by {scaler.method} ({scaler.parameter_text()})'
    if calibrated.standard_error is not None:
        scaling += f' {temperature_interval(calibrated)}'
    on_split = '' if calibrated.split is None else f' on {calibrated.split}'
    yield (
        f'{scaling}, fitted on {calibrated.num_fitted:,} of {population_text(calibrated)}'
        f'{on_split}.'
    )
    if calibrated.num_folds:
        yield (
            f'Before and after are cross-fitted: each {calibrated.unit} is scored by a scaling '
            f'fitted on the other {calibrated.num_folds - 1} of {calibrated.num_folds} folds.'
        )
    else:
        yield f'Before and after are of {calibrated.unit}s that the scaling was fitted on.'
    if calibrated.class_prior is not None:
        prior = ', '.join(f'{100 * frequency:.3g}' for frequency in calibrated.class_prior)
        on_test = ', on test too,' if 'tested' in calibrated.effects else ''
        yield (
            f'The scaling of the model is then shifted to classes of which {prior} % are in use. '
            f'Before and after{on_test} are without this shift, of the frequencies in these data.'
        )
    if isinstance(scaler, ScalerPerLabel) and scaler.shared_labels:
        yield shared_sentence(scaler.shared_labels)
    for name, effect in calibrated.effects.items():
        on_split = ' on test' if name == 'tested' else ''
        reason = ''
        if effect.changed and effect.threshold is not None:
            reason = (
                f', since P(y = 1) moves across the threshold {effect.threshold:g}, which stays'
            )
        yield (
            f'{effect.changed:,} of {effect.num_predictions:,} predicted classes{on_split} change'
            f'{reason}.'
        )
    placement = calibrated.placement
    if placement is not None:
        if placement.reason is None:
            where = f'Folded into {layer_text(placement.layers)}'
        else:
            where = f'Attached behind the model, because {placement.reason}'
        yield (
            f'{where}: its probabilities equal the scaled ones within {placement.difference:.1e}, '
            f'on {placement.num_images:,} of {images_text(calibrated)}.'
        )


def about_data(calibrated: Calibrated) -> Iterator[str]:
    """Yield what speaks against the data of a calibration."""
    if calibrated.groups_are_runs:
        yield (
            f'Neighbours among the {images_text(calibrated)} are alike, as frames of a '
            f'video are: {FOLDS} stretches of them are taken for what is independent. If they are '
            'of several videos, patients or flights, name these: groups=…, or --groups PATTERN.'
        )
    elif calibrated.num_groups == 1:
        yield (
            f'All {calibrated.unit}s are of one group, so nothing tells how the scaling holds on '
            'others.'
        )
    elif calibrated.num_groups < LEAST_GROUPS:
        yield (
            f'{units_text(calibrated)} are few, and tell of others less than the standard error '
            'says: calibrate on more.'
        )
    yield from about_rates(calibrated)
    yield from about_accuracy(calibrated)
    if calibrated.unlabelled:
        yield unlabelled_sentence(calibrated.unlabelled)


def about_rates(calibrated: Calibrated) -> Iterator[str]:
    """Yield which classes are predicted more or less often than they occur, after the scaling.

    It is said of the last effect, which is that of a test split if there is one.
    """
    *_, effect = calibrated.effects.values()
    rates = effect.rates.get('before' if calibrated.scaler is None else 'after')
    if rates is None:
        return
    remedy = None
    measured = calibrated.measured_scaler
    if measured is not None and measured.has_shift:
        remedy = 'the scaling does not give these frequencies, so fit it to data like those in use'
    sentences = rates.sentences(remedy, names=calibrated.class_names)
    on_test = 'On test: ' if 'tested' in calibrated.effects else ''
    yield from (f'{on_test}{sentence}' for sentence in sentences)
    if sentences and calibrated.class_prior is not None:
        yield 'The shift to the classes in use presumes that both are equal: it is wrong as well.'


def about_accuracy(calibrated: Calibrated) -> Iterator[str]:
    """Yield whether the logits tell about the labels, and predict better than one class does.

    Where one of two classes is rare, or was weighted in the training, the accuracy is often below
    its share, which says nothing of the order of the classes: the information of the logits does.
    """
    information = calibrated.information
    majority = calibrated.majority
    accuracy = calibrated.before['accuracy']
    error = calibrated.errors['before'].get('accuracy', math.inf)
    rates = calibrated.effects['fitted'].rates.get('before')
    has_two_classes = rates is not None and len(rates.probs) == 2
    is_by_chance = majority is None or accuracy - majority <= INFORMATIVE * error
    if information is not None and information < INFORMATIVE and is_by_chance:
        yield (
            f'Warning: {NO_INFORMATION} beyond chance (accuracy {accuracy:.2f} %), so the '
            f'temperature means nothing: {SAME_ORDER}'
        )
    elif majority is not None and accuracy <= majority and not has_two_classes:
        yield (
            f'Warning: the accuracy, {accuracy:.2f} %, is not above {majority:.2f} %, that of '
            f'always predicting the most frequent class: {SAME_ORDER}'
        )


def signs_of_no_gain(calibrated: Calibrated) -> Iterator[str]:
    """Yield what speaks against the scaling, and what to do."""
    signs: list[str] = []
    is_temperature = isinstance(calibrated.scaler, TemperatureScaler)
    if is_temperature:
        signs += signs_of_temperature(calibrated.scaler, calibrated.standard_error)
    elif isinstance(calibrated.scaler, ScalerPerLabel):
        signs += signs_of_labels(calibrated.scaler, calibrated.label_errors)
    yield from signs
    for name, effect in calibrated.effects.items():
        worse = worse_metrics(effect)
        if worse:
            split = 'test' if name == 'tested' else calibrated.split
            on_split = '' if split is None else f' on {split}'
            changes = ', '.join(f'{metric} {change}' for metric, change in worse.items())
            remedy = '' if signs and is_temperature else f' {remedy_for(calibrated, worse)}'
            yield f'Worse than before{on_split}: {changes}.{remedy}'
    # A gap on the test alone would be one of its data, which no other fit mends.
    yield from remaining_gap(calibrated.effects['fitted'], calibrated.scaler)


def remaining_gap(effect: Effect, scaler: Scaler) -> Iterator[str]:
    """Yield what to do where the confidence is still far from the accuracy."""
    if effect.gap is None or scaler.method == IsotonicScaler.method:
        return
    gap, error = effect.gap
    if abs(gap) < LARGE_GAP or abs(gap) < CERTAIN * error:
        return
    side = 'above' if gap > 0 else 'below'
    yield (
        f'The mean confidence is still {abs(gap):.1f} ± {error:.1f} points {side} the accuracy, '
        "since the fit is to the NLL of all classes. method='isotonic' (--method isotonic) maps "
        'the confidence itself, and changes no predicted class.'
    )


def signs_of_temperature(scaler: TemperatureScaler, standard_error: float | None) -> Iterator[str]:
    """Yield what speaks against a temperature."""
    temperature = scaler.temperature_
    if scaler.at_bound_:
        yield f'The temperature is at the bound of its search, so it means little: {SAME_ORDER}'
    elif temperature == 1:
        yield f'No gain: a temperature of 1 changes nothing. {KEEP}'
    elif standard_error:
        distance = errors_from_one(temperature, standard_error)
        if distance <= INDISTINCT:
            unit = 'standard errors of the logarithm'
            if not is_of_logarithm(temperature, standard_error):
                unit = 'standard errors'
                # The scale of the printed interval.
                distance = abs(temperature - 1) / standard_error
            yield (
                'No gain expected: a temperature of 1, which changes nothing, is only '
                f'{distance:.1f} {unit} away. {KEEP}'
            )


def signs_of_labels(scaler: ScalerPerLabel, errors: list[float]) -> Iterator[str]:
    """Yield what speaks against the temperatures of labels, whose standard errors may be NaN."""
    at_bound = []
    near_one = []
    for label, label_scaler in enumerate(scaler.scalers):
        if not isinstance(label_scaler, TemperatureScaler):
            continue
        if label_scaler.at_bound_:
            at_bound.append(label)
        elif errors_from_one(label_scaler.temperature_, errors[label]) <= INDISTINCT:
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


def worse_metrics(effect: Effect) -> dict[str, str]:
    """Return ``from 0.3000 to 0.3100`` by the name of each metric that is worse as printed."""
    worse = {}
    for name, before in effect.before.items():
        key = f'{PREFIX}{name}'
        after = effect.after[name]
        is_worse = after > before if better_rule(key) == 'less' else after < before
        text_before = number_text(before, key)
        text_after = number_text(after, key)
        if is_worse and text_before != text_after:
            worse[name] = f'from {text_before} to {text_after}'
    return worse


def remedy_for(calibrated: Calibrated, worse: dict[str, str]) -> str:
    """Return what metrics mean that are worse than before, and what to do."""
    scaler = calibrated.scaler
    if isinstance(scaler, TemperatureScaler) and scaler.criterion != 'nll':
        return "The fit is to the ECE of its grid alone: criterion='nll' is to the NLL."
    if 'NLL' in worse:
        is_temperature = scaler.method == TemperatureScaler.method
        other = 'keep your model' if is_temperature else 'take a temperature'
        return (
            f'The fit lowers the NLL, and does not here: {other}, or calibrate on more data '
            'like these.'
        )
    if 'accuracy' in worse:
        return 'This method changes predicted classes: take a temperature to keep them.'
    return 'The NLL, which the fit lowers, is not worse: judge by it, as bins are noisier.'


def images_text(calibrated: Calibrated) -> str:
    """Return the number of images, such as ``797 images``; of a loader's rows, predictions."""
    num_images = calibrated.num_images
    return f'1 {calibrated.unit}' if num_images == 1 else f'{num_images:,} {calibrated.unit}s'


def population_text(calibrated: Calibrated) -> str:
    """Return the number of valid predictions and what they are of, if they are not all by it."""
    population = f'{calibrated.population:,} predictions'
    if calibrated.unit != 'prediction':
        return f'{population} of {units_text(calibrated)}'
    if calibrated.num_groups == calibrated.num_images:
        return population
    return f'{population} of {groups_text(calibrated)}'


def units_text(calibrated: Calibrated) -> str:
    """Return the number of what is independent, such as ``12 groups of 797 images``."""
    images = images_text(calibrated)
    num_groups = calibrated.num_groups
    if num_groups == calibrated.num_images:
        return images
    return f'{groups_text(calibrated)} of {images}'


def groups_text(calibrated: Calibrated) -> str:
    """Return the number of groups, such as ``12 groups``."""
    num_groups = calibrated.num_groups
    return '1 group' if num_groups == 1 else f'{num_groups:,} groups'


def temperature_interval(calibrated: Calibrated) -> str:
    """Return the interval of a temperature, and what it is of."""
    temperature = calibrated.scaler.temperature_
    standard_error = calibrated.standard_error
    sampling_error = calibrated.fit_errors['sampling_error']
    if is_of_logarithm(temperature, standard_error):
        kind = 'standard error of the logarithm'
        drawn = f'{100 * sampling_error / standard_error:.0f} %'
    else:
        kind = 'standard error'
        drawn = f'± {sampling_error:.2g}'
    source = f'{kind} over {units_text(calibrated)}'
    if sampling_error:
        source += f', {drawn} of it from the draw'
    return f'{interval_text(temperature, standard_error)} ({source})'


def is_of_logarithm(temperature: float, standard_error: float) -> bool:
    """Return whether an error is so large that the interval is one of the logarithm.

    Otherwise T ± SE is nearly the same. Of 0.15 ± 0.34 the lower end would be no temperature.
    """
    return standard_error > temperature / 5


def interval_text(temperature: float, standard_error: float) -> str:
    """Return ``± 0.04``; for a large error the ends of an interval of the logarithm in brackets."""
    if not is_of_logarithm(temperature, standard_error):
        return f'± {standard_error:.2g}'
    factor = math.exp(standard_error / temperature)
    return f'[{temperature / factor:.2g}, {temperature * factor:.2g}]'
