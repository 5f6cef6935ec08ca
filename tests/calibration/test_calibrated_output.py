"""Models behind which a scaling is attached: outputs, files, exports and copies."""

import copy
import inspect
import pickle
from itertools import product

import pytest
import torch
from overconfident_networks import Network, make_data, make_loader

import mmcalib
from mmcalib.posthoc.attached import AttachedScaling, CalibratedOutput, scaling_module

LOGITS_BY_OUTPUT = {
    'out': lambda output: output['out'],
    'logits': lambda output: output['logits'],
    'object': lambda output: output.logits,
}

needs_newer_exporter = pytest.mark.skipif(
    torch.__version__ < '2.7',
    reason='needs PyTorch 2.7, whose exporter knows batch normalisation',
)


@pytest.mark.parametrize('method', ['temperature', 'ets'])
@pytest.mark.parametrize('output', LOGITS_BY_OUTPUT)
def test_calibrate_output_with_logits_keeps_other_entries(output, method):
    network, inputs, labels = make_data((6, 7))
    network.output = output
    calibrated = mmcalib.calibrate(network, make_loader(inputs, labels), method=method)
    actual = calibrated.model(inputs)
    if output == 'object':
        assert actual.loss is None
    else:
        assert actual['aux'] == 0


@pytest.mark.parametrize('method', ['temperature', 'ets'])
@pytest.mark.parametrize('output', LOGITS_BY_OUTPUT)
def test_calibrate_logits_function_same_figures(output, method):
    network, inputs, labels = make_data((6, 7))
    network.output = output
    loader = make_loader(inputs, labels)
    expected = mmcalib.calibrate(network, loader, method=method)
    actual = mmcalib.calibrate(network, loader, method=method, logits=LOGITS_BY_OUTPUT[output])
    assert actual.after == expected.after


@pytest.mark.parametrize('output', LOGITS_BY_OUTPUT)
def test_calibrate_attached_behind_logits_function_returns_logits_alone(output):
    network, inputs, labels = make_data((6, 7))
    network.output = output
    loader = make_loader(inputs, labels)
    get_logits = LOGITS_BY_OUTPUT[output]
    expected = mmcalib.calibrate(network, loader, method='ets').model(inputs)
    actual = mmcalib.calibrate(network, loader, method='ets', logits=get_logits).model(inputs)
    torch.testing.assert_close(actual, get_logits(expected))


def calibrate_cosine_network(method, shape=()):
    """Return a calibrated network that no layer can absorb a scaling of, and its inputs."""
    network, inputs, labels = make_data(shape)
    network.cosine = True
    calibrated = mmcalib.calibrate(network, make_loader(inputs, labels), method=method)
    assert calibrated.attached is not None
    return calibrated.model, inputs


METHODS = ['temperature', 'ets', 'isotonic', 'class-temperatures', 'class-conditional']


@pytest.mark.parametrize('method', METHODS)
def test_calibrated_output_saved_state_loads(method, tmp_path):
    model, inputs = calibrate_cosine_network(method)
    torch.save(model.state_dict(), tmp_path / 'calibrated.pth')
    other = CalibratedOutput(Network(cosine=True), AttachedScaling(method)).eval()
    other.load_state_dict(torch.load(tmp_path / 'calibrated.pth'))
    torch.testing.assert_close(other(inputs), model(inputs))


@pytest.mark.parametrize('method', METHODS)
def test_calibrated_output_can_be_trained(method):
    model, inputs = calibrate_cosine_network(method)
    model(inputs).sum().backward()
    assert model.model.fc.weight.grad is not None


def test_calibrated_output_gradient_leaves_given_model():
    network, inputs, labels = make_data()
    calibrated = mmcalib.calibrate(network, make_loader(inputs, labels), method='ets')
    calibrated.model(inputs).sum().backward()
    assert network.fc.weight.grad is None


class MaskedNetwork(Network):
    """A network with a second input, which need not be given."""

    def forward(self, x, mask=None):
        logits = super().forward(x)
        return logits if mask is None else logits * mask


EXPORTED_METHODS = [
    'temperature', 'vector', 'matrix', 'ets', 'isotonic', 'class-temperatures',
    'class-conditional',
]  # fmt: skip
EXPORTS = [
    *product(['by_position'], EXPORTED_METHODS, [()]),
    *product(['by_position'], ['matrix', 'isotonic'], [(6, 7)]),
    *product(['by_name', 'by_keyword'], ['ets'], [()]),
    ('by_position', 'several_labels', ()),
]


@pytest.mark.filterwarnings('ignore')
@pytest.mark.parametrize(('shapes_given', 'method', 'shape'), EXPORTS)
def test_calibrated_output_export_with_dynamic_batch_takes_any(shapes_given, method, shape):
    has_several_labels = method == 'several_labels'
    network, inputs, labels = make_data(shape, num_images=240, sigmoids=has_several_labels)
    calibrated = mmcalib.calibrate(
        network,
        make_loader(inputs, labels),
        method='isotonic' if has_several_labels else method,
    )
    scaling = scaling_module(calibrated.scaler)
    model = CalibratedOutput(MaskedNetwork(shape).eval(), scaling).eval()
    batch_size = torch.export.Dim('n', min=1, max=1000)
    by_position = shapes_given == 'by_position'
    dynamic_shapes = ({0: batch_size},) if by_position else {'x': {0: batch_size}}
    if shapes_given == 'by_keyword':
        exported = torch.export.export(model, (), {'x': inputs[:7]}, dynamic_shapes=dynamic_shapes)
    else:
        exported = torch.export.export(model, (inputs[:7],), dynamic_shapes=dynamic_shapes)
    for size in (1, 5, 12):
        expected = model(inputs[:size])
        if shapes_given == 'by_keyword':
            actual = exported.module()(x=inputs[:size])
        else:
            actual = exported.module()(inputs[:size])
        torch.testing.assert_close(actual, expected)


