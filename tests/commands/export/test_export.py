"""An exported file predicts what the toolbox does, at all the sizes that it names."""

import json
import re
import sys

import cv2
import numpy as np
import onnx
import onnxruntime
import overconfident
import pytest
import torch
from commands import ROOT
from file_models import CLASSIFIER, PREPROCESSOR, SEGMENTOR, write_model
from mmengine.registry import MODELS as REGISTRY
from mmpretrain.models import ResNet_CIFAR
from mmseg.models import FCNHead
from scipy.special import expit, softmax
from tiny_models import TinyFeatures, classifier, fcn_head, segmentor

import mmcalib
from mmcalib.cli.export import ExportOptions
from mmcalib.commands.export.command import export_model
from mmcalib.commands.export.onnx_file import has_torch_export
from mmcalib.errors import UserError
from mmcalib.openmmlab.calibrated_model import attach
from mmcalib.posthoc import SCALERS
from mmcalib.posthoc.attached import scaling_module
from mmcalib.runs.config import load_config

needs_torch_export = pytest.mark.skipif(
    not has_torch_export(), reason='needs PyTorch 2.6, which has the exporter'
)


def with_model(config, **changes):
    """Return a config with other options of its model."""
    return dict(config, model=dict(config['model'], **changes))


def with_calibration(config, method):
    """Return a config whose model has an attached scaling."""
    changed = with_model(
        config,
        type='CalibratedModel',
        calibrates=config['model']['type'],
        calibration=dict(method=method),
    )
    return dict(changed, custom_imports=dict(imports=['mmcalib']))


def attach_scaling(model, method, num_classes):
    """Return a model with a scaling that was fitted to noise."""
    scaler = SCALERS[method]().fit(*overconfident.draw(num_classes=num_classes))
    return attach(model, scaling_module(scaler))


DIGITS = ROOT / 'configs/mbls/digits.py'
HEAD = CLASSIFIER['model']['head']
BINARY = fcn_head(2, out_channels=1, threshold=0.5)
LABELS = dict(type='MultiLabelLinearClsHead', num_classes=5, in_channels=8)
PADS = dict(type='SegDataPreProcessor', test_cfg=dict(size_divisor=8), pad_val=7, **PREPROCESSOR)
MODELS = {
    'classifier': (CLASSIFIER, lambda: classifier(HEAD)),
    'segmentor': (SEGMENTOR, lambda: segmentor(fcn_head())),
    'binary segmentor': (with_model(SEGMENTOR, decode_head=BINARY), lambda: segmentor(BINARY)),
    'padded images': (with_model(SEGMENTOR, data_preprocessor=PADS), lambda: segmentor(fcn_head())),
    'attached to a classifier': (
        with_calibration(CLASSIFIER, 'ets'),
        lambda: attach_scaling(classifier(HEAD), 'ets', 5),
    ),
    'attached to a segmentor': (
        with_calibration(SEGMENTOR, 'class-temperatures'),
        lambda: attach_scaling(segmentor(fcn_head()), 'class-temperatures', 4),
    ),
}  # fmt: skip


def random_pixels(*shape):
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


@pytest.fixture
def export(tmp_path, capsys):
    """Write a model and export it; return the output, and a function that runs the file."""

    def export(config, model, *, size=(16, 20), logits=False, opset=None):
        config_file, checkpoint = write_model(tmp_path, config, model)
        out = tmp_path / 'model.onnx'
        options = ExportOptions(
            config=config_file,
            checkpoint=checkpoint,
            out=str(out),
            overwrite=True,
            size=size,
            logits=logits,
            opset=opset,
        )
        export_model(options)
        session = onnxruntime.InferenceSession(out)

        def run_file(pixels):
            (outputs,) = session.run(None, {'pixels': pixels.astype(np.float32)})
            return outputs

        return capsys.readouterr().out, run_file

    return export


