"""A fitted scaling as a module: its values, its export, and checkpoints of another one."""

import copy
import inspect
import pickle
import warnings

import pytest
import torch
from fitted_scalers import CASES, METHODS, draw_tensors, fit_scaler, fitted_scaler, most_logits

from mmcalib.errors import UserError
from mmcalib.posthoc import SCALERS, load_scaler
from mmcalib.posthoc.attached import (
    AttachedScaling,
    CalibratedOutput,
    build_scaling,
    scaling_module,
)
from mmcalib.tensors import at_least_single


def draw_maps(num_logits):
    """Return six maps of logits in float32, and their labels."""
    rows, labels = draw_tensors(480, num_logits)
    maps = rows.view(6, 8, 10, num_logits).movedim(-1, 1).float()
    return maps, labels.view(6, 8, 10)


def export(module, logits, path):
    """Write a module to an ONNX file whose numbers and sizes of maps are free."""
    options = {}
    if 'dynamo' in inspect.signature(torch.onnx.export).parameters:
        options['dynamo'] = False  # PyTorch before 2.5 has this exporter alone.
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        torch.onnx.export(
            module,
            (logits,),
            path,
            input_names=['logits'],
            output_names=['scaled'],
            dynamic_axes={'logits': {0: 'n', 2: 'h', 3: 'w'}},
            **options,
        )


def probabilities(scaled):
    """Return the probability of each class of scaled logits, of the positive one if K = 1."""
    return scaled.sigmoid() if scaled.shape[1] == 1 else scaled.softmax(dim=1)


def copies_of_scaler(scaler, path):
    """Return a scaler from its file, its pickle, its parameters, and a deep copy."""
    scaler.save(path)
    return [
        load_scaler(path),
        pickle.loads(pickle.dumps(scaler)),
        type(scaler).from_parameters(scaler.parameters, **scaler.get_params()),
        copy.deepcopy(scaler),
    ]


def copies_of_module(module, path):
    """Return a module from its state dict on a disk, its pickle, a deep copy, and casts."""
    torch.save(module.state_dict(), path)
    loaded = build_scaling(module.scaler.method, **module.scaler.get_params())
    loaded.load_state_dict(torch.load(path, weights_only=True))
    copied = copy.deepcopy(module)
    return [loaded, pickle.loads(pickle.dumps(module)), copied.half(), copied.double()]


