"""The optimum of every fit: no other parameters have a lower penalised likelihood."""

import numpy as np
import pytest
from fitted_scalers import METHODS, OPTIONS, fit_scaler, most_logits
from overconfident import draw
from scipy.special import log_softmax, softmax

from mmcalib.posthoc import SCALERS

LEAST_VALUES = dict(rise=0, fall=0, weights=0, temperature=0.01)
STEPS = (-0.004, 0.004)


def nll_slopes(logits, labels, beta):
    """Return the derivative of each row's NLL in 1/T."""
    probs = softmax(logits * beta, axis=1)
    return (probs * logits).sum(axis=1) - logits[np.arange(len(labels)), labels]


def effective_number(slopes, groups):
    slopes = slopes - slopes.mean()
    sums = [slopes[groups == group].sum() for group in np.unique(groups)]
    number = len(slopes) * (slopes**2).sum() / np.square(sums).sum()
    return float(np.clip(number, 1, len(slopes)))


def row_weights(method, logits, labels, groups, temperatures):
    """Return how many effective predictions each row counts as."""
    weights = np.empty(len(labels))
    predicted = logits.argmax(axis=1)
    part = predicted if method.startswith('class') else np.zeros_like(predicted)
    for label in np.unique(part):
        is_part = part == label
        slopes = nll_slopes(logits[is_part], labels[is_part], 1 / temperatures[label])
        weights[is_part] = effective_number(slopes, groups[is_part]) / is_part.sum()
    return weights


def matrix_penalty(change, diagonal, off_diagonal):
    diagonal_squares = np.square(np.diag(change)).sum()
    off_diagonal_squares = np.square(change).sum() - diagonal_squares
    return diagonal * diagonal_squares + off_diagonal * off_diagonal_squares


def weighted_mean_square(logits, temperature):
    """Return the mean square of the logits, weighted by the curvature of the likelihood."""
    centred = (logits - logits.mean(axis=1, keepdims=True)) / temperature
    probs = softmax(centred, axis=1)
    weight = probs * (1 - probs)
    return (1 + (weight * centred**2).sum()) / (1 + weight.sum())


def penalty(method, learned, temperatures, options, logits):
    """Return the penalty of parameters, with the temperature of each predicted class."""
    num_classes = len(temperatures)
    single = temperatures[0]
    shift_penalty = options.get('intercept', 0) * np.square(learned.get('shift', 0)).sum()
    if method in ('vector', 'matrix'):
        shift_penalty *= min(num_classes, 10)
        diagonal = 10 * weighted_mean_square(logits, single) * options['diagonal']
    if method == 'vector':
        return diagonal * np.square(single * learned['scale'] - 1).sum() + shift_penalty
    if method == 'class-temperatures':
        return options['penalty'] * np.square(single / learned['temperature'] - 1).sum()
    if method == 'matrix':
        change = single * learned['matrix'] - np.eye(num_classes)
        off_diagonal = num_classes * min(num_classes - 1, 10) * options['off_diagonal']
        return matrix_penalty(change, diagonal, off_diagonal) + shift_penalty
    if method == 'class-conditional':
        total = shift_penalty
        for label in range(num_classes):
            others = np.delete(np.arange(num_classes), label)
            matrix = learned['matrix'][label][np.ix_(others, others)]
            change = temperatures[label] * matrix - np.eye(num_classes - 1)
            total += matrix_penalty(change, options['diagonal'], options['off_diagonal'])
        return total
    return 0.0


def near_parameters(method, learned):
    """Yield parameters with one number changed a little, as far as that is allowed."""
    for name, value in learned.items():
        if method in ('ets', 'isotonic') and name == 'temperature':
            continue
        for index in np.ndindex(value.shape):
            is_predicted_class = method == 'class-conditional' and index[0] in index[1:]
            if is_predicted_class:
                continue
            for step in STEPS:
                changed = {key: array.copy() for key, array in learned.items()}
                changed[name][index] += step
                if method == 'class-conditional':
                    changed[name][index] = max(changed[name][index], 0)
                changed[name] = np.maximum(changed[name], LEAST_VALUES.get(name, -np.inf))
                if name == 'weights':
                    changed[name] /= changed[name].sum()
                yield changed


def targets_of_platt(labels, num_effective):
    """Return the targets of Platt's likelihood, ``(M, 2)``."""
    num_positive = labels.mean() * num_effective
    num_negative = num_effective - num_positive
    positive_target = (num_positive + 1) / (num_positive + 2)
    target = np.where(labels == 1, positive_target, 1 / (num_negative + 2))
    return np.stack([1 - target, target], axis=1)


@pytest.mark.parametrize('are_grouped', [False, True])
@pytest.mark.parametrize('method', [name for name in METHODS if name != 'isotonic'])
def test_fit_near_parameters_have_no_lower_objective(method, are_grouped):
    num_classes = most_logits(method)
    logits, labels = draw(240, num_classes=num_classes, seed=4)
    logits = logits + 0.7 * np.arange(num_classes)  # Classes then differ.
    groups = np.arange(240)
    if are_grouped:
        groups = groups // 6
        # Rows of a group are then not independent.
        logits = np.repeat(logits[::2], 2, axis=0)
        labels = np.repeat(labels[::2], 2)
    options = OPTIONS.get(method, {})
    scaler = fit_scaler(method, logits, labels, groups, **options)
    temperatures = [fit_scaler('temperature', logits, labels).temperature_] * num_classes
    weights = row_weights(method, logits, labels, groups, temperatures)
    if method == 'class-conditional':
        class_scaler = fit_scaler('class-temperatures', logits, labels, groups)
        temperatures = class_scaler.temperature_.tolist()
        weights = row_weights(method, logits, labels, groups, temperatures)
    assert are_grouped == (weights.min() < 0.9)
    assert method == 'temperature' or scaler.num_effective_ == pytest.approx(weights.sum())
    targets = np.eye(num_classes)[labels]
    if method == 'platt':
        targets = targets_of_platt(labels, weights.sum())

    def objective(learned):
        scaled = SCALERS[method].from_parameters(learned).transform(logits)
        nll = -(log_softmax(scaled, axis=1) * targets).sum(axis=1)
        return (weights * nll).sum() + penalty(method, learned, temperatures, options, logits)

    learned = {name: np.array(value) for name, value in scaler.parameters.items()}
    least = objective(learned)
    increases = [objective(changed) - least for changed in near_parameters(method, learned)]
    assert min(increases) > -1e-6 and max(increases) > 1e-5
