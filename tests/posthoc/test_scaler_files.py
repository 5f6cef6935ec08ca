"""Files, options and refusals of scalers."""

import json
import warnings

import numpy as np
import pytest
import torch
from fitted_scalers import (
    BINARY_METHODS,
    METHODS,
    OPTIONS,
    fit_scaler,
    fitted_scaler,
    most_logits,
    with_two_classes,
)
from overconfident import draw
from scipy.special import expit, log_softmax, softmax
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from mmcalib.errors import UserError
from mmcalib.posthoc import SCALERS, load_scaler
from mmcalib.posthoc.attached import AttachedScaling

LOGITS, LABELS = draw(20, num_classes=3)


@pytest.mark.parametrize('method', METHODS)
def test_load_scaler_saved_file_transforms_alike(method, tmp_path):
    options = OPTIONS.get(method, {})
    scaler = fitted_scaler(method, **options)
    scaler.save(tmp_path / 'scaler.json')
    content = json.loads((tmp_path / 'scaler.json').read_text())
    assert content['method'] == method and content['options'].items() >= options.items()
    loaded = load_scaler(tmp_path / 'scaler.json')
    assert type(loaded) is type(scaler)
    assert loaded.get_params() == scaler.get_params() == clone(scaler).get_params()
    logits, _ = draw(50, num_classes=most_logits(method), seed=1)
    np.testing.assert_array_equal(loaded.transform(logits), scaler.transform(logits))
    with pytest.raises(ValueError, match=r'fitted to|two classes'):
        loaded.predict_proba(np.zeros((5, most_logits(method) + 1)))


@pytest.mark.parametrize('method', METHODS)
def test_load_scaler_made_from_parameters_transforms_alike(method, tmp_path):
    fitted = fitted_scaler(method)
    scaler = type(fitted).from_parameters(fitted.parameters)
    logits, _ = draw(50, num_classes=most_logits(method), seed=1)
    scaler.save(tmp_path / 'scaler.json')
    loaded = load_scaler(tmp_path / 'scaler.json')
    np.testing.assert_array_equal(loaded.transform(logits), fitted.transform(logits))
    if method in ('vector', 'matrix'):
        for other in (scaler, loaded):
            with pytest.raises(ValueError, match=r'fitted to 4 logits .* got \(20, 3\)'):
                other.transform(LOGITS)


@pytest.mark.parametrize('method', METHODS)
def test_scaler_before_fit_raises(method, tmp_path):
    scaler = clone(fitted_scaler(method))
    message = f'{type(scaler).__name__} .*not fitted yet'
    with pytest.raises(NotFittedError, match=message):
        scaler.predict_proba([[1.0, 2.0]])
    with pytest.raises(NotFittedError, match=message):
        scaler.save(tmp_path / 'scaler.json')
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize('num_logits', [1, 3])
@pytest.mark.parametrize('method', METHODS)
def test_scaler_probabilities_in_place_of_logits_warns(method, num_logits):
    num_classes = 2 if method in BINARY_METHODS and num_logits > 1 else num_logits
    logits, labels = draw(200, num_classes=num_classes)
    probs = expit(logits) if num_logits == 1 else softmax(logits, axis=1)
    scaler = fit_scaler(method, logits, labels)
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        scaler.transform(logits)
        scaler.predict_proba(logits)
        scaler.transform(logits[:0])
        fit_scaler(method, log_softmax(with_two_classes(logits), axis=1), labels)
    for call in (
        lambda: scaler.transform(probs),
        lambda: scaler.predict_proba(torch.as_tensor(probs).half()),
        lambda: SCALERS[method]().fit(probs, labels),
    ):
        with pytest.warns(UserWarning, match='look like probabilities') as warned:
            call()
        assert __file__ in {warning.filename for warning in warned}


