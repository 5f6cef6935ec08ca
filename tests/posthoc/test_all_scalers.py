"""What must hold of any scaling."""

import copy
import doctest
import inspect
import json
import warnings

import numpy as np
import pytest
import torch
from overconfident import draw, draw_labels, nll
from scipy.special import expit
from scipy.special import softmax as scipy_softmax

from mmcalib.checks import UserError
from mmcalib.posthoc import SCALERS, MatrixScaler, PlattScaler, load_scaler, logit_scaler


def most_classes(name):
    return 4 if 'softmax' in SCALERS[name].heads else 2


def takes(name, num_logits):
    return num_logits <= most_classes(name) and (num_logits > 1 or 'sigmoid' in SCALERS[name].heads)


# One logit of a sigmoid, two and four of a softmax.
CASES = [(name, k) for name in SCALERS for k in (1, 2, 4) if takes(name, k)]
AFFINE = [case for case in CASES if SCALERS[case[0]].affine]
# Those that come with a penalty, or with a prior, which few predictions do not outweigh.
COUNTING = (
    'vector', 'matrix', 'isotonic', 'platt', 'class-temperatures',
    'class-conditional',
)  # fmt: skip


@pytest.mark.parametrize(('name', 'num_classes'), CASES)
class TestAll:
    def test_it_improves_the_likelihood(self, name, num_classes):
        logits, labels = draw(num_classes=num_classes)
        scaler = SCALERS[name]().fit(logits, labels)
        assert scaler.num_predictions_ == len(labels)
        assert nll(scaler.transform(logits), labels) < nll(logits, labels) - 0.1
        probs = scaler.predict_proba(logits)
        assert probs.shape == (len(labels), max(num_classes, 2))
        assert nll(np.log(probs), labels) == pytest.approx(nll(scaler.transform(logits), labels))

    def test_kinds(self, name, num_classes):
        logits, labels = draw(num_classes=num_classes)
        scaler = SCALERS[name]().fit(torch.as_tensor(logits), torch.as_tensor(labels))
        expected = scaler.transform(logits)
        assert isinstance(expected, np.ndarray) and expected.dtype == np.float64
        for dtype, result in (
            (torch.float64, torch.float64), (torch.float32, torch.float32),
            (torch.float16, torch.float32), (torch.bfloat16, torch.float32),
        ):  # fmt: skip
            given = torch.as_tensor(logits).to(dtype)
            found = scaler.transform(given)
            assert found.dtype == result
            torch.testing.assert_close(
                found.double(), torch.as_tensor(scaler.transform(given.double().numpy())),
                rtol=1e-5, atol=1e-5,
            )  # fmt: skip
        # Half precision is fitted in float64.
        rounded = torch.as_tensor(logits).half()
        a = SCALERS[name]().fit(rounded, labels).transform(logits)
        b = SCALERS[name]().fit(rounded.double(), labels).transform(logits)
        np.testing.assert_array_equal(a, b)

    def test_parts_are_the_whole(self, name, num_classes, monkeypatch):
        logits, labels = draw(num_classes=num_classes)
        whole = SCALERS[name]().fit(logits, labels).transform(logits)
        monkeypatch.setattr(logit_scaler, '_CHUNK_VALUES', 7 * num_classes)
        np.testing.assert_allclose(
            SCALERS[name]().fit(logits, labels).transform(logits), whole, rtol=1e-5, atol=1e-5
        )

    def test_what_cannot_be_fitted_is_said(self, name, num_classes):
        logits, labels = draw(6, num_classes=num_classes)
        cases = [
            (logits[:0], labels[:0], ValueError, 'nothing to fit'),
            (logits, labels[:5], ValueError, 'shapes?|must be'),
            (logits[:, 0], labels, ValueError, 'must be'),
            (logits, labels + 0.5, TypeError, 'integers'),
            (logits, labels + 9, ValueError, r'outside \[0, '),
            (logits, labels - 9, ValueError, r'outside \[0, '),
        ]
        for wrong in (np.nan, np.inf, -np.inf):
            bad = logits.copy()
            bad[2, 0] = wrong
            cases.append((bad, labels, ValueError, f'1 of {logits.size} logits'))
        for z, y, error, message in cases:
            with pytest.raises(error, match=message):
                SCALERS[name]().fit(z, y)

    def test_lists_are_arrays(self, name, num_classes):
        logits, labels = draw(200, num_classes=num_classes)
        expected = SCALERS[name]().fit(logits, labels)
        scaler = SCALERS[name]().fit(logits.tolist(), labels.tolist())
        assert scaler.parameters == expected.parameters
        for method in ('transform', 'predict_proba'):
            found = getattr(scaler, method)(logits.tolist())
            assert isinstance(found, np.ndarray)
            np.testing.assert_array_equal(found, getattr(expected, method)(logits))

    def test_probabilities_are_warned_of(self, name, num_classes):
        logits, labels = draw(200, num_classes=num_classes)
        probs = expit(logits) if num_classes == 1 else scipy_softmax(logits, axis=1)
        scaler = SCALERS[name]().fit(logits, labels)
        with warnings.catch_warnings():
            warnings.simplefilter('error')
            scaler.transform(logits), scaler.predict_proba(logits), scaler.transform(logits[:0])
        for call in (
            lambda: scaler.transform(probs),
            lambda: scaler.predict_proba(torch.as_tensor(probs).half()),
            lambda: SCALERS[name]().fit(probs, labels),
        ):
            with pytest.warns(UserWarning, match='look like probabilities') as said:
                call()
            assert __file__ in {warning.filename for warning in said}


