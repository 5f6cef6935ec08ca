"""The map of every scaling: against a loop, of all shapes, and what it keeps."""

import numpy as np
import pytest
import torch
from fitted_scalers import (
    CASES,
    CASES_KEEPING_ARGMAX,
    METHODS,
    draw_tensors,
    fit_scaler,
    fitted_scaler,
    most_logits,
    with_two_classes,
)
from overconfident import draw
from scipy.special import expit, softmax

from mmcalib.posthoc import SCALERS

# The maps as loops: from one row of logits to its scaled ones, with the learned parameters. The row
# of a sigmoid is (0, z).


def scale_by_temperature(z, temperature):
    return z / temperature


def scale_by_vector(z, scale, shift):
    return (z - z.mean()) * scale + shift


def scale_by_matrix(z, matrix, shift):
    return [row @ (z - z.mean()) for row in np.array(matrix)] + np.array(shift)


def mix_probabilities(z, temperature, weights):
    uniform = np.full(len(z), 1 / len(z))
    return np.log(np.array(weights) @ [softmax(z / temperature), softmax(z), uniform])


def scale_by_class_temperature(z, temperature):
    predicted = z.argmax()
    return [(value - z[predicted]) / temperature[predicted] for value in z]


def scale_gaps(z, matrix, shift):
    predicted = z.argmax()
    scaled = []
    for j in range(len(z)):
        terms = []
        for k in range(len(z)):
            if k != predicted:
                terms.append(matrix[predicted][j][k] * (z[k] - z[predicted]))
        scaled.append(0 if j == predicted else sum(terms) - shift[predicted][j])
    return scaled


def follow_curve(z, temperature, knots, errors):
    probs = softmax(z / temperature)
    predicted = z.argmax()
    others = np.delete(probs, predicted)
    error = np.interp(np.log(probs[predicted] / sum(others)), knots, errors)
    ratio = max(others) / sum(others)
    error = min(error, 1 / (1 + ratio) - 1e-6)
    scaled = [error * prob / sum(others) for prob in probs]
    scaled[predicted] = 1 - error
    return np.log(scaled)


def scale_odds_linearly(z, scale, shift):
    return [0, scale * (z[1] - z[0]) + shift]


def bend_odds(z, rise, fall, shift):
    odds = z[1] - z[0]
    return [0, rise * np.log(expit(odds)) - fall * np.log(expit(-odds)) + shift]


LOOPS = {
    'temperature': scale_by_temperature,
    'vector': scale_by_vector,
    'matrix': scale_by_matrix,
    'ets': mix_probabilities,
    'isotonic': follow_curve,
    'platt': scale_odds_linearly,
    'beta': bend_odds,
    'class-temperatures': scale_by_class_temperature,
    'class-conditional': scale_gaps,
}


def class_matrices():
    """Return a matrix for each predicted class, with zeros in its own row and column."""
    matrices = np.zeros((4, 4, 4))
    for predicted in range(4):
        for i in range(4):
            for j in range(4):
                if predicted not in (i, j):
                    matrices[predicted, i, j] = 0.3 + 0.05 * i
                    if i == j:
                        matrices[predicted, i, j] += 0.1
    return matrices.tolist()


# Parameters without any symmetry.
LEARNED = {
    'temperature': dict(temperature=2.5),
    'vector': dict(scale=[0.2, 0.8, 0.4, 0.5], shift=[0.5, -0.5, 0.0, 0.2]),
    'matrix': dict(
        matrix=[[0.4, 0.1, 0, 0], [0.3, 0.3, 0.2, 0], [0, 0, 0.5, -0.2], [0.1, 0, 0, 0.4]],
        shift=[0.5, -0.5, 0.0, 0.2],
    ),
    'ets': dict(temperature=4.0, weights=[0.6, 0.25, 0.15]),
    'isotonic': dict(temperature=2.0, knots=[-0.5, 0.1, 1.5, 4.0], errors=[0.6, 0.45, 0.3, 0.1]),
    'platt': dict(scale=0.4, shift=0.7),
    'beta': dict(rise=0.2, fall=0.7, shift=0.2),
    'class-temperatures': dict(temperature=[1.0, 8.0, 2.0, 20.0]),
    'class-conditional': dict(
        matrix=class_matrices(),
        shift=[[0, 2, 0.5, 1], [1, 0, 0, 0.3], [2, 0, 0, 0.5], [0, 0.4, 1, 0]],
    ),
}