@pytest.mark.parametrize(
    ('exporter', 'kind'),
    [
        *(('TorchScript', kind) for kind in MODELS),
        ('torch.export', 'classifier'),
        ('torch.export', 'binary segmentor'),
        ('torch.export', 'padded images'),
        ('torch.export', 'attached to a segmentor'),
    ],
)
def test_export_any_size_equals_prediction(exporter, kind, export, tmp_path, request):
    if exporter == 'TorchScript':
        request.getfixturevalue('torchscript')
    elif not has_torch_export():
        pytest.skip('needs PyTorch 2.6, which has the exporter')
    elif kind != 'classifier' and torch.__version__ < '2.7':
        pytest.skip('needs PyTorch 2.7, which leaves the sizes of maps free')
    config, build = MODELS[kind]
    output, run_file = export(config, build())
    assert "Input 'pixels' (batch, 3, height, width)" in output
    assert f'Exporter: {exporter}' in output
    assert 'Fixed' not in output
    for size in ((16, 20), (12, 20)):  # The test pipeline leaves images of these sizes unchanged.
        pixels = random_pixels(*size, 3)
        example = tmp_path / 'example.png'
        cv2.imwrite(str(example), pixels)
        probs = run_file(pixels.transpose(2, 0, 1)[None])
        arguments = (tmp_path / 'config.py', tmp_path / 'best.pth', example)
        (image,) = mmcalib.predict(*map(str, arguments)).images
        assert np.array_equal(probs.argmax(axis=1)[0], image.arrays['predicted'])
        np.testing.assert_allclose(probs.max(axis=1)[0], image.arrays['confidence'], atol=1e-5)
        np.testing.assert_allclose(probs.sum(axis=1), 1, atol=1e-5)
        if 'probabilities' in image.arrays:
            np.testing.assert_allclose(probs[0], image.arrays['probabilities'], atol=1e-5)


@pytest.mark.skipif(
    torch.__version__ < '2.7', reason='needs PyTorch 2.7, which leaves the sizes of maps free'
)
def test_export_file_by_torch_export_is_as_one_by_torchscript(export, tmp_path, request):
    config, build = MODELS['segmentor']
    models = []
    for exporter in ('torch.export', 'TorchScript'):
        if exporter == 'TorchScript':
            request.getfixturevalue('torchscript')
        export(config, build())
        assert not list(tmp_path.glob('*.data'))  # All weights are in the one file.
        model = onnx.load(tmp_path / 'model.onnx')
        onnx.checker.check_model(model, full_check=True)
        assert [entry.version for entry in model.opset_import if not entry.domain] == [18]
        assert axis_names(model.graph.input) == {'pixels': ['batch', '', 'height', 'width']}
        (name,) = axis_names(model.graph.output)
        assert name == 'probabilities'
        models.append(model)
    newer, older = models
    assert axis_names(newer.graph.output) == {'probabilities': ['batch', '', 'height', 'width']}
    assert newer.ByteSize() < older.ByteSize() + 20_000
    assert str(ROOT) not in str(newer)  # Such as the lines of code that nodes come from.


def axis_names(tensors):
    """Return the names of the free axes of inputs or outputs, empty for the others."""
    names = {}
    for tensor in tensors:
        names[tensor.name] = [dim.dim_param for dim in tensor.type.tensor_type.shape.dim]
    return names


@needs_torch_export
def test_export_older_opset_is_written_by_torchscript(export, tmp_path):
    output, _ = export(CLASSIFIER, classifier(HEAD), opset=17)
    assert 'Exporter: TorchScript, since torch.export failed: --opset 17 is below 18' in output
    model = onnx.load(tmp_path / 'model.onnx')
    assert [entry.version for entry in model.opset_import if not entry.domain] == [17]


@pytest.mark.parametrize('kind', ['binary segmentor', 'attached to a classifier'])
def test_export_logits_softmax_equals_probabilities(kind, export, torchscript):
    config, build = MODELS[kind]
    pixels = random_pixels(2, 3, 16, 20)
    _, run_file = export(config, build())
    expected = run_file(pixels)
    output, run_file = export(config, build(), logits=True)
    assert "output 'logits'" in output
    np.testing.assert_allclose(softmax(run_file(pixels), axis=1), expected, atol=1e-6)