@pytest.mark.parametrize(('name', 'num_classes'), AFFINE)
class TestAffine:
    def test_folding_a_layer_scales_its_outputs(self, name, num_classes):
        logits, labels = draw(num_classes=num_classes)
        scaler = SCALERS[name]().fit(logits, labels)
        torch.manual_seed(0)
        layer = torch.nn.Conv2d(3, num_classes, 3, padding=1).double()
        inputs = torch.randn(2, 3, 5, 6, dtype=torch.float64)
        before = layer(inputs)
        weight, bias = scaler.fold(layer.weight, layer.bias)
        after = torch.nn.functional.conv2d(inputs, weight, bias, padding=1)
        rows = before.movedim(1, -1).reshape(-1, num_classes)
        expected = scaler.transform(rows).reshape(2, 5, 6, num_classes).movedim(-1, 1)
        torch.testing.assert_close(after, expected)
        if name == 'temperature':
            assert scaler.fold(layer.weight, None)[1] is None
        else:
            with pytest.raises(ValueError, match='no bias'):
                scaler.fold(layer.weight, None)


@pytest.mark.parametrize('name', SCALERS)
class TestWhatASoftmaxIgnores:
    """A number added to all logits of a prediction, another one to each."""

    @pytest.mark.parametrize('size', [1.0, 1e3, 1e7])
    def test_it_changes_neither_the_fit_nor_the_probabilities(self, name, size):
        logits, labels = draw(300, num_classes=most_classes(name))
        new, _ = draw(300, num_classes=most_classes(name), seed=1)
        offsets = np.random.default_rng(1).normal(size=(len(logits), 1)) * size + size
        plain = SCALERS[name]().fit(logits, labels)
        shifted = SCALERS[name]().fit(logits + offsets, labels)
        for key, value in plain.parameters.items():
            np.testing.assert_allclose(shifted.parameters[key], value, rtol=1e-5, atol=1e-6)
        for scaler in (plain, shifted):
            np.testing.assert_allclose(
                scaler.predict_proba(new + offsets), plain.predict_proba(new), atol=1e-6
            )

    def test_of_a_sigmoid_it_is_all_that_counts(self, name):
        logits, labels = draw(300, num_classes=1)
        scaler = SCALERS[name]().fit(logits, labels)
        assert np.abs(scaler.predict_proba(logits + 1) - scaler.predict_proba(logits)).max() > 0.05
        if name == 'temperature':
            assert scaler.fit(logits + 2, labels).temperature_ != pytest.approx(2.5, rel=0.2)
        elif name in ('vector', 'matrix'):  # the shift takes it up
            other = SCALERS[name](intercept=0.0).fit(logits + 1, labels)
            expected = SCALERS[name](intercept=0.0).fit(logits, labels).predict_proba(logits)
            np.testing.assert_allclose(other.predict_proba(logits + 1), expected, atol=0.02)

    def test_single_precision_keeps_what_it_holds(self, name):
        """Logits of 1e5 are apart by steps of 0.008, the scaled ones must not be rounded again."""
        logits, labels = draw(300, num_classes=most_classes(name))
        scaler = SCALERS[name]().fit(logits, labels)
        single = torch.as_tensor(logits + 1e5).float()
        found = scaler.predict_proba(single)
        assert found.dtype == torch.float32
        expected = scaler.predict_proba(single.double() - 1e5)
        torch.testing.assert_close(found.double(), expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize('name', SCALERS)
class TestBeforeTheFit:
    def test_it_is_said(self, name):
        scaler, (logits, labels) = SCALERS[name](), draw(6)
        layer = torch.nn.Linear(3, 4)
        asked = [
            lambda: scaler.transform(logits),
            lambda: scaler.predict_proba(logits),
            lambda: scaler.parameters,
            lambda: scaler.save('never.json'),
            *(lambda key=key: getattr(scaler, f'{key}_') for key in scaler.learned),
        ]
        if scaler.affine:
            asked.append(lambda: scaler.fold(layer.weight, layer.bias))
        if name == 'temperature':
            asked += [lambda: scaler.at_bound_, lambda: scaler.standard_error(logits, labels)]
        for ask in asked:
            with pytest.raises(ValueError, match=f'^{type(scaler).__name__} is not fitted yet: '):
                ask()

    def test_python_still_finds_its_way(self, name):
        scaler = SCALERS[name]()
        assert not hasattr(scaler, 'shift_') and not hasattr(scaler, 'parameters')
        with pytest.raises(AttributeError, match="no attribute 'colour'"):
            scaler.colour  # noqa: B018
        fitted = copy.deepcopy(scaler).fit(*draw(50, num_classes=most_classes(name)))
        assert fitted.parameters and not hasattr(scaler, 'num_predictions_')
        with pytest.raises(AttributeError, match="no attribute 'colour_'"):
            fitted.colour_  # noqa: B018


@pytest.mark.parametrize('name', SCALERS)
class TestWhatIsLeftAlone:
    def test_a_fit_that_fails_leaves_the_old_one(self, name):
        k = most_classes(name)
        scaler = SCALERS[name]().fit(*draw(100, num_classes=k))
        before = scaler.parameters
        with pytest.raises(ValueError, match='all equal'):
            scaler.fit(np.zeros((12, k)), np.arange(12) % k)
        assert scaler.parameters == before and scaler.num_predictions_ == 100

    def test_the_callers_gradient(self, name):
        logits, labels = (torch.as_tensor(a) for a in draw(50, num_classes=most_classes(name)))
        logits.requires_grad_()
        scaler = SCALERS[name]().fit(logits, labels)
        assert logits.grad is None
        scaler.transform(logits)[:, 0].sum().backward()
        assert logits.grad.abs().max() > 0


@pytest.mark.parametrize('name', SCALERS)
@pytest.mark.parametrize('dtype', [torch.float16, torch.float32, torch.float64])
def test_probabilities_in_place_of_logits_are_warned_of(name, dtype):
    logits, labels = (torch.as_tensor(a) for a in draw(num_classes=most_classes(name)))
    with pytest.warns(UserWarning, match='look like probabilities'):
        SCALERS[name]().fit(logits.softmax(dim=1).to(dtype), labels)
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        SCALERS[name]().fit(logits.to(dtype), labels)
        SCALERS[name]().fit(logits.log_softmax(dim=1), labels)


@pytest.mark.parametrize('name', SCALERS)
class TestKept:
    def test_parameters_make_the_same_scaler(self, name):
        logits, labels = draw(200, num_classes=most_classes(name))
        scaler = SCALERS[name]().fit(logits, labels)
        again = type(scaler).from_parameters(scaler.parameters)
        np.testing.assert_array_equal(again.transform(logits), scaler.transform(logits))

    def test_other_names_are_refused(self, name):
        with pytest.raises(ValueError, match=r'learns .*, got colour'):
            SCALERS[name].from_parameters({'colour': 1.0})

    def test_a_file(self, name, tmp_path):
        options = {'vector': dict(intercept=0.5), 'matrix': dict(off_diagonal=3.0)}.get(name, {})
        logits, labels = draw(200, num_classes=most_classes(name))
        scaler = SCALERS[name](**options).fit(logits, labels)
        assert scaler.options.items() >= options.items()
        scaler.save(tmp_path / 'scaler.json')
        content = json.loads((tmp_path / 'scaler.json').read_text())
        assert content['method'] == name and content['options'] == scaler.options
        again = load_scaler(tmp_path / 'scaler.json')
        assert type(again) is type(scaler) and again.options == scaler.options
        np.testing.assert_array_equal(again.transform(logits), scaler.transform(logits))


@pytest.mark.parametrize(('name', 'num_classes'), CASES)
def test_maps_are_rows_of_pixels(name, num_classes):
    logits, labels = (torch.as_tensor(a) for a in draw(2 * 5 * 30, num_classes=num_classes))
    maps = logits.reshape(2, 5, 30, num_classes).movedim(-1, 1)
    truth = labels.reshape(2, 5, 30).clone()
    truth[0, 0, :7] = 255
    valid = (truth != 255).flatten()
    scaler = SCALERS[name]().fit(maps, truth, ignore_index=255)
    images = torch.arange(2).repeat_interleave(150)
    expected = SCALERS[name]().fit(logits[valid], labels[valid], images[valid])
    assert scaler.parameters == expected.parameters
    assert scaler.num_predictions_ == 293
    rows = expected.predict_proba(logits)
    found = scaler.predict_proba(maps).movedim(1, -1).flatten(0, -2)
    torch.testing.assert_close(found, rows)


def centred(z):
    return z - z.mean(axis=1, keepdims=True)


def softmax(z):
    return scipy_softmax(z, axis=1)


def of_confidence(z, curve):
    """Log-probabilities in which the highest probability p is curve(p)."""
    probs = softmax(z)
    best = probs.argmax(axis=1)[:, None]
    conf = np.take_along_axis(probs, best, axis=1)
    scaled = probs * (1 - curve(conf)) / (1 - conf)
    np.put_along_axis(scaled, best, curve(conf), axis=1)
    return np.log(scaled)


def of_predicted_class(z, temperatures):
    return z / temperatures[z.argmax(axis=1)][:, None]


def below_the_top(z, shift):
    """Every other class lower by a shift of its own, where its gap is scaled."""
    best = z.argmax(axis=1)[:, None]
    top = np.take_along_axis(z, best, axis=1)
    scaled = (z - top) / 4 - np.array(shift)
    np.put_along_axis(scaled, best, 0, axis=1)
    return scaled


_MATRIX = np.array([[0.4, 0.1, 0, 0], [0, 0.3, 0.2, 0], [0, 0, 0.5, -0.2], [0.1, 0, 0, 0.4]])
# What labels are drawn from, by the logits that a scaler gets: a map of its own kind.
TRUTHS = {
    'temperature': (4, lambda z: z / 2.5),
    'vector': (4, lambda z: centred(z) * [0.2, 0.8, 0.4, 0.5] + [0.5, -0.5, 0, 0]),
    'matrix': (4, lambda z: centred(z) @ _MATRIX.T + [0.5, -0.5, 0, 0]),
    'ets': (4, lambda z: np.log(0.6 * softmax(z / 4) + 0.2 * softmax(z) + 0.2 / 4)),
    'isotonic': (2, lambda z: of_confidence(z, lambda p: 0.5 + 0.2 * p**4)),
    'platt': (1, lambda z: 0.4 * z + 0.7),
    'beta': (1, lambda z: 0.2 * np.log(expit(z)) - 0.7 * np.log(expit(-z)) + 0.2),
    'class-temperatures': (4, lambda z: of_predicted_class(z, np.array([1, 8, 2, 20]))),
    'class-conditional': (4, lambda z: below_the_top(z, [0, 2, 0.5, 1])),
}


@pytest.mark.parametrize('name', SCALERS)
class TestTheTruth:
    def both_errors(self, name, fitted):
        num_classes, truth = TRUTHS[name]
        rng = np.random.default_rng(3)
        logits, new = rng.normal(size=(2, 6000, num_classes)) * 4
        scaler = SCALERS[fitted]().fit(logits, draw_labels(truth(logits), rng))
        expected = softmax(logit_scaler.with_other_class(torch.as_tensor(truth(new))).numpy())
        raw = softmax(logit_scaler.with_other_class(torch.as_tensor(new)).numpy())
        found = scaler.predict_proba(new)
        return np.abs(found - expected).mean(), np.abs(raw - expected).mean()

    def test_it_is_found(self, name):
        error, before = self.both_errors(name, name)
        assert error < 0.025 < 0.08 < before

    def test_a_temperature_does_not_find_it(self, name):
        """Of another kind, so the test above can fail."""
        error, _ = self.both_errors(name, 'temperature')
        assert (error > 0.025) == (name != 'temperature')


class TestTheArgmax:
    """Of inputs that are unrelated to what was fitted."""

    def changed(self, scaler, num_classes):
        logits, labels = draw(300, num_classes=num_classes)
        scaler.fit(logits, labels)
        changed = 0
        for size in (0.01, 1, 10, 300):
            new = np.random.default_rng(5).normal(size=(2000, num_classes)) * size
            scaled = scaler.transform(new)
            assert np.isfinite(scaled).all()
            if num_classes == 1:
                changed += ((new > 0) != (scaled > 0)).sum()
            else:
                changed += (new.argmax(axis=1) != scaled.argmax(axis=1)).sum()
        return changed

    @pytest.mark.parametrize(('name', 'k'), [c for c in CASES if SCALERS[c[0]].keeps_argmax])
    def test_it_is_kept(self, name, k):
        assert self.changed(SCALERS[name](), k) == 0

    def test_a_matrix_without_penalties_changes_it(self):
        free = MatrixScaler(diagonal=0.0, off_diagonal=0.0, intercept=0.0)
        assert self.changed(free, 4) > 20 and not MatrixScaler.keeps_argmax

    def test_so_does_a_shift_of_the_threshold(self):
        assert self.changed(PlattScaler(), 1) > 20 and not PlattScaler.keeps_argmax


@pytest.mark.parametrize(('name', 'k'), [c for c in CASES if c[1] > 1])
def test_the_classes_have_no_order(name, k):
    logits, labels = draw(num_classes=k)
    new, _ = draw(num_classes=k, seed=1)
    order = np.array([2, 0, 3, 1] if k == 4 else [1, 0])
    scaler = SCALERS[name]().fit(logits, labels)
    permuted = SCALERS[name]().fit(logits[:, order], np.argsort(order)[labels])
    expected = scaler.predict_proba(new)[:, order]
    np.testing.assert_allclose(permuted.predict_proba(new[:, order]), expected, atol=1e-5)
    if name in ('vector', 'matrix', 'platt', 'beta'):  # one that learned another order differs
        assert np.abs(scaler.predict_proba(new[:, order]) - expected).max() > 0.01


class TestTheOrderOfTwoClasses:
    @pytest.mark.parametrize('name', [name for name in SCALERS if takes(name, 1)])
    def test_it_is_kept(self, name):
        scaler = SCALERS[name]().fit(*draw(300, num_classes=1))
        scaled = scaler.transform(np.linspace(-60, 60, 5001)[:, None])[:, 0]
        assert (np.diff(scaled) >= -1e-12).all() and scaled[-1] > scaled[0] + 2

    def test_platt_follows_logits_that_mislead(self):
        logits, labels = draw(300, num_classes=1)
        with pytest.warns(UserWarning, match='almost no information'):
            scaler = PlattScaler().fit(-logits, labels)
        assert (np.diff(scaler.transform(np.linspace(-60, 60, 50)[:, None])[:, 0]) < 0).all()


@pytest.mark.parametrize(('name', 'k'), CASES)
class TestPoorData:
    @pytest.fixture(autouse=True)
    def _quiet(self):
        with warnings.catch_warnings():
            warnings.simplefilter('ignore')  # of a temperature at its bound
            yield

    def finite(self, scaler, k):
        new = torch.randn(50, k, dtype=torch.float64, generator=torch.manual_seed(0)) * 30
        for values in (new, new.float(), new.half()):
            assert scaler.transform(values).isfinite().all()
            assert (scaler.predict_proba(values).sum(dim=1) - 1).abs().max() < 1e-5

    def test_too_few(self, name, k):
        least = SCALERS[name].least_predictions
        logits, labels = draw(max(least, 2), num_classes=k)
        labels[:2] = 0, 1
        self.finite(SCALERS[name]().fit(logits, labels), k)
        if least > 1:
            with pytest.raises(ValueError, match=f'at least {least} predictions, got {least - 1};'):
                SCALERS[name]().fit(logits[1:], labels[1:])

    def test_all_right_and_all_wrong(self, name, k):
        labels = np.arange(40) % max(k, 2)
        logits = 3 * (2 * labels[:, None] - 1.0) if k == 1 else 3 * np.eye(k)[labels]
        noise = np.random.default_rng(0).normal(size=logits.shape) * 0.1
        for sign in (1, -1):
            scaler = SCALERS[name]().fit(sign * logits + noise, labels)
            self.finite(scaler, k)
            sure = np.take_along_axis(scaler.predict_proba(sign * logits), labels[:, None], 1)
            # Platt's scale may be negative.
            assert (sure.mean() > 0.8) == (sign == 1 or name == 'platt')

    def test_a_class_that_never_occurs(self, name, k):
        logits, labels = draw(200, num_classes=k)
        if k == 4:
            logits, labels = logits[labels != 2], labels[labels != 2]
            self.finite(SCALERS[name]().fit(logits, labels), k)

    def test_one_class(self, name, k):
        logits, labels = draw(200, num_classes=k)
        if name in ('vector', 'matrix', 'platt', 'beta'):
            with pytest.raises(ValueError, match=r'all labels have class 1: .* temperature'):
                SCALERS[name]().fit(logits, np.ones_like(labels))
        else:
            self.finite(SCALERS[name]().fit(logits, np.ones_like(labels)), k)


@pytest.mark.parametrize('name', SCALERS)
def test_copies_of_a_row_in_one_group_are_one_row(name):
    logits, labels = draw(60, num_classes=most_classes(name))
    new, _ = draw(200, num_classes=most_classes(name), seed=1)
    once = SCALERS[name]().fit(logits, labels).predict_proba(new)
    copies = [np.repeat(a, 5, axis=0) for a in (logits, labels, np.arange(60))]
    grouped = SCALERS[name]().fit(*copies).predict_proba(new)
    np.testing.assert_allclose(grouped, once, atol=1e-5)
    apart = SCALERS[name]().fit(*copies[:2]).predict_proba(new)
    assert (np.abs(apart - once).max() > 1e-3) == (name in COUNTING)


@pytest.mark.parametrize('name', [name for name in SCALERS if most_classes(name) == 2])
def test_more_classes_than_two_are_refused(name):
    with pytest.raises(ValueError, match=r'two classes, \(N, 1\) or \(N, 2\), got \(50, 3\)'):
        SCALERS[name]().fit(*draw(50, num_classes=3))
    scaler = SCALERS[name]().fit(*draw(50, num_classes=2))
    with pytest.raises(ValueError, match='two classes'):
        scaler.transform(np.zeros((5, 3)))


@pytest.mark.parametrize(('name', 'num_classes'), [c for c in CASES if c[1] != 2])
def test_within_a_model(name, num_classes):
    """In single precision, of maps, with tensors of its own."""
    scaler = SCALERS[name]().fit(*draw(300, num_classes=num_classes))
    tensors = {key: value.float() for key, value in scaler.tensors.items()}
    maps = torch.randn(2, num_classes, 5, 6, generator=torch.manual_seed(0)) * 5
    found = scaler._apply(maps, tensors)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, scaler.transform(maps), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize('name', [name for name in SCALERS if not SCALERS[name].affine])
def test_onnx(name, tmp_path):
    runtime = pytest.importorskip('onnxruntime')
    pytest.importorskip('onnxscript')
    if 'dynamo' not in inspect.signature(torch.onnx.export).parameters:
        pytest.skip('needs PyTorch 2.5, which has this exporter')
    scaler = SCALERS[name]().fit(*draw(300, num_classes=most_classes(name)))

    class Scaled(torch.nn.Module):
        def __init__(self):
            super().__init__()
            for key, value in scaler.tensors.items():
                self.register_buffer(key, value.float())

        def forward(self, logits):
            return scaler._apply(logits, dict(self.named_buffers()))

    maps = torch.randn(2, most_classes(name), 5, 6, generator=torch.manual_seed(0)) * 5
    file = str(tmp_path / 'scaled.onnx')
    torch.onnx.export(Scaled().eval(), (maps,), file, dynamo=True, verbose=False)
    session = runtime.InferenceSession(file, providers=['CPUExecutionProvider'])
    (found,) = session.run(None, {session.get_inputs()[0].name: maps.numpy()})
    np.testing.assert_allclose(found, scaler.transform(maps).numpy(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ('content', 'message'),
    [
        ('{', 'is not JSON'),
        ('[]', 'is not a scaler'),
        ('{"method": "platt"}', 'is not a scaler'),
        (
            '{"method": "colour", "options": {}, "parameters": {}, "num_logits": 3, '
            '"version": "9"}',
            "'colour' of mmcalib 9; .* knows temperature",
        ),
    ],
)
def test_a_file_that_is_none_of_a_scaler(content, message, tmp_path):
    path = tmp_path / 'scaler.json'
    path.write_text(content)
    with pytest.raises(UserError, match=message):
        load_scaler(path)


def test_the_example(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (test,) = doctest.DocTestFinder().find(load_scaler, globs={})
    assert len(test.examples) >= 5 and doctest.DocTestRunner().run(test).failed == 0


@pytest.mark.parametrize(('name', 'k'), CASES)
class TestOtherLogits:
    def test_another_number_or_shape_is_refused(self, name, k, tmp_path):
        logits, labels = (torch.as_tensor(a) for a in draw(200, num_classes=k))
        scaler = SCALERS[name]().fit(logits, labels)
        scaler.save(tmp_path / 'scaler.json')
        for fitted in (scaler, load_scaler(tmp_path / 'scaler.json')):
            with pytest.raises(ValueError, match=r'fitted to .* logits|two classes'):
                fitted.predict_proba(torch.randn(5, k + 3))
            for shape in [(k,), (k, 4, 4)]:
                with pytest.raises(ValueError, match='must be'):
                    fitted.transform(torch.randn(shape))
            assert fitted.predict_proba(logits[:0]).shape == (0, max(k, 2))

    def test_nan_comes_out_as_nan(self, name, k):
        logits, labels = draw(200, num_classes=k)
        scaler = SCALERS[name]().fit(logits, labels)
        new = logits[:3].copy()
        new[1] = np.nan
        found = scaler.predict_proba(new)
        assert np.isnan(found[1]).all() and np.isfinite(found[[0, 2]]).all()

    def test_groups_have_names(self, name, k):
        logits, labels = draw(200, num_classes=k)
        numbers = np.arange(200) // 10
        names = np.array([f'patient {99 - n}' for n in numbers])
        found, expected = (SCALERS[name]().fit(logits, labels, g) for g in (names, numbers))
        np.testing.assert_allclose(found.transform(logits), expected.transform(logits), rtol=1e-6)
