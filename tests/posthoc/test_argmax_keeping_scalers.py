"""What must hold of every scaling that promises to keep the predicted class."""

import inspect
import warnings

import pytest
import torch
from torch import nn

from mmcalib.posthoc import (
    ClassConditionalScaler,
    PredictedClassTemperatureScaler,
    TemperatureScaler,
    VectorScaler,
)
from mmcalib.posthoc.logit_scaler import with_other_class

KINDS = [
    ClassConditionalScaler,
    PredictedClassTemperatureScaler,
]


def scenes(n=12, num_classes=3, size=(12, 14), *, factor=2.5, seed=0):
    """Maps of logits that are smooth, so that they have regions, and `factor` times too large."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(n, num_classes, *size, generator=generator, dtype=torch.float64)
    logits = 5 * nn.functional.avg_pool2d(noise, 3, stride=1, padding=1)
    other = with_other_class(logits).movedim(1, -1)
    labels = other.softmax(-1).flatten(0, -2).multinomial(1, generator=generator)
    return factor * logits, labels.reshape(other.shape[:-1])


def predicted(logits):
    return with_other_class(logits).argmax(dim=1)


def nll(probs, labels):
    return -probs.double().log().gather(1, labels[:, None]).mean().item()


def fitted(kind, num_classes=3, **options):
    return kind(**options).fit(*scenes(num_classes=num_classes))


def unrelated(dtype, num_classes):
    """Logits with ties, differences of one step of their precision, and of all sizes."""
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(40, num_classes, 6, 5, generator=generator, dtype=torch.float64)
    logits[:10] = logits[:10].round()
    logits[10:20] *= 1e4
    logits[20:25] = 1.875 + torch.finfo(dtype).eps * logits[20:25].round()
    logits[25:27] = 0
    logits[27:30] *= 1e-3
    return logits.to(dtype)


@pytest.mark.parametrize('num_classes', [1, 3, 5])
@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16, torch.float32, torch.float64])
class TestThePredictedClass:
    @pytest.mark.parametrize('kind', KINDS)
    def test_it_is_kept(self, kind, dtype, num_classes):
        scaler, logits = fitted(kind, num_classes), unrelated(dtype, num_classes)
        assert kind.keeps_argmax
        assert torch.equal(predicted(scaler.transform(logits)), predicted(logits))
        # As a model runs it, in its own precision.
        single = logits.float()
        learned = {name: value.float() for name, value in scaler.tensors.items()}
        assert torch.equal(predicted(scaler._apply(single, learned)), predicted(single))

    def test_the_test_can_fail(self, dtype, num_classes):
        """By a scaling that keeps no argmax, and by logits that are merely divided."""
        logits = unrelated(dtype, num_classes)
        scaler = VectorScaler(diagonal=0.0, intercept=0.0).fit(*scenes(num_classes=num_classes))
        assert not torch.equal(predicted(scaler.transform(logits)), predicted(logits))
        if num_classes > 1:
            assert not torch.equal(predicted(logits / 1.5), predicted(logits))


@pytest.mark.parametrize('kind', KINDS)
class TestAnyScaling:
    def test_it_improves_the_likelihood(self, kind):
        logits, labels = scenes(seed=1)
        for num_classes in (1, 3):
            logits, labels = scenes(seed=1, num_classes=num_classes)
            before = nll(with_other_class(logits).softmax(dim=1), labels)
            probs = fitted(kind, num_classes).predict_proba(logits)
            assert probs.shape == with_other_class(logits).shape
            assert nll(probs, labels) < before - 0.03

    def test_what_is_added_to_all_logits_changes_nothing(self, kind):
        logits, labels = scenes()
        offset = 100 * torch.randn(len(logits), 1, *logits.shape[2:], dtype=torch.float64)
        plain, shifted = kind().fit(logits, labels), kind().fit(logits + offset, labels)
        expected = plain.predict_proba(logits)
        for scaler in (plain, shifted):
            torch.testing.assert_close(
                scaler.predict_proba(logits + offset), expected, rtol=0, atol=1e-4
            )

    def test_parameters_make_the_same_scaler(self, kind):
        logits, _ = scenes(seed=1)
        scaler = fitted(kind)
        again = kind.from_parameters(scaler.parameters)
        assert torch.equal(again.transform(logits), scaler.transform(logits))
        with pytest.raises(ValueError, match=r'learns .*, got colour'):
            kind.from_parameters({'colour': 1.0})

    def test_ignored_pixels_are_as_if_they_were_not_there(self, kind):
        logits, labels = scenes()
        logits[:, :, :, :4] = logits[:, :, :, 4:5]  # seen, but not fitted
        labels[:, :, :4] = 255
        other = logits.clone()
        a = kind().fit(logits, labels, ignore_index=255)
        labels[:, :, :4] = 254
        b = kind().fit(other, labels, ignore_index=254)
        assert a.parameters == b.parameters and a.num_predictions_ == labels[:, :, 4:].numel()
        with pytest.raises(ValueError, match='outside'):
            kind().fit(logits, labels, ignore_index=255)
        with pytest.raises(ValueError, match='nothing to fit'):
            kind().fit(logits, torch.full_like(labels, 255), ignore_index=255)

    @pytest.mark.parametrize('wrong', [float('nan'), float('inf')])
    def test_broken_logits_are_counted(self, kind, wrong):
        logits, labels = scenes()
        logits[2, 1, 3, 3] = wrong
        with pytest.raises(ValueError, match='1 of 6048 logits are NaN or infinite'):
            kind().fit(logits, labels)

    @pytest.mark.filterwarnings('ignore:the temperature reached its bound')
    @pytest.mark.parametrize('truth', ['all right', 'all wrong'])
    def test_labels_that_say_all_or_nothing(self, kind, truth):
        logits, _ = scenes()
        right = predicted(logits)
        labels = right if truth == 'all right' else (right + 1) % 3
        scaler = kind().fit(logits, labels)
        before, after = (
            nll(probs, labels) for probs in (logits.softmax(dim=1), scaler.predict_proba(logits))
        )
        assert after < before
        assert torch.equal(predicted(scaler.transform(logits)), right)

    def test_one_image(self, kind):
        """Pixels of one image count as one prediction, so all but the temperature stays."""
        logits, labels = (part[:1] for part in scenes())
        expected = TemperatureScaler().fit(logits, labels).predict_proba(logits)
        found = kind().fit(logits, labels).predict_proba(logits)
        torch.testing.assert_close(found, expected, rtol=0, atol=0.03)

    def test_equal_logits_are_refused_and_leave_the_old_fit(self, kind):
        scaler = fitted(kind)
        before = scaler.parameters
        with pytest.raises(ValueError, match='all equal'):
            scaler.fit(torch.zeros(2, 3, 4, 4), torch.zeros(2, 4, 4, dtype=torch.long))
        assert scaler.parameters == before

    @pytest.mark.parametrize('num_classes', [1, 3])
    def test_onnxruntime_runs_it(self, kind, num_classes, tmp_path):
        onnxruntime = pytest.importorskip('onnxruntime')
        pytest.importorskip('onnx')
        scaler = fitted(kind, num_classes)
        path = str(tmp_path / 'scaler.onnx')
        # PyTorch before 2.5 has this exporter alone.
        has_two = 'dynamo' in inspect.signature(torch.onnx.export).parameters
        exporter = {'dynamo': False} if has_two else {}
        with warnings.catch_warnings():
            warnings.simplefilter('ignore')
            torch.onnx.export(
                Applied(scaler).eval(), (torch.randn(2, num_classes, 9, 11),), path,
                input_names=['logits'], output_names=['scaled'], opset_version=17, **exporter,
                dynamic_axes={'logits': {0: 'n', 2: 'h', 3: 'w'}},
            )  # fmt: skip
        session = onnxruntime.InferenceSession(path, providers=['CPUExecutionProvider'])
        for size in ((9, 11), (40, 33)):
            logits, _ = scenes(3, num_classes, size, seed=2)
            (found,) = session.run(None, {'logits': logits.float().numpy()})
            torch.testing.assert_close(
                torch.as_tensor(found), scaler.transform(logits.float()), rtol=1e-4, atol=1e-4
            )


class Applied(nn.Module):
    """A scaling as a part of a model."""

    def __init__(self, scaler):
        super().__init__()
        self.scaler = scaler
        for name, value in scaler.tensors.items():
            self.register_buffer(name, value.float())

    def forward(self, logits):
        return self.scaler._apply(logits, dict(self.named_buffers()))


@pytest.mark.parametrize('kind', KINDS)
def test_rows_are_pixels(kind):
    logits, labels = scenes()
    rows, truth = logits.movedim(1, -1).flatten(0, -2), labels.flatten()
    images = torch.arange(len(logits)).repeat_interleave(labels[0].numel())
    assert kind().fit(logits, labels).parameters == kind().fit(rows, truth, images).parameters
