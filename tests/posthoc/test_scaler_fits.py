"""The fit of every scaling: kinds of arrays, devices, poor data, groups, and bare confidences."""

import json
import warnings

import numpy as np
import pytest
import torch
from fitted_scalers import (
    BINARY_METHODS,
    CASES,
    METHODS,
    draw_tensors,
    fit_scaler,
)
from overconfident import draw, nll
from pretended_device import PretendedDevice, there
from scipy.special import expit, softmax
from sklearn.isotonic import isotonic_regression

from mmcalib.errors import UserError
from mmcalib.metrics import expected_calibration_error
from mmcalib.posthoc import SCALERS, fit_rows, load_scaler

SIGMOID_METHODS = [name for name in METHODS if 'sigmoid' in SCALERS[name].heads]


@pytest.mark.parametrize(('method', 'num_logits'), CASES)
class TestAllMethods:
    def test_fit_lists_and_tensors_equal_arrays(self, method, num_logits):
        logits, labels = draw(200, num_classes=num_logits)
        scaler = fit_scaler(method, logits.tolist(), labels.tolist())
        assert scaler.parameters == fit_scaler(method, torch.as_tensor(logits), labels).parameters
        assert (scaler.num_predictions_, scaler.num_logits_) == (200, num_logits)
        scaled = scaler.transform(logits)
        assert isinstance(scaled, np.ndarray) and scaled.dtype == np.float64
        np.testing.assert_array_equal(scaler.transform(logits.tolist()), scaled)
        assert nll(scaled, labels) < nll(logits, labels) - 0.1
        assert scaler.predict_proba(logits[:0]).shape == (0, max(num_logits, 2))

    @pytest.mark.parametrize('dtype', [torch.float64, torch.float32, torch.float16, torch.bfloat16])
    def test_transform_any_precision_is_rounded_at_the_end(self, method, num_logits, dtype):
        logits, labels = draw(200, num_classes=num_logits)
        scaler = fit_scaler(method, logits, labels)
        rounded = torch.as_tensor(logits).to(dtype)
        actual = scaler.transform(rounded)
        expected = scaler.transform(rounded.double()).to(torch.promote_types(dtype, torch.float32))
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)

    def test_fit_half_precision_equals_double(self, method, num_logits):
        logits, labels = draw(200, num_classes=num_logits)
        half = torch.as_tensor(logits).bfloat16()
        expected = fit_scaler(method, half.double(), labels).parameters
        assert fit_scaler(method, half, labels).parameters == expected

    def test_fit_in_small_parts_equals_whole(self, method, num_logits, monkeypatch):
        logits, labels = draw(200, num_classes=num_logits)
        groups = np.arange(200) // 4
        expected = fit_scaler(method, logits, labels, groups).transform(logits)
        monkeypatch.setattr(fit_rows, 'PART_VALUES', 7 * num_logits)
        names = np.array([f'patient {99 - group}' for group in groups])
        actual = fit_scaler(method, logits, labels, names).transform(logits)
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4)

    def test_fit_on_another_device_equals_cpu(self, method, num_logits):
        logits, labels = draw_tensors(60, num_logits)
        groups = torch.arange(60) // 2
        scaler = fit_scaler(method, logits, labels, groups)
        with PretendedDevice():
            scaled = scaler.transform(there(logits))
            other_scaler = fit_scaler(method, there(logits), labels, groups)
            probs = other_scaler.predict_proba(there(logits))
        torch.testing.assert_close(scaled.value, scaler.transform(logits))
        expected = scaler.predict_proba(logits)
        torch.testing.assert_close(probs.value, expected, rtol=0, atol=1e-5)

    @pytest.mark.filterwarnings('ignore:the temperature reached its bound')
    @pytest.mark.parametrize('sign', [1, -1])
    def test_fit_separable_logits_is_finite(self, method, num_logits, sign):
        labels = np.arange(40) % max(num_logits, 2)
        if num_logits == 1:
            logits = 3 * (2 * labels[:, None] - 1.0)
        else:
            logits = 3 * np.eye(num_logits)[labels]
        noise = np.random.default_rng(0).normal(size=logits.shape) * 0.1
        scaler = fit_scaler(method, sign * logits + noise, labels)
        for new_logits in (large_logits(num_logits), large_logits(num_logits).float()):
            assert_finite(scaler, new_logits)
        assert_finite(scaler, large_logits(num_logits).half())
        probs = scaler.predict_proba(sign * logits)
        probs_of_labels = np.take_along_axis(probs, labels[:, None], 1)
        # Platt's scale may be negative.
        is_right = sign == 1 or method == 'platt'
        assert (probs_of_labels.mean() > 0.8) == is_right

    def test_fit_failing_leaves_scaler_as_it_was(self, method, num_logits):
        logits, labels = draw_tensors(60, num_logits)
        scaler = fit_scaler(method, logits, labels)
        parameters_before = scaler.parameters
        with (
            pytest.warns(UserWarning) if num_logits == 1 else warnings.catch_warnings(),
            pytest.raises(ValueError, match='all equal'),
        ):
            scaler.fit(np.zeros((12, num_logits)), np.arange(12) % max(num_logits, 2))
        assert scaler.parameters == parameters_before and scaler.num_predictions_ == 60

    def test_transform_has_gradients_of_logits_alone(self, method, num_logits):
        logits, labels = draw_tensors(60, num_logits)
        logits.requires_grad_()
        scaler = fit_scaler(method, logits, labels)
        assert logits.grad is None
        scaler.transform(logits)[:, 0].sum().backward()
        assert logits.grad.abs().max() > 0

    def test_predict_proba_row_of_nan_spoils_no_other(self, method, num_logits):
        logits, labels = draw_tensors(60, num_logits)
        scaler = fit_scaler(method, logits, labels)
        new_logits = logits[:3].clone()
        new_logits[1] = float('nan')
        probs = scaler.predict_proba(new_logits)
        assert probs[1].isnan().all() and probs[[0, 2]].isfinite().all()


