"""A scaling as a module: in PyTorch, in ONNX, and in a state dict."""

import inspect

import pytest
import torch
from overconfident import draw

from mmcalib.checks import UserError
from mmcalib.posthoc import SCALERS
from mmcalib.posthoc.attached_scaling import AttachedScaling

has_two = 'dynamo' in inspect.signature(torch.onnx.export).parameters
OLDER = {'dynamo': False} if has_two else {}
CASES = [
    pytest.param(name, k, id=f'{name}-{k}')
    for name, kind in SCALERS.items()
    for k in (1, 2, 4)
    if ('sigmoid' if k == 1 else 'softmax') in kind.heads
    and (k < 4 or name not in ('platt', 'beta'))
]


def fitted(name, k):
    rows, labels = (torch.as_tensor(a) for a in draw(6 * 8 * 10, num_classes=k))
    maps, truth = rows.reshape(6, 8, 10, k).movedim(-1, 1).float(), labels.reshape(6, 8, 10)
    return SCALERS[name]().fit(maps, truth), maps


@pytest.mark.filterwarnings('ignore')
@pytest.mark.parametrize(('name', 'k'), CASES)
class TestAll:
    def test_it_is_the_scaler(self, name, k):
        scaler, maps = fitted(name, k)
        module = AttachedScaling(name, **scaler.options).take(scaler.tensors)
        found = module(maps)
        assert found.dtype == torch.float32
        torch.testing.assert_close(found, scaler.transform(maps), rtol=1e-5, atol=1e-5)
        again = AttachedScaling(name)
        again.load_state_dict(module.state_dict())
        assert torch.equal(again(maps), found)
        assert again(maps.half()).dtype == torch.float32
        rows = maps.movedim(1, -1).flatten(0, -2)
        torch.testing.assert_close(module(rows), found.movedim(1, -1).flatten(0, -2))

    def test_onnxruntime_does_the_same_on_maps_of_any_size(self, name, k, tmp_path):
        pytest.importorskip('onnx')
        runtime = pytest.importorskip('onnxruntime')
        scaler, maps = fitted(name, k)
        module = AttachedScaling(name).take(scaler.tensors).eval()
        path = str(tmp_path / 'scaling.onnx')
        torch.onnx.export(
            module, (maps[:2],), path, input_names=['logits'], output_names=['scaled'],
            dynamic_axes={'logits': {0: 'n', 2: 'h', 3: 'w'}}, **OLDER,
        )  # fmt: skip
        session = runtime.InferenceSession(path)
        for part in (maps[:2], maps[:1, :, 1:, 2:], maps[:3, :, :5]):
            (found,) = session.run(None, {'logits': part.contiguous().numpy()})
            # Two roundings of a logit may lie on two sides of a step.
            close = (torch.as_tensor(found) - module(part)).abs() < 1e-4
            assert close.float().mean() > 0.995


def test_nothing_was_loaded():
    with pytest.raises(UserError, match='its checkpoint holds none'):
        AttachedScaling('temperature')(torch.zeros(2, 3))
    with pytest.raises(RuntimeError, match='temperature'):
        AttachedScaling('temperature').load_state_dict({})
    with pytest.raises(ValueError, match=r"method must be one of .* got 'colour'"):
        AttachedScaling('colour')