def test_export_several_labels_has_sigmoid_of_each(export, torchscript):
    config = with_model(CLASSIFIER, head=LABELS)
    pixels = random_pixels(1, 3, 16, 20)
    _, run_file = export(config, classifier(LABELS))
    probs = run_file(pixels)
    assert abs(probs.sum() - 1) > 0.05
    _, run_file = export(config, classifier(LABELS), logits=True)
    np.testing.assert_allclose(expit(run_file(pixels)), probs, atol=1e-6)


def test_export_page_code_equals_prediction(export, tmp_path, monkeypatch, torchscript):
    page = (ROOT / 'docs/howto/export.md').read_text(encoding='utf-8')
    run_code, metadata_code = re.findall(r'```python\n(.*?)```', page, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    export(with_model(SEGMENTOR, decode_head=BINARY), segmentor(BINARY))
    cv2.imwrite('example.png', random_pixels(16, 20, 3))
    variables = {}
    exec(run_code + metadata_code, variables)
    (image,) = mmcalib.predict('config.py', 'best.pth', 'example.png').images
    assert np.array_equal(variables['predicted'][0], image.arrays['predicted'])
    np.testing.assert_allclose(variables['confidence'][0], image.arrays['confidence'], atol=1e-5)
    assert variables['classes'] == [f'class {k}' for k in range(4)]
    assert json.loads(variables['about']['threshold']) == 0.5


def test_export_calibrated_checkpoint_has_metadata(tmp_path, capsys, torchscript):
    config_file, checkpoint = write_model(tmp_path, CLASSIFIER, classifier(HEAD))
    content = torch.load(checkpoint, weights_only=False)
    content['meta']['calibration'] = dict(
        method='temperature',
        parameters=dict(temperature=1.5),
        options={},
        split='val',
        forced=[],
    )
    torch.save(content, tmp_path / 'calibrated.pth')
    out = tmp_path / 'calibrated.onnx'
    options = ExportOptions(
        config=config_file,
        checkpoint=str(tmp_path / 'calibrated.pth'),
        out=str(out),
        size=(16, 20),
        fixed=True,
    )
    export_model(options)
    session = onnxruntime.InferenceSession(out)
    assert session.get_inputs()[0].shape == [1, 3, 16, 20]
    metadata = session.get_modelmeta().custom_metadata_map
    metadata = {key: json.loads(value) for key, value in metadata.items()}
    assert metadata['classes'] == [f'class {k}' for k in range(5)]
    assert metadata['mean'] == [120.0] * 3
    assert metadata['std'] == PREPROCESSOR['std']
    assert metadata['temperature'] == 1.5
    assert metadata['calibration']['methods'] == ['temperature']
    assert 'calibration: temperature' in capsys.readouterr().out


def is_exported():
    """Return whether one of the two exporters calls a model."""
    return torch.jit.is_tracing() or torch.compiler.is_compiling()


FACTORS = {
    'of one height': lambda x: 16 / float(x.shape[2]),  # A trace takes it for a constant.
    'of one image': lambda x: 16 / float(x.shape[0]),
    'other where exported': lambda x: 2.0 if is_exported() else 1.0,
    'without an operator': lambda x: torch.linalg.slogdet(x[..., :4, :4])[1].mean(),
}


@REGISTRY.register_module(force=True)
class ScaledFeatures(TinyFeatures):
    def __init__(self, factor):
        super().__init__()
        self.factor = FACTORS[factor]

    def forward(self, x):
        return [feature * self.factor(feature) for feature in super().forward(x)]


@REGISTRY.register_module(force=True)
class MaskHead(FCNHead):
    """Head whose scores are sums over masks; it has no loss_decode."""

    def __init__(self, **options):
        super().__init__(**options)
        del self.loss_decode


@REGISTRY.register_module(force=True)
class OtherWhereExportedOnAnImage(ResNet_CIFAR):
    """Backbone whose export is right only of an image without contrast, such as one of zeros."""

    def forward(self, x):
        features = super().forward(x)
        if not is_exported():
            return features
        factor = 1 + x.max() - x.min()
        return tuple(feature * factor for feature in features)


def scaled_segmentor(factor):
    """Return config and model of a segmentor whose features are multiplied by a factor."""
    backbone = dict(type='ScaledFeatures', factor=factor)
    return with_model(SEGMENTOR, backbone=backbone), segmentor(fcn_head(), backbone=backbone)


def model_of_nan(kind):
    """Return config and model of a kind, with weights that are NaN."""
    config, build = MODELS[kind]
    model = build()
    for weight in model.parameters():
        weight.data.fill_(float('nan'))
    return config, model


def test_export_trace_of_one_size_names_fixed_axes(export, torchscript):
    output, _ = export(*scaled_segmentor('of one image'))
    assert "Input 'pixels' (1, 3, 16, 20)" in output
    assert 'Fixed: batch and height and width' in output
    assert 'graph(' not in output and len(output.splitlines()) < 10
    output, run_file = export(*scaled_segmentor('of one height'))
    assert "Input 'pixels' (batch, 3, 16, 20)" in output
    assert 'Fixed: height and width, since others failed. a probability differs' in output
    assert run_file(np.zeros((3, 3, 16, 20))).shape == (3, 4, 16, 20)
    with pytest.raises(Exception, match=r'[Dd]imension'):
        run_file(np.zeros((1, 3, 32, 20)))


MASKS = fcn_head(type='MaskHead')
SLIDE = dict(mode='slide', crop_size=(8, 8), stride=(4, 4))


@pytest.mark.parametrize(
    ('build', 'options', 'message'),
    [
        (
            lambda: scaled_segmentor('other where exported'),
            {},
            r'differs from PyTorch.*othing was written',
        ),
        (lambda: scaled_segmentor('without an operator'), {}, r'^[^\n]*slogdet[^\n]*$'),
        (
            lambda: (with_model(SEGMENTOR, test_cfg=SLIDE), segmentor(fcn_head())),
            {},
            'test_cfg.mode=whole',
        ),
        (
            lambda: (with_model(SEGMENTOR, decode_head=MASKS), segmentor(MASKS)),
            {},
            'classifies masks',
        ),
        (lambda: (SEGMENTOR, segmentor(fcn_head())), dict(size=None), '--size HEIGHT WIDTH'),
        (lambda: model_of_nan('segmentor'), {}, 'a probability is not finite'),
        (lambda: model_of_nan('classifier'), dict(logits=True), 'a probability is not finite'),
    ],
)
def test_export_other_predictions_refused(build, options, message, export, tmp_path, torchscript):
    # TorchScript fails last, and says the message.
    with pytest.raises(UserError, match=message):
        export(*build(), **options)
    assert not (tmp_path / 'model.onnx').exists()


def test_export_without_onnxruntime_refused(export, monkeypatch):
    monkeypatch.setitem(sys.modules, 'onnxruntime', None)
    with pytest.raises(UserError, match='pip install onnx onnxruntime'):
        export(CLASSIFIER, classifier(HEAD))


@pytest.fixture
def digits_checkpoint(tmp_path, monkeypatch):
    """The path of an untrained checkpoint of the digits, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    cfg = load_config(str(DIGITS))
    with REGISTRY.switch_scope_and_registry('mmpretrain') as registry:
        model = registry.build(dict(cfg.model, data_preprocessor=cfg.data_preprocessor))
    torch.save({'state_dict': model.state_dict()}, 'digits.pth')
    return 'digits.pth'


def test_export_first_test_image_overwrites_nothing(digits_checkpoint, run, torchscript):
    arguments = ['export.py', DIGITS, digits_checkpoint, '--out', 'digits.onnx']
    assert "Input 'pixels' (batch, 1, height, width)" in run(*arguments)
    assert 'digits.onnx exists' in run(*arguments, code=2)


@pytest.mark.parametrize('exporters', ['both', 'TorchScript'])
def test_export_example_has_contrast(exporters, digits_checkpoint, request):
    size = None
    if exporters == 'TorchScript':
        request.getfixturevalue('torchscript')
        size = (8, 8)
    options = ExportOptions(
        config=str(DIGITS),
        checkpoint=digits_checkpoint,
        out='other.onnx',
        size=size,
        cfg_options={'model.backbone.type': 'OtherWhereExportedOnAnImage'},
    )
    with pytest.raises(UserError, match='differs from PyTorch'):
        export_model(options)