def large_logits(num_logits):
    generator = torch.manual_seed(0)
    return torch.randn(50, num_logits, dtype=torch.float64, generator=generator) * 30


def assert_finite(scaler, logits):
    assert scaler.transform(logits).isfinite().all()
    assert (scaler.predict_proba(logits).sum(dim=1) - 1).abs().max() < 1e-5


@pytest.mark.parametrize('method', [name for name in METHODS if name not in BINARY_METHODS])
def test_fit_class_without_labels_is_finite(method):
    logits, labels = draw(200, num_classes=4)
    has_label = labels != 2
    scaler = fit_scaler(method, logits[has_label], labels[has_label])
    assert scaler.transform(large_logits(4)).isfinite().all()


@pytest.mark.filterwarnings('ignore:the temperature reached its bound')
@pytest.mark.parametrize(
    ('method', 'num_logits'),
    [case for case in CASES if case[0] not in (*BINARY_METHODS, 'vector', 'matrix')],
)
def test_fit_labels_of_one_class_is_finite(method, num_logits):
    logits, _ = draw(200, num_classes=num_logits)
    scaler = fit_scaler(method, logits, np.ones(len(logits), dtype=int))
    assert scaler.transform(large_logits(num_logits)).isfinite().all()


# Of platt and beta, a masked class is one of two.
METHODS_WITHOUT_MASKS = ['vector', 'matrix', 'class-conditional']
# ETS adds uniform probabilities, of which a masked class has its share.
METHODS_WITH_MASKS = ['temperature', 'isotonic', 'class-temperatures']
LEAST_FLOAT = torch.finfo(torch.float32).min
MASKS = [-1e4, -1e9, LEAST_FLOAT, -np.inf]