@pytest.mark.parametrize('method', METHODS)
def test_transform_learned_parameters_equals_loop(method):
    scaler = SCALERS[method].from_parameters(LEARNED[method])
    logits = np.random.default_rng(0).normal(size=(60, most_logits(method))) * 3
    expected = softmax([LOOPS[method](row, **LEARNED[method]) for row in logits], axis=1)
    np.testing.assert_allclose(scaler.predict_proba(logits), expected, atol=1e-12)
    scaled = scaler.transform(logits)
    np.testing.assert_allclose(softmax(scaled, axis=1), expected, atol=1e-12)
    learned = {}
    for name, value in LEARNED[method].items():
        learned[name] = torch.as_tensor(value, dtype=torch.float64)
    applied = scaler.apply(torch.as_tensor(logits), **learned)
    np.testing.assert_allclose(applied.numpy(), scaled, atol=1e-12)


@pytest.mark.parametrize('method', METHODS)
def test_transform_logits_of_sigmoid_equals_two_classes(method):
    scaler = fitted_scaler(method, num_logits=1)
    new_logits = np.linspace(-9, 9, 40)[:, None]
    is_affine_of_one_logit = method in ('vector', 'matrix')
    if is_affine_of_one_logit:
        factor = scaler.parameters['scale' if method == 'vector' else 'matrix']
        scaled = new_logits * np.ravel(factor) + scaler.parameters['shift']
        expected = with_two_classes(scaled)
    else:
        rows = with_two_classes(new_logits)
        expected = [LOOPS[method](row, **scaler.parameters) for row in rows]
    probs = scaler.predict_proba(new_logits)
    np.testing.assert_allclose(probs, softmax(expected, axis=1), atol=1e-9)
    np.testing.assert_allclose(expit(scaler.transform(new_logits))[:, 0], probs[:, 1], atol=1e-12)
    if not is_affine_of_one_logit:
        logits, labels = draw(300, num_classes=1)
        softmax_scaler = fit_scaler(method, with_two_classes(logits), labels)
        actual = softmax_scaler.predict_proba(with_two_classes(new_logits))
        np.testing.assert_allclose(actual, probs, atol=1e-5)