INVALID_CALLS = {
    'no rows': (lambda: fit_scaler('temperature', LOGITS[:0], LABELS[:0]), 'nothing to fit'),
    'fewer labels': (
        lambda: fit_scaler('temperature', LOGITS, LABELS[:5]), r'\(20, 3\) do not fit labels \(5,\)'
    ),
    'no axis': (lambda: fit_scaler('temperature', LOGITS[0, 0], LABELS), r'must be .*\(\)'),
    'row of a softmax': (
        lambda: fitted_scaler('temperature').transform(LOGITS[0]), r'must be .*\(3,\)'
    ),
    'classes for logits': (lambda: fit_scaler('temperature', LABELS, LABELS), r'outside \[0, 2\)'),
    'real labels': (lambda: fit_scaler('vector', LOGITS, LABELS + 0.5), 'labels must be integers'),
    'labels above K': (
        lambda: fit_scaler('matrix', LOGITS, LABELS + 9), r'outside \[0, 3\).*ignore_index'
    ),
    'NaN': (
        lambda: fit_scaler('isotonic', np.where(LOGITS[2, 0] == LOGITS, np.nan, LOGITS), LABELS),
        '1 NaN',
    ),
    'fewer groups': (
        lambda: fit_scaler('vector', LOGITS, LABELS, LABELS[:7]), r'groups must be \(20,\)'
    ),
    'fewer groups of an error': (
        lambda: fitted_scaler('temperature').standard_error(LOGITS, LABELS, LABELS[:7]),
        'groups must be',
    ),
    'confidence of 9': (
        lambda: SCALERS['platt']().fit_confidence([9.0, 0.5], [1, 0]), '1 of 2 values'
    ),
    'three classes': (
        lambda: fit_scaler('platt', LOGITS, LABELS), r'two classes.*\(20, 3\).*temperature'
    ),
    'no bias': (lambda: fitted_scaler('vector').fold(torch.eye(4), None), 'no bias'),
    'other parameter': (
        lambda: SCALERS['vector'].from_parameters({'colour': 1.0}), 'learns .*colour'
    ),
    'other axes': (
        lambda: SCALERS['temperature'].from_parameters({'temperature': [1.0]}), 'learns'
    ),
    'unknown method': (lambda: AttachedScaling('colour'), r"method must be one of .* got 'colour'"),
}  # fmt: skip


@pytest.mark.parametrize('case', INVALID_CALLS)
def test_scaler_invalid_input_raises(case):
    call, message = INVALID_CALLS[case]
    with pytest.raises((TypeError, ValueError), match=message):
        call()


@pytest.mark.parametrize('method', ['vector', 'matrix', *BINARY_METHODS])
def test_fit_labels_of_one_class_with_shift_raises(method):
    with pytest.raises(UserError, match='class 1'):
        fit_scaler(method, LOGITS[:, :2], np.ones_like(LABELS))


@pytest.mark.parametrize('value', [-1.0, float('inf'), True])
@pytest.mark.parametrize(
    ('method', 'option'),
    [
        ('temperature', 'criterion'),
        *((method, option) for method, options in OPTIONS.items() for option in options),
    ],
)
def test_scaler_invalid_option_raises_and_is_not_set(method, option, value):
    scaler = SCALERS[method]()
    params_before = scaler.get_params()
    for call in (SCALERS[method], scaler.set_params):
        with pytest.raises((TypeError, ValueError), match=option):
            call(**{option: value})
    with pytest.raises((TypeError, ValueError), match=option):
        setattr(scaler, option, value)
    assert scaler.get_params() == params_before
    scaler.set_params(**params_before)


@pytest.mark.parametrize(
    ('content', 'message'),
    [
        ('{', 'Expecting'),
        ('[]', 'list'),
        ('{"method": "platt"}', "lacks 'parameters'"),
        ('{"method": "venn-abers", "parameters": {}}', 'venn-abers'),
    ],
)
def test_load_scaler_other_file_raises(content, message, tmp_path):
    path = tmp_path / 'scaler.json'
    path.write_text(content)
    with pytest.raises(UserError, match=message):
        load_scaler(path)


INVALID_PARAMETERS = {
    'temperature': ({'temperature': 0.0}, 'above 0, got 0'),
    'class-temperatures': ({'temperature': [1.0, -2.5]}, 'above 0, got -2.5'),
    'vector': ({'scale': [1.0, float('nan')], 'shift': [0.0, 0.0]}, 'scale must .*finite, got nan'),
    'platt': ({'scale': 1.0, 'shift': float('-inf')}, 'shift must .*finite, got -inf'),
    'isotonic': (
        {'temperature': float('inf'), 'knots': [0.0], 'errors': [0.5]},
        'temperature must .*finite, got inf',
    ),
}


@pytest.mark.parametrize('method', INVALID_PARAMETERS)
def test_scaler_invalid_parameter_raises_with_value_and_file(method, tmp_path):
    parameters, message = INVALID_PARAMETERS[method]
    with pytest.raises(ValueError, match=message):
        SCALERS[method].from_parameters(parameters)
    content = {'method': method, 'options': {}, 'parameters': parameters, 'num_logits': 2}
    path = tmp_path / 'scaler.json'
    path.write_text(json.dumps(content))
    with pytest.raises(UserError, match=f'scaler.json .*{message}'):
        load_scaler(path)
    tensors = {name: torch.tensor(value) for name, value in parameters.items()}
    with pytest.raises(UserError, match=message):
        AttachedScaling(method).load_state_dict(tensors)


@pytest.mark.parametrize('method', ['temperature', 'platt'])
def test_predict_proba_of_certain_log_odds_are_0_and_1(method):
    scaler = SCALERS[method]().fit([[-2.0], [-1.0], [0.5], [1.0], [2.0]], [0, 1, 0, 1, 1])
    probs = scaler.predict_proba(np.array([[-np.inf], [np.inf]]))
    assert probs.tolist() == [[1, 0], [0, 1]]