@needs_newer_exporter
@pytest.mark.filterwarnings('ignore')
@pytest.mark.parametrize('method', ['isotonic', 'class-conditional'])
def test_calibrated_output_onnx_of_any_batch_size_predicts_the_same(method, tmp_path):
    onnxruntime = pytest.importorskip('onnxruntime')
    pytest.importorskip('onnxscript')
    model, inputs = calibrate_cosine_network(method, (6, 7))
    file = tmp_path / 'model.onnx'
    dynamic_shapes = ({0: torch.export.Dim('n', min=1, max=1000)},)
    torch.onnx.export(model, (inputs[:7],), file, dynamo=True, dynamic_shapes=dynamic_shapes)
    # The steps of isotonic alone may need more than single precision.
    assert has_doubles(file) == (method == 'isotonic')
    session = onnxruntime.InferenceSession(file)
    input_name = session.get_inputs()[0].name
    for size in (1, 12):
        (output,) = session.run(None, {input_name: inputs[:size].numpy()})
        expected = model(inputs[:size]).detach()
        torch.testing.assert_close(torch.from_numpy(output), expected, rtol=1e-3, atol=1e-4)


def has_doubles(file):
    """Return whether an ONNX file has a double: a number, or the result of a node."""
    onnx = pytest.importorskip('onnx')
    graph = onnx.shape_inference.infer_shapes(onnx.load(file)).graph
    values = (*graph.value_info, *graph.input, *graph.output)
    types = {value.type.tensor_type.elem_type for value in values}
    types |= {tensor.data_type for tensor in graph.initializer}
    return onnx.TensorProto.DOUBLE in types


# Sizes of a batch as a user of torch.export declares them, for any model.
DYNAMIC_SIZES = {
    'named': lambda: torch.export.Dim('batch'),
    'dynamic': lambda: torch.export.Dim.DYNAMIC,
    'automatic': lambda: torch.export.Dim.AUTO,
}


@needs_newer_exporter
@pytest.mark.filterwarnings('ignore')
@pytest.mark.parametrize(
    ('output', 'size', 'strict'),
    [
        ('tensor', 'named', True),
        ('logits', 'dynamic', True),
        ('logits', 'named', False),
        ('tensor', 'automatic', False),
    ],
)
def test_calibrated_output_export_takes_ordinary_dynamic_shapes(output, size, strict):
    model, inputs = calibrate_cosine_network('ets', (6, 7))
    model.model.output = output
    dynamic_shapes = ({0: DYNAMIC_SIZES[size]()},)
    exported = torch.export.export(
        model, (inputs[:7],), dynamic_shapes=dynamic_shapes, strict=strict
    )
    for num_images in (1, 12):
        actual = exported.module()(inputs[:num_images])
        torch.testing.assert_close(actual, model(inputs[:num_images]))


@needs_newer_exporter
@pytest.mark.filterwarnings('ignore')
def test_calibrated_output_onnx_names_dynamic_axes(tmp_path):
    onnxruntime = pytest.importorskip('onnxruntime')
    pytest.importorskip('onnxscript')
    model, inputs = calibrate_cosine_network('ets', (6, 7))
    file = tmp_path / 'model.onnx'
    axes = {0: 'batch', 2: 'height', 3: 'width'}
    torch.onnx.export(
        model,
        (inputs[:1],),  # The example's one image does not make one a constant.
        file,
        input_names=['pixels'],
        output_names=['logits'],
        dynamo=True,
        dynamic_shapes=(axes,),
    )
    session = onnxruntime.InferenceSession(file)
    assert session.get_inputs()[0].shape == ['batch', 5, 'height', 'width']
    assert session.get_outputs()[0].shape == ['batch', 4, 'height', 'width']
    for part in (inputs[:1], inputs[:12, :, 1:, 2:]):
        (output,) = session.run(['logits'], {'pixels': part.contiguous().numpy()})
        expected = model(part).detach()
        torch.testing.assert_close(torch.from_numpy(output), expected, rtol=1e-3, atol=1e-4)


def replicate(model):
    """Return a copy as ``nn.DataParallel`` makes it, whose model is a copy too."""
    replica = model._replicate_for_data_parallel()
    replica.model = copy.deepcopy(model.model)
    return replica


COPIES = {
    'deepcopy': copy.deepcopy,
    'pickle': lambda model: pickle.loads(pickle.dumps(model)),
    'replicate': replicate,
}


@pytest.mark.parametrize('kind', COPIES)
def test_calibrated_output_copy_has_weights_of_its_own(kind):
    network, inputs, labels = make_data()
    model = mmcalib.calibrate(network, make_loader(inputs, labels), method='ets').model
    expected = model(inputs)
    copied = COPIES[kind](model)
    torch.testing.assert_close(copied(inputs), expected)
    copied.model.fc.weight.data.zero_()
    copied.model.fc.bias.data.zero_()
    assert not torch.allclose(copied(inputs), expected)
    assert list(inspect.signature(copied.forward).parameters) == ['x']
    torch.testing.assert_close(model(inputs), expected)