@pytest.mark.parametrize('shape', [(7,), (3, 5), (2, 3, 4)])
@pytest.mark.parametrize('method', METHODS)
def test_fit_maps_and_volumes_equal_rows(method, shape):
    num_logits = most_logits(method)
    rows, row_labels = draw_tensors(6 * int(np.prod(shape)), num_logits)
    maps = rows.view(6, *shape, num_logits).movedim(-1, 1)
    labels = row_labels.view(6, *shape).clone()
    labels[0, 0] = 255
    images = torch.arange(6).repeat_interleave(len(rows) // 6)
    valid = (labels != 255).flatten()
    scaler = SCALERS[method]().fit(maps, labels, ignore_index=255)
    expected = fit_scaler(method, rows[valid], row_labels[valid], images[valid])
    assert scaler.parameters == expected.parameters
    assert scaler.num_predictions_ == valid.sum()
    probs = scaler.predict_proba(maps)
    assert probs.shape == maps.shape
    probs_of_rows = probs.movedim(1, -1).flatten(0, -2)
    torch.testing.assert_close(probs_of_rows, scaler.predict_proba(rows))


@pytest.mark.parametrize(('method', 'num_logits'), CASES)
def test_predict_proba_shifted_logits_is_the_same_for_softmax(method, num_logits):
    logits, labels = draw(300, num_classes=num_logits)
    scaler = fit_scaler(method, logits, labels)
    expected = scaler.predict_proba(logits)
    if num_logits == 1:
        assert np.abs(scaler.predict_proba(logits + 1) - expected).max() > 0.05
        return
    for size in (1.0, 1e7):
        offsets = np.random.default_rng(1).normal(size=(len(logits), 1)) * size + size
        for shifted_scaler in (scaler, fit_scaler(method, logits + offsets, labels)):
            actual = shifted_scaler.predict_proba(logits + offsets)
            np.testing.assert_allclose(actual, expected, atol=1e-6)
    single = torch.as_tensor(logits + 1e5).float()  # Its values are apart by steps of 0.008.
    actual = scaler.predict_proba(single).double()
    expected = scaler.predict_proba(single.double() - 1e5)
    torch.testing.assert_close(actual, expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize('dtype', [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize(('method', 'num_logits'), CASES_KEEPING_ARGMAX)
def test_transform_scaler_that_keeps_argmax_keeps_predicted_class(method, num_logits, dtype):
    """The logits have ties, differences of one step of their precision, and all sizes."""
    generator = torch.manual_seed(1)
    logits = torch.randn(400, num_logits, 6, generator=generator, dtype=torch.float64)
    logits[:100] = logits[:100].round()
    logits[100:200] *= 1e4
    if SCALERS[method].by_class:  # Gaps keep their digits.
        logits[200:250] = 1.875 + torch.finfo(dtype).eps * logits[200:250].round()
    logits[250:270] *= 1e-3
    logits = logits.to(dtype)
    scaler = fitted_scaler(method, num_logits)
    scaled = scaler.transform(logits.double())
    assert scaler.keeps_argmax and scaled.isfinite().all()
    expected = with_two_classes(logits.numpy()).argmax(axis=1)
    np.testing.assert_array_equal(with_two_classes(scaled.numpy()).argmax(axis=1), expected)


@pytest.mark.parametrize(
    'method', ['temperature', 'isotonic', 'beta', 'class-temperatures', 'platt']
)
def test_transform_two_classes_keeps_order(method):
    new_logits = np.linspace(-60, 60, 5001)[:, None]
    scaled = fitted_scaler(method, num_logits=1).transform(new_logits)[:, 0]
    assert (np.diff(scaled) >= -1e-12).all() and scaled[-1] > scaled[0] + 2


def test_platt_logits_that_mislead_have_negative_scale():
    logits, labels = draw(300, num_classes=1)
    with pytest.warns(UserWarning, match='almost no information'):
        assert fit_scaler('platt', -logits, labels).scale_ < 0


def test_ensemble_temperature_keeps_weight_of_model():
    logits = np.random.default_rng(0).normal(size=(400, 4)) * 5
    with pytest.warns(UserWarning, match='almost no information'):
        scaler = fit_scaler('ets', logits, logits.argmin(axis=1))
    assert 0.98 < scaler.weights_[2] <= 0.99 + 1e-9
    assert (scaler.transform(logits).argmax(axis=1) == logits.argmax(axis=1)).all()


def test_cases_cover_every_method():
    assert LOOPS.keys() == LEARNED.keys() == SCALERS.keys()


@pytest.mark.parametrize('num_logits', [1, 2])
def test_platt_fold_equals_transform(num_logits):
    torch.manual_seed(0)
    inputs = torch.randn(30, 4, dtype=torch.float64)
    layer = torch.nn.Linear(4, num_logits, dtype=torch.float64)
    scaler = SCALERS['platt'].from_parameters({'scale': 0.4, 'shift': 0.7})
    scaler.num_logits_ = num_logits
    weight, bias = scaler.fold(layer.weight.detach(), layer.bias.detach())
    actual = inputs @ weight.T + bias
    torch.testing.assert_close(actual, scaler.transform(layer(inputs).detach()))
    with pytest.raises(ValueError, match='no bias'):
        scaler.fold(layer.weight.detach(), None)


@pytest.mark.parametrize(
    ('fitted_columns', 'given_columns', 'remedy'),
    [(1, 2, r'give the log-odds of class 1 alone'), (2, 1, r'give the logits of both classes')],
)
def test_transform_two_classes_of_another_form_says_which_to_give(
    fitted_columns, given_columns, remedy
):
    torch.manual_seed(0)
    odds = torch.randn(50, 1)
    labels = (torch.rand(50) < odds[:, 0].sigmoid()).long()
    logits = {1: odds, 2: torch.cat([-odds / 2, odds / 2], dim=1)}
    scaler = SCALERS['platt']().fit(logits[fitted_columns], labels)
    with pytest.raises(ValueError, match=remedy):
        scaler.predict_proba(logits[given_columns])