def with_masked_class(logits, mask):
    """Return logits with a last class of the same logit in every row."""
    return np.concatenate([logits, np.full_like(logits[:, :1], mask)], axis=1)


def draw_questions(mask, num_choices=(3, 4, 5)):
    """Return logits and labels of questions; those with fewer choices mask the last classes."""
    rng = np.random.default_rng(0)
    logits = 3 * rng.normal(size=(400, max(num_choices)))
    counts = rng.choice(num_choices, size=400)
    is_masked = np.arange(max(num_choices)) >= counts[:, None]
    probs = softmax(np.where(is_masked, -np.inf, logits / 3), axis=1)
    labels = np.array([rng.choice(len(row), p=row) for row in probs])
    return np.where(is_masked, mask, logits), labels


def mean_nll(probs, labels):
    return -np.log(probs[np.arange(len(labels)), labels]).mean()


class TestMaskedClasses:
    @pytest.mark.parametrize('mask', MASKS)
    @pytest.mark.parametrize('method', METHODS_WITHOUT_MASKS)
    def test_fit_masked_class_raises_with_remedy(self, method, mask):
        logits, labels = draw(200)
        for dtype in (np.float32, np.float64):
            masked = with_masked_class(logits, mask).astype(dtype)
            message = r'class 4 is masked in 200 of 200 .*leave.*out.*temperature'
            with pytest.raises(UserError, match=message):
                fit_scaler(method, masked, labels)
        both_masked = with_masked_class(with_masked_class(logits, mask), -1e6)
        with pytest.raises(UserError, match='classes 4, 5 are masked'):
            fit_scaler(method, both_masked, labels)

    @pytest.mark.parametrize('mask', MASKS)
    @pytest.mark.parametrize('method', METHODS)
    def test_predict_proba_class_masked_in_some_rows_is_right_or_refused(self, method, mask):
        if method in BINARY_METHODS:
            logits, labels = draw_questions(mask, num_choices=(1, 2))
        else:
            logits, labels = draw_questions(mask)
        few_classes, few_labels = draw(200, num_classes=logits.shape[1])
        for dtype in (np.float32, np.float64):
            values = logits.astype(dtype)
            if not SCALERS[method].takes_masked_classes:
                scaler = fit_scaler(method, few_classes, few_labels)
                for call in (
                    lambda x=values: fit_scaler(method, x, labels),
                    lambda x=values, s=scaler: s.transform(x),
                    lambda x=values, s=scaler: s.predict_proba(x[-50:]),
                ):
                    with pytest.raises(UserError, match=r'masked in .*take a temperature'):
                        call()
                continue
            scaler = fit_scaler(method, values, labels)
            probs = scaler.predict_proba(values)
            np.testing.assert_allclose(softmax(scaler.transform(values), 1), probs, atol=1e-6)
            temperature = fit_scaler('temperature', values, labels)
            # The logits are three times too large.
            assert temperature.temperature_ == pytest.approx(3, rel=0.15)
            best = mean_nll(temperature.predict_proba(values), labels)
            assert mean_nll(probs, labels) < best + (0.005 if method == 'isotonic' else 1e-6)

    @pytest.mark.parametrize('method', METHODS_WITH_MASKS)
    def test_fit_any_mask_learns_the_same(self, method):
        """A question of one choice, which is certain, tells nothing."""
        expected = None
        for mask in MASKS[1:]:
            logits, labels = draw_questions(mask, num_choices=(1, 3, 5))
            for values in (logits, logits.astype(np.float32)):
                probs = fit_scaler(method, values, labels).predict_proba(values)
                expected = probs if expected is None else expected
                np.testing.assert_allclose(probs, expected, atol=1e-5)

    def test_fit_masked_logits_without_information_warns_of_bound(self):
        logits, labels = draw_questions(-1e9)
        for mask in MASKS:
            with pytest.warns(UserWarning, match='almost no information'):
                scaler = fit_scaler('temperature', np.where(logits > -1e9, -logits, mask), labels)
            assert scaler.temperature_ == 100

    def test_fit_label_of_masked_class_raises(self):
        logits, labels = draw_questions(-np.inf)
        labels[:7] = np.isinf(logits[:7]).argmax(axis=1)
        num_wrong = np.isinf(logits[np.arange(400), labels]).sum()
        with pytest.raises(UserError, match=f'-inf for {num_wrong} of 400 labels: mask no class'):
            fit_scaler('temperature', logits, labels)

    def test_fit_votes_with_zeros_remedy_is_better_than_other_floors(self):
        generator = np.random.default_rng(0)
        probs = softmax(draw(2000)[0] / 3, axis=1)
        votes = generator.multinomial(5, probs) / 5
        labels = (probs.cumsum(axis=1) > generator.random((2000, 1))).argmax(axis=1)
        p = torch.from_numpy(votes)
        with pytest.raises(UserError, match='mask no class that is a label') as raised:
            fit_scaler('temperature', p.log(), labels)
        logarithms = {'remedy': eval(str(raised.value).rpartition(', as ')[2])}
        for floor in (1e-38, 1e-7, 1e-3):
            logarithms[floor] = p.clamp(min=floor).log()
        losses = {}
        for name, logits in logarithms.items():
            scaler = fit_scaler('temperature', logits[::2], labels[::2])
            losses[name] = nll(scaler.transform(logits[1::2]).numpy(), labels[1::2])
        assert losses['remedy'] < losses[1e-3] < losses[1e-7] < losses[1e-38]

    @pytest.mark.parametrize('mask', MASKS)
    @pytest.mark.parametrize('method', METHODS_WITH_MASKS)
    def test_predict_proba_masked_class_equals_without_it(self, method, mask):
        logits, labels = draw(200)
        scaler = fit_scaler(method, with_masked_class(logits, mask), labels)
        actual = scaler.predict_proba(with_masked_class(logits, mask))
        expected = fit_scaler(method, logits, labels).predict_proba(logits)
        np.testing.assert_allclose(actual, with_masked_class(expected, 0), atol=1e-6)

    @pytest.mark.parametrize('method', METHODS_WITHOUT_MASKS)
    def test_predict_proba_infinite_logit_raises_with_remedy(self, method):
        logits, labels = draw_tensors(200, 4)
        scaler = fit_scaler(method, logits, labels)
        masked = logits.clone()
        masked[150, 2] = -np.inf
        for call in (scaler.transform, scaler.predict_proba):
            for values in (masked, masked.numpy(), masked.half(), masked.T[None].clone()):
                with pytest.raises(UserError, match=r'class 2 is .*-inf.*leave masked classes out'):
                    call(values)
            assert call(logits).isfinite().all()

    @pytest.mark.parametrize('method', METHODS_WITHOUT_MASKS)
    def test_fit_class_that_is_never_likely_is_not_masked(self, method):
        """Such as one that a network has not learned, and rows without a wrong prediction."""
        logits, labels = draw(200)
        scaler = fit_scaler(method, with_masked_class(logits, -60.0), labels)
        assert np.isfinite(scaler.transform(with_masked_class(logits, -60.0))).all()
        few_logits = with_masked_class(8.0 * np.eye(3)[[0, 1, 2, 0, 1]], -30.0)
        with pytest.warns(UserWarning, match='no prediction is wrong'):
            scaler = fit_scaler(method, few_logits, [0, 1, 2, 0, 1])
        assert np.isfinite(scaler.transform(few_logits)).all()


