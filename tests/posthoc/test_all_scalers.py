"""What must hold of any scaling."""

import copy
import warnings

import numpy as np
import pytest
import torch
from overconfident import draw, nll

from mmcalib.posthoc import SCALERS, logit_scaler


@pytest.mark.parametrize('name', SCALERS)
@pytest.mark.parametrize('num_classes', [1, 4])
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

    def test_refining_from_a_sample_ends_at_the_optimum(self, name, num_classes):
        logits, labels = (torch.as_tensor(a) for a in draw(2000, num_classes=num_classes))
        reads = []

        def read():
            reads.append(1)
            yield from zip(logits.split(300), labels.split(300), strict=True)

        scaler = SCALERS[name]().fit(logits[:200], labels[:200]).refine(read, max_passes=30)
        assert scaler.num_predictions_ == 2000
        expected = SCALERS[name]().fit(logits, labels)
        if name == 'temperature':  # the others keep the sample's T, from which they are penalised
            assert scaler.temperature_ == pytest.approx(expected.temperature_, rel=1e-5)
            assert len(reads) <= 6
        found, best = (nll(s.transform(logits.numpy()), labels) for s in (scaler, expected))
        assert found == pytest.approx(best, abs=2e-3)
        assert len(reads) <= 40

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


@pytest.mark.parametrize('name', SCALERS)
class TestWhatASoftmaxIgnores:
    """A number added to all logits of a prediction, another one to each."""

    @pytest.mark.parametrize('size', [1.0, 1e3, 1e7])
    def test_it_changes_neither_the_fit_nor_the_probabilities(self, name, size):
        logits, labels = draw(300)
        offsets = np.random.default_rng(1).normal(size=(len(logits), 1)) * size + size
        plain = SCALERS[name]().fit(logits, labels)
        shifted = SCALERS[name]().fit(logits + offsets, labels)
        for key, value in plain.parameters.items():
            np.testing.assert_allclose(shifted.parameters[key], value, rtol=1e-5, atol=1e-6)
        for scaler in (plain, shifted):
            np.testing.assert_allclose(
                scaler.predict_proba(logits + offsets), plain.predict_proba(logits), atol=1e-6
            )

    def test_of_a_sigmoid_it_is_all_that_counts(self, name):
        logits, labels = draw(300, num_classes=1)
        scaler = SCALERS[name]().fit(logits, labels)
        assert np.abs(scaler.predict_proba(logits + 1) - scaler.predict_proba(logits)).max() > 0.05
        if name == 'temperature':
            assert scaler.fit(logits + 2, labels).temperature_ != pytest.approx(2.5, rel=0.2)
        else:  # the shift takes it up
            other = SCALERS[name](intercept=0.0).fit(logits + 1, labels)
            expected = SCALERS[name](intercept=0.0).fit(logits, labels).predict_proba(logits)
            np.testing.assert_allclose(other.predict_proba(logits + 1), expected, atol=0.02)

    def test_single_precision_keeps_what_it_holds(self, name):
        """Logits of 1e5 are apart by steps of 0.008, the scaled ones must not be rounded again."""
        logits, labels = draw(300)
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
        learned = {'temperature': 'temperature_', 'vector': 'scale_', 'matrix': 'matrix_'}[name]
        asked = [
            lambda: scaler.transform(logits),
            lambda: scaler.predict_proba(logits),
            lambda: scaler.fold(layer.weight, layer.bias),
            lambda: scaler.refine(lambda: [(torch.as_tensor(logits), torch.as_tensor(labels))]),
            lambda: scaler.parameters,
            lambda: getattr(scaler, learned),
            lambda: getattr(scaler, 'at_bound_' if name == 'temperature' else 'shift_'),
        ]
        if name == 'temperature':
            asked.append(lambda: scaler.standard_error(logits, labels))
        for ask in asked:
            with pytest.raises(ValueError, match=f'^{type(scaler).__name__} is not fitted yet: '):
                ask()

    def test_python_still_finds_its_way(self, name):
        scaler = SCALERS[name]()
        assert not hasattr(scaler, 'shift_') and not hasattr(scaler, 'parameters')
        with pytest.raises(AttributeError, match="no attribute 'colour'"):
            scaler.colour  # noqa: B018
        fitted = copy.deepcopy(scaler).fit(*draw(50))
        assert fitted.parameters and not hasattr(scaler, 'num_predictions_')
        with pytest.raises(AttributeError, match="no attribute 'colour_'"):
            fitted.colour_  # noqa: B018


@pytest.mark.parametrize('name', SCALERS)
class TestWhatIsLeftAlone:
    def test_a_fit_that_fails_leaves_the_old_one(self, name):
        logits, labels = draw(100)
        scaler = SCALERS[name]().fit(logits, labels)
        before = scaler.parameters
        with pytest.raises(ValueError, match='all equal'):
            scaler.fit(np.zeros((6, 4)), np.arange(6) % 4)
        assert scaler.parameters == before and scaler.num_predictions_ == 100

    def test_the_callers_gradient(self, name):
        logits, labels = (torch.as_tensor(a) for a in draw(50))
        logits.requires_grad_()
        scaler = SCALERS[name]().fit(logits, labels)
        assert logits.grad is None
        scaler.transform(logits).sum().backward()
        assert logits.grad.abs().max() > 0

    def test_refining_needs_predictions(self, name):
        scaler = SCALERS[name]().fit(*draw(50))
        with pytest.raises(ValueError, match='no prediction was read'):
            scaler.refine(lambda: [])
        with pytest.raises(ValueError, match='max_passes'):
            scaler.refine(lambda: [], max_passes=0)


@pytest.mark.parametrize('name', SCALERS)
@pytest.mark.parametrize('dtype', [torch.float16, torch.float32, torch.float64])
def test_probabilities_in_place_of_logits_are_warned_of(name, dtype):
    logits, labels = (torch.as_tensor(a) for a in draw(num_classes=4))
    with pytest.warns(UserWarning, match='look like probabilities'):
        SCALERS[name]().fit(logits.softmax(dim=1).to(dtype), labels)
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        SCALERS[name]().fit(logits.to(dtype), labels)
        SCALERS[name]().fit(logits.log_softmax(dim=1), labels)


@pytest.mark.parametrize('name', SCALERS)
class TestKept:
    def test_parameters_make_the_same_scaler(self, name):
        logits, labels = draw(200)
        scaler = SCALERS[name]().fit(logits, labels)
        again = type(scaler).from_parameters(scaler.parameters)
        np.testing.assert_array_equal(again.transform(logits), scaler.transform(logits))

    def test_other_names_are_refused(self, name):
        with pytest.raises(ValueError, match=r'learns .*, got colour'):
            SCALERS[name].from_parameters({'colour': 1.0})


@pytest.mark.parametrize('name', SCALERS)
@pytest.mark.parametrize('num_classes', [1, 4])
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