@pytest.mark.parametrize('dtype', [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(('method', 'num_logits'), CASES)
def test_scaling_all_copies_and_calls_agree(method, num_logits, dtype, tmp_path):
    scaler = fitted_scaler(method, num_logits)
    module = scaling_module(scaler)
    rows = draw_tensors(24, num_logits)[0].to(dtype)
    scalers = copies_of_scaler(scaler, tmp_path / 'scaler.json')
    modules = [module, *copies_of_module(module, tmp_path / 'module.pth')]
    inputs = [rows, rows[:1], rows[:0], 100 * rows, rows.round()]
    inputs.append(rows.view(2, 3, 4, num_logits).movedim(-1, 1))
    inputs.append(rows[:1].view(1, num_logits, 1, 1))
    tolerance = 1e-12 if dtype == torch.float64 else 2e-6
    for logits in inputs:
        scaled = scaler.transform(logits)
        assert scaled.shape == logits.shape
        assert torch.equal(scaler.transform(at_least_single(logits)), scaled)
        probs = scaler.predict_proba(logits)
        probs_of_classes = probs if num_logits > 1 else probs[:, 1:]
        close = dict(rtol=0, atol=tolerance)
        torch.testing.assert_close(probabilities(scaled), probs_of_classes, **close)
        for other in scalers:
            assert torch.equal(other.transform(logits), scaled)
            assert torch.equal(other.predict_proba(logits), probs)
        for other in modules:
            attached = other(logits)
            assert attached.dtype == scaled.dtype
            torch.testing.assert_close(probabilities(attached), probs_of_classes, **close)


class Network(torch.nn.Module):
    """Returns its input as logits; the parameter is cast with the model."""

    def __init__(self):
        super().__init__()
        self.factor = torch.nn.Parameter(torch.ones(()))

    def forward(self, logits):
        return logits


CASTS = {
    'float': lambda model: model.float(),
    'half': lambda model: model.half(),
    'bfloat16': lambda model: model.bfloat16(),
    'double': lambda model: model.double(),
    'to': lambda model: model.to('cpu', torch.float16),
    'type': lambda model: model.type(torch.float16),
}


@pytest.mark.parametrize('cast', CASTS)
@pytest.mark.parametrize('method', METHODS)
def test_calibrated_output_cast_model_keeps_double_precision(method, cast):
    scaler = fitted_scaler(method)
    logits, _ = draw_tensors(60, most_logits(method))
    model = CASTS[cast](CalibratedOutput(Network(), scaling_module(scaler)))
    is_cast = cast != 'float'
    assert (model.model.factor.dtype != torch.float32) == is_cast
    for name in scaler.learned:
        assert getattr(model.calibration, name).dtype == torch.float64
    expected = scaler.transform(logits)
    torch.testing.assert_close(model(logits), expected, rtol=0, atol=0)
    torch.testing.assert_close(copy.deepcopy(model)(logits), expected, rtol=0, atol=0)
    loaded = CASTS[cast](CalibratedOutput(Network(), AttachedScaling(method)))
    loaded.load_state_dict(model.state_dict())
    torch.testing.assert_close(loaded(logits), expected, rtol=0, atol=0)


def test_attached_scaling_moves_with_model():
    module = scaling_module(fitted_scaler('matrix')).half()
    expected = module.matrix.clone()
    assert module.share_memory().matrix.is_shared()
    assert torch.equal(module.matrix, expected)
    state = module.state_dict()
    moved = module.to('meta', torch.float16)
    assert (moved.matrix.device.type, moved.matrix.dtype) == ('meta', torch.float64)
    emptied = moved.to_empty(device='cpu')
    assert (emptied.matrix.device.type, emptied.matrix.dtype) == ('cpu', torch.float64)
    emptied.load_state_dict(state)
    assert torch.equal(emptied.matrix, expected)


def test_attached_scaling_without_state_can_be_cast():
    module = AttachedScaling('matrix').half()
    module.load_state_dict(scaling_module(fitted_scaler('matrix')).state_dict())
    assert module.matrix.dtype == torch.float64


@pytest.mark.parametrize(('method', 'num_logits'), CASES)
def test_scaling_module_exported_to_onnx_equals_itself(method, num_logits, tmp_path):
    pytest.importorskip('onnx')
    runtime = pytest.importorskip('onnxruntime')
    maps, labels = draw_maps(num_logits)
    module = scaling_module(fit_scaler(method, maps, labels)).eval()
    path = str(tmp_path / 'scaling.onnx')
    export(module, maps[:2], path)
    session = runtime.InferenceSession(path, providers=['CPUExecutionProvider'])
    for part in (maps[:2], maps[:1, :, 1:, 2:], maps[:3, :, :5]):
        (scaled,) = session.run(None, {'logits': part.contiguous().numpy()})
        # Two roundings of a logit may lie on two sides of a step.
        is_close = (torch.as_tensor(scaled) - module(part)).abs() < 1e-4
        assert is_close.float().mean() > 0.995


@pytest.mark.parametrize('method', METHODS)
@pytest.mark.parametrize('loading_method', METHODS)
@pytest.mark.parametrize('is_of_0_3', [False, True])
def test_attached_scaling_state_of_another_method_raises(method, loading_method, is_of_0_3):
    state = scaling_module(fitted_scaler(method)).state_dict()
    module = AttachedScaling(loading_method)
    fits = method == loading_method
    if is_of_0_3:  # It is known by its parameters.
        del state['about']
        fits = SCALERS[method].learned == SCALERS[loading_method].learned
    if fits:
        module.load_state_dict(state)
        return
    reason = 'learns' if is_of_0_3 else 'method must be one of'
    with pytest.raises(UserError, match=f'{reason}.*mmcalib calibrate wrote'):
        module.load_state_dict(state, strict=False)


def test_attached_scaling_without_state_raises():
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), AttachedScaling('temperature'))
    with pytest.raises(UserError, match='its checkpoint holds none'):
        model(torch.zeros(2, 2))
    with pytest.raises(RuntimeError, match=r'1\.temperature'):
        model.load_state_dict({'0.weight': torch.eye(2), '0.bias': torch.zeros(2)})


def test_attached_scaling_part_of_a_state_is_loaded():
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), AttachedScaling('temperature'))
    model.load_state_dict({'1.temperature': torch.tensor(2.0)}, strict=False)
    assert torch.equal(model[1](torch.ones(1, 2)), torch.full((1, 2), 0.5))


def test_attached_scaling_other_number_of_logits_raises():
    module = scaling_module(fitted_scaler('class-temperatures'))
    with pytest.raises(UserError, match='of 4 logits of a prediction, and the model has 3'):
        module(torch.zeros(2, 3))