@pytest.mark.parametrize('method', SIGMOID_METHODS)
def test_fit_logits_without_class_axis_equals_one_column(method, tmp_path):
    logits, labels = draw(200, num_classes=1)
    column_scaler = fit_scaler(method, logits, labels)
    scaler = fit_scaler(method, logits[:, 0], labels)
    assert scaler.parameters == column_scaler.parameters and scaler.num_logits_ == 1
    scaler.save(tmp_path / 'scaler.json')
    expected = column_scaler.transform(logits)[:, 0]
    for same_scaler in (scaler, column_scaler, load_scaler(tmp_path / 'scaler.json')):
        np.testing.assert_array_equal(same_scaler.transform(logits[:, 0]), expected)
        probs = same_scaler.predict_proba(torch.as_tensor(logits[:, 0]))
        np.testing.assert_array_equal(probs, column_scaler.predict_proba(logits))
    assert scaler.transform(logits[:0, 0]).shape == (0,)
    assert scaler.transform(logits[:, 0].tolist()).shape == (200,)
    if method == 'temperature':
        error = scaler.standard_error(logits[:, 0], labels)
        assert error == column_scaler.standard_error(logits, labels)


class TestIsotonic:
    def test_fit_equals_regression_of_scikit_learn(self):
        logits, labels = draw(400, num_classes=3)
        scaler = fit_scaler('isotonic', logits, labels)
        assert scaler.temperature_ == fit_scaler('temperature', logits, labels).temperature_
        conf = softmax(logits / scaler.temperature_, axis=1).max(axis=1)
        order = conf.argsort()
        odds = np.log(conf / (1 - conf))[order]
        is_right = (logits.argmax(axis=1) == labels)[order]
        steps = isotonic_regression(is_right.astype(float))
        knots = []
        errors = []
        for level in np.unique(steps):
            knots.append(odds[steps == level].mean())
            errors.append(1 - level)
        np.testing.assert_allclose(scaler.knots_, knots, atol=1e-9)
        least = 1 / 402
        np.testing.assert_allclose(scaler.errors_, np.clip(errors, least, 1 - least), atol=1e-9)

    def test_fit_dependent_predictions_are_farther_from_0_and_1(self):
        logits, labels = draw(60, num_classes=2)
        groups = np.arange(540) // 9
        scaler = fit_scaler('isotonic', np.repeat(logits, 9, axis=0), np.repeat(labels, 9), groups)
        assert scaler.num_effective_ == pytest.approx(60, rel=1e-6)
        assert scaler.errors_.min() == pytest.approx(1 / 62)

    @pytest.mark.parametrize('dtype', [np.float64, np.float32])
    def test_fit_tied_confidences_in_any_order_of_classes_is_the_same(self, dtype):
        """Votes of ten judges: few confidences, whose sums differ in their last bit."""
        for seed in range(6):
            rng = np.random.default_rng(seed)
            shares = rng.dirichlet(np.ones(4), 600)
            votes = np.array([rng.multinomial(10, row) for row in shares])
            labels = np.array([rng.choice(4, p=row) for row in shares])
            logits = np.log((votes + 0.5) / 12).astype(dtype)
            logits[np.arange(600), votes.argmax(axis=1)] += 0.01  # The order decides no class.
            scaler = fit_scaler('isotonic', logits, labels)
            assert scaler.knots_.isfinite().all() and scaler.errors_.isfinite().all()
            assert np.isfinite(scaler.predict_proba(logits)).all()
            order = [2, 0, 3, 1]
            permuted = fit_scaler('isotonic', logits[:, order], np.argsort(order)[labels])
            torch.testing.assert_close(permuted.knots_, scaler.knots_, rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(permuted.errors_, scaler.errors_)


class TestTemperature:
    def test_fit_ece_grid_is_first_of_lowest_ece(self):
        logits, labels = draw(300)
        grid = [k / 10 for k in range(1, 101)]
        errors = []
        for temperature in grid:
            probs = softmax(logits / temperature, axis=1)
            errors.append(expected_calibration_error(probs, labels))
        expected = grid[np.argmin(errors)]
        scaler = SCALERS['temperature'](criterion='ece-grid').fit(logits + 1e7, labels)
        with PretendedDevice():
            other_scaler = SCALERS['temperature'](criterion='ece-grid')
            other_scaler.fit(there(torch.as_tensor(logits)), torch.as_tensor(labels))
        assert scaler.temperature_ == other_scaler.temperature_ == expected
        assert not scaler.at_bound_ and not other_scaler.at_bound_

    def test_standard_error_equals_spread_of_samples(self):
        temperatures = []
        for seed in range(30):
            temperatures.append(fit_scaler('temperature', *draw(1000, seed=seed)).temperature_)
        logits, labels = draw(1000)
        scaler = fit_scaler('temperature', logits, labels)
        error = scaler.standard_error(logits, labels)
        assert error == pytest.approx(np.std(temperatures), rel=0.35)

    def test_standard_error_copies_of_rows_are_no_information(self):
        logits, labels = draw(1000)
        scaler = fit_scaler('temperature', logits, labels)
        error = scaler.standard_error(logits, labels)
        copied_logits = np.repeat(logits, 4, axis=0)
        copied_labels = np.repeat(labels, 4)
        groups = np.repeat(np.arange(1000), 4)
        actual = scaler.standard_error(copied_logits, copied_labels, groups)
        assert actual == pytest.approx(error)
        actual = scaler.standard_error(copied_logits, copied_labels)
        assert actual == pytest.approx(error / 2)

    @pytest.mark.parametrize(('sign', 'bound'), [(1, 0.01), (-1, 100)])
    def test_fit_separable_logits_warns_of_bound(self, sign, bound, tmp_path):
        labels = np.arange(40) % 4
        logits = sign * 3 * np.eye(4)[labels]
        with pytest.warns(UserWarning, match=f'bound of {bound}') as warned:
            scaler = SCALERS['temperature']().fit(logits, labels)
        assert __file__ in {warning.filename for warning in warned}
        scaler.save(tmp_path / 'scaler.json')
        for bounded_scaler in (scaler, load_scaler(tmp_path / 'scaler.json')):
            assert bounded_scaler.temperature_ == bound and bounded_scaler.at_bound_
            assert np.isnan(bounded_scaler.standard_error(logits, labels))

    @pytest.mark.parametrize('factor', [1e-5, 1e-3, 1e4, 1e8])
    @pytest.mark.parametrize('method', ['temperature', 'isotonic', 'class-temperatures'])
    def test_fit_logits_of_another_scale_scales_temperature(self, method, factor):
        """Cosines have small differences, and sums of a thousand features large ones."""
        logits, labels = draw(400)
        with warnings.catch_warnings():
            warnings.simplefilter('error')
            scaler = fit_scaler(method, factor * logits, labels)
        expected = fit_scaler(method, logits, labels)
        expected_temperature = factor * np.asarray(expected.temperature_)
        np.testing.assert_allclose(scaler.temperature_, expected_temperature, rtol=1e-4)
        probs = scaler.predict_proba(factor * logits)
        np.testing.assert_allclose(probs, expected.predict_proba(logits), atol=1e-3)

    @pytest.mark.parametrize('factor', [1e-3, 1e4, 1e6, 1e8])
    @pytest.mark.parametrize('method', METHODS_WITHOUT_MASKS)
    def test_fit_logits_of_another_scale_masks_no_class(self, method, factor):
        logits, labels = draw(400)
        probs = fit_scaler(method, factor * logits, labels).predict_proba(factor * logits)
        expected = fit_scaler(method, logits, labels).predict_proba(logits)
        np.testing.assert_allclose(probs, expected, atol=0.02)

    @pytest.mark.parametrize('factor', [1e-5, 1e-3, 1e4])
    def test_fit_two_groups_of_another_scale_scales_temperature(self, factor):
        logits, labels = draw(400)
        expected = factor * fit_scaler('temperature', logits, labels).temperature_
        for groups in (None, np.arange(400) // 200):
            scaler = fit_scaler('temperature', factor * logits, labels, groups)
            assert scaler.temperature_ == pytest.approx(expected, rel=1e-6)


@pytest.mark.filterwarnings('ignore:the temperature reached its bound')
@pytest.mark.parametrize('method', SIGMOID_METHODS)
def test_fit_confidence_lowers_calibration_error(method, tmp_path):
    """The confidences are too sure, and too high."""
    odds, labels = draw(8000, num_classes=1)
    conf = expit(odds[:, 0] + 0.8)
    correct = labels == 1
    held_out_conf = conf[1::2]
    held_out_correct = correct[1::2]
    scaler = SCALERS[method]().fit_confidence(conf[::2], correct[::2])
    calibrated = scaler.confidence(held_out_conf)
    error_before = expected_calibration_error(conf=held_out_conf, correct=held_out_correct)
    error_after = expected_calibration_error(conf=calibrated, correct=held_out_correct)
    can_follow_both = method in ('platt', 'beta', 'isotonic')
    assert error_after < (4.5 if can_follow_both else error_before)
    scaler.save(tmp_path / 'scaler.json')
    loaded = load_scaler(tmp_path / 'scaler.json')
    np.testing.assert_array_equal(loaded.confidence(held_out_conf), calibrated)
    assert np.isfinite(scaler.confidence(np.array([0.0, 1.0]))).all()
    assert scaler.confidence(torch.as_tensor(conf).float()).dtype == torch.float32


@pytest.mark.parametrize('method', SIGMOID_METHODS)
def test_fit_confidence_log_odds_from_0_to_1_are_no_probabilities(method):
    rng = np.random.default_rng(0)
    conf = rng.uniform(0.52, 0.72, size=200)
    correct = rng.random(200) < conf
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        scaler = SCALERS[method]().fit_confidence(conf, correct)
        assert scaler.confidence(conf).shape == (200,)


ROUND_CONF = [0.0, 0.5, 0.75, 0.875, 1.0]  # All types of float have these numbers.


@pytest.mark.filterwarnings('ignore:the temperature reached its bound')
@pytest.mark.parametrize('method', SIGMOID_METHODS)
def test_fit_confidence_of_one_any_type_of_float_is_the_same(method, tmp_path):
    rng = np.random.default_rng(0)
    conf = rng.choice(ROUND_CONF, size=400)
    correct = rng.random(400) < 0.2 + 0.6 * conf
    expected_scaler = SCALERS[method]().fit_confidence(conf.tolist(), correct.tolist())
    expected = expected_scaler.confidence(np.array(ROUND_CONF))
    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
        values = torch.as_tensor(conf).to(dtype)
        scaler = SCALERS[method]().fit_confidence(values, torch.as_tensor(correct))
        assert scaler.parameters == expected_scaler.parameters
        scaler.save(tmp_path / 'scaler.json')
        for same_scaler in (scaler, load_scaler(tmp_path / 'scaler.json')):
            actual = same_scaler.confidence(torch.tensor(ROUND_CONF).to(dtype))
            np.testing.assert_allclose(actual, expected, rtol=1e-6)


def test_confidence_of_file_of_0_4_depends_on_type_of_float(tmp_path):
    """So a file means what it did."""
    path = tmp_path / 'scaler.json'
    conf = np.repeat(ROUND_CONF, 40)
    correct = np.random.default_rng(0).random(200) < 0.2 + 0.6 * conf
    scaler = SCALERS['platt']().fit_confidence(conf, correct)
    scaler.save(path)
    content = json.loads(path.read_text())
    del content['least_conf']
    path.write_text(json.dumps(content))
    load_scaler(path).save(path)
    for dtype in (np.float64, np.float32, np.float16):
        actual = load_scaler(path).confidence(np.ones(1, dtype=dtype))
        least = float(np.finfo(dtype).eps) / 2
        odds = np.log1p(-least) - np.log(least)
        assert actual[0] == pytest.approx(scaler.predict_proba([[odds]])[0, 1], rel=1e-6)
