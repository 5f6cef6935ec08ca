"""A scaling for each of several labels: fitted, saved, attached, and shared by constant labels."""

import numpy as np
import pytest
import torch

from mmcalib.calibration.cross_fit import fit_scaler
from mmcalib.errors import UserError
from mmcalib.posthoc import SCALERS, TemperatureScaler, load_scaler
from mmcalib.posthoc.attached import (
    AttachedScaling,
    CalibratedOutput,
    build_scaling,
    scaling_module,
)
from mmcalib.posthoc.per_label import ScalerPerLabel, shared_sentence
from mmcalib.predictions.image_predictions import ImagePredictions

CONSTANT_LABEL = 2
TEMPERATURES = (0.5, 3.0, 1.0, 1.7)
METHODS = [name for name, scaler in SCALERS.items() if 'sigmoid' in scaler.heads]


def labelled_logits(num_images=400):
    """Return logits and labels ``(N, 4)``, too sure by other temperatures; one label is constant.

    Returns:
        ``(N, 4)`` logits, ``(N, 4)`` labels and the ``(N,)`` numbers of the images.
    """
    generator = torch.manual_seed(0)
    true_logits = torch.randn(num_images, 4, generator=generator, dtype=torch.float64) * 2
    labels = torch.bernoulli(true_logits.sigmoid(), generator=generator).long()
    labels[:, CONSTANT_LABEL] = 1
    return true_logits * torch.tensor(TEMPERATURES), labels, torch.arange(num_images)


def fit_labels(scaler, logits, labels, groups):
    rows = ImagePredictions(
        predicted=labels, logits=logits[:, None], labels=labels, images=groups, several_labels=True
    )
    return fit_scaler(scaler, rows)


def fit_per_label(method, **options):
    return fit_labels(SCALERS[method](**options), *labelled_logits())


@pytest.mark.parametrize('method', METHODS)
def test_fit_constant_label_takes_scaling_of_all_labels(method):
    logits, labels, images = labelled_logits()
    scaler = fit_per_label(method)
    shared = SCALERS[method]().fit(
        logits.flatten()[:, None], labels.flatten(), images.repeat_interleave(4)
    )
    assert scaler.shared_labels == [CONSTANT_LABEL]
    assert 'Label 2 has fewer than 2 images' in shared_sentence(scaler.shared_labels)
    for index in range(4):
        expected = shared
        if index != CONSTANT_LABEL:
            expected = SCALERS[method]().fit(logits[:, index, None], labels[:, index])
        assert scaler.parameters[index] == expected.parameters
        actual = scaler.transform(logits)[:, index, None]
        torch.testing.assert_close(actual, expected.transform(logits[:, index, None]))


@pytest.mark.parametrize('method', METHODS)
def test_load_scaler_per_label_transforms_alike_and_takes_arrays_and_lists(method, tmp_path):
    logits, _, _ = labelled_logits()
    fitted = fit_per_label(method)
    fitted.save(tmp_path / 'scaler.json')
    scaler = load_scaler(tmp_path / 'scaler.json')
    assert isinstance(scaler, ScalerPerLabel)
    assert scaler.parameters == fitted.parameters and len(scaler.parameters) == 4
    assert scaler.shared_labels == [CONSTANT_LABEL]
    assert scaler.get_params() == fitted.get_params()
    for name in ('transform', 'predict_proba'):
        call = getattr(scaler, name)
        expected = getattr(fitted, name)(logits)
        assert torch.equal(call(logits), expected)
        for values in (logits.numpy(), logits.tolist()):
            actual = call(values)
            assert isinstance(actual, np.ndarray)
            np.testing.assert_array_equal(actual, expected)
        assert call(logits.half()).dtype == torch.float32
        with pytest.raises(ValueError, match=r'of 4 labels, got logits of \(400, 3\)'):
            call(logits[:, :3])
        with pytest.raises(ValueError, match=r'of 4 labels, got logits of \(\)'):
            call(3.0)


def test_fit_label_that_is_not_valid_is_left_out():
    logits, labels, _ = labelled_logits()
    more_logits = torch.cat([logits, logits[:5] + 40])
    more_labels = torch.cat([labels, torch.full((5, 4), -1)])
    scaler = fit_labels(TemperatureScaler(), more_logits, more_labels, torch.arange(405))
    assert scaler.parameters == fit_per_label('temperature').parameters


@pytest.mark.parametrize('method', METHODS)
def test_transform_labels_on_last_axis_equals_columns(method):
    logits, _, _ = labelled_logits(30)
    scaler = fit_per_label(method)
    for calibrate in (scaler.transform, scaling_module(scaler)):
        torch.testing.assert_close(calibrate(logits[:, None])[:, 0], calibrate(logits))
        torch.testing.assert_close(calibrate(logits[:, None, None])[:, 0, 0], calibrate(logits))


def test_load_scaler_lacking_shared_labels_or_all_labels_raises(tmp_path):
    path = tmp_path / 'scaler.json'
    path.write_text('{"method": "temperature", "options": {}, "parameters": [{"temperature": 2}]}')
    with pytest.raises(UserError, match="lacks 'shared_labels'"):
        load_scaler(path)
    path.write_text(
        '{"method": "temperature", "options": {}, "parameters": [], "shared_labels": []}'
    )
    with pytest.raises(UserError, match='not a scaler that save'):
        load_scaler(path)


@pytest.mark.parametrize('method', METHODS)
def test_build_scaling_of_labels_loads_calibrated_state(method):
    model = torch.nn.Linear(4, 4)
    scaler = fit_per_label(method)
    calibrated = CalibratedOutput(model, scaling_module(scaler))
    loaded = CalibratedOutput(model, build_scaling(method, labels=4))
    loaded.load_state_dict(calibrated.state_dict())
    inputs = torch.randn(9, 4)
    assert torch.equal(loaded(inputs), calibrated(inputs))
    torch.testing.assert_close(loaded(inputs), scaler.transform(model(inputs)))


def test_build_scaling_options_reach_each_label():
    scaling = build_scaling('vector', labels=3, diagonal=2.5)
    assert [label_scaling.scaler.diagonal for label_scaling in scaling] == [2.5, 2.5, 2.5]
    assert isinstance(build_scaling('ets'), AttachedScaling)


def test_attached_scaling_of_other_labels_raises():
    scaling = build_scaling('temperature', labels=3)
    with pytest.raises(UserError, match='of 3 labels, and the model has 4'):
        scaling(torch.zeros(2, 4))
    with pytest.raises(UserError, match='its checkpoint holds none'):
        scaling(torch.zeros(2, 3))
    state = scaling_module(fit_per_label('temperature')).state_dict()
    with pytest.raises(UserError, match='not that of the config'):
        build_scaling('temperature').load_state_dict(state)
    with pytest.raises(RuntimeError, match=r'3\.temperature'):
        scaling.load_state_dict(state)


@pytest.mark.parametrize('labels', [0, -1, True, 2.0])
def test_build_scaling_invalid_labels_raises(labels):
    with pytest.raises((TypeError, ValueError), match='labels must be an integer'):
        build_scaling('temperature', labels=labels)


def test_fold_of_labels_equals_transform():
    scaler = fit_per_label('vector')
    weight = torch.randn(4, 7).double()
    bias = torch.randn(4).double()
    features = torch.randn(20, 7).double()
    folded_weight, folded_bias = scaler.fold(weight, bias)
    actual = features @ folded_weight.T + folded_bias
    np.testing.assert_allclose(actual, scaler.transform(features @ weight.T + bias), atol=1e-12)
