"""What must hold of any scaling."""

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

        def passes():
            reads.append(1)
            yield from zip(logits.split(300), labels.split(300), strict=True)

        scaler = SCALERS[name]().fit(logits[:200], labels[:200]).refine(passes, max_passes=30)
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
        with pytest.raises(ValueError, match='not fitted'):
            SCALERS[name]().transform(logits)
