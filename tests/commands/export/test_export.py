"""An exported file predicts what the toolbox does, in whatever sizes it says that it takes."""

import json
import re
import sys

import cv2
import numpy as np
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
from mmcalib.commands.export.command import export_onnx
from mmcalib.errors import UserError
from mmcalib.openmmlab.calibrated_model import attach
from mmcalib.posthoc import SCALERS
from mmcalib.posthoc.attached import scaling_module
from mmcalib.runs.config import load_config


def of(config, **changes):
    return dict(config, model=dict(config['model'], **changes))


def attached(config, method):
    kind = dict(type='CalibratedModel', calibrates=config['model']['type'])
    changed = of(config, **kind, calibration=dict(method=method))
    return dict(changed, custom_imports=dict(imports=['mmcalib']))


def calibrate(model, method, num_classes):
    """Attach a scaling, fitted to noise, to a model."""
    scaler = SCALERS[method]().fit(*overconfident.draw(num_classes=num_classes))
    return attach(model, scaling_module(scaler))


HEAD = CLASSIFIER['model']['head']
BINARY = fcn_head(2, out_channels=1, threshold=0.5)
LABELS = dict(type='MultiLabelLinearClsHead', num_classes=5, in_channels=8)
PADS = dict(type='SegDataPreProcessor', test_cfg=dict(size_divisor=8), pad_val=7, **PREPROCESSOR)
MODELS = {
    'classifier': (CLASSIFIER, lambda: classifier(HEAD)),
    'segmentor': (SEGMENTOR, lambda: segmentor(fcn_head())),
    'binary segmentor': (of(SEGMENTOR, decode_head=BINARY), lambda: segmentor(BINARY)),
    'padded images': (of(SEGMENTOR, data_preprocessor=PADS), lambda: segmentor(fcn_head())),
    'attached to a classifier': (
        attached(CLASSIFIER, 'ets'), lambda: calibrate(classifier(HEAD), 'ets', 5)
    ),
    'attached to a segmentor': (
        attached(SEGMENTOR, 'class-temperatures'),
        lambda: calibrate(segmentor(fcn_head()), 'class-temperatures', 4),
    ),
}  # fmt: skip


def some_pixels(*shape):
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


@pytest.fixture
def export(tmp_path):
    """Write a model and export it; give what was said, and a function that runs the file."""

    def export(config, model, **options):
        path, checkpoint = write_model(tmp_path, config, model)
        out = tmp_path / 'model.onnx'
        said = export_onnx(
            path, checkpoint, str(out), overwrite=True, **{'size': (16, 20)} | options
        )
        session = onnxruntime.InferenceSession(out)
        return said, lambda x: session.run(None, {'pixels': x.astype(np.float32)})[0]

    return export


@pytest.mark.parametrize('kind', MODELS)
def test_onnxruntime_gives_the_numbers_of_a_prediction(kind, export, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, 'onnxscript', None)  # not needed
    config, build = MODELS[kind]
    said, run = export(config, build())
    assert "Input 'pixels' (batch, 3, height, width)" in said and 'Fixed' not in said
    for size in ((16, 20), (12, 20)):  # so large that the test pipeline leaves it as it is
        pixels = some_pixels(*size, 3)
        cv2.imwrite(str(tmp_path / 'example.png'), pixels)
        probs = run(pixels.transpose(2, 0, 1)[None])
        arguments = (tmp_path / 'config.py', tmp_path / 'best.pth', tmp_path / 'example.png')
        (image,) = mmcalib.predict(*map(str, arguments)).images
        assert np.array_equal(probs.argmax(axis=1)[0], image.predicted)
        np.testing.assert_allclose(probs.max(axis=1)[0], image.confidence, atol=1e-5)
        np.testing.assert_allclose(probs.sum(axis=1), 1, atol=1e-5)
        if image.probabilities is not None:
            np.testing.assert_allclose(probs[0], image.probabilities, atol=1e-5)
    if kind in ('binary segmentor', 'attached to a classifier'):
        said, of_logits = export(config, build(), logits=True)
        assert "output 'logits'" in said
        pixels = some_pixels(2, 3, 16, 20)
        np.testing.assert_allclose(softmax(of_logits(pixels), axis=1), run(pixels), atol=1e-6)


def test_several_labels_have_a_sigmoid_each(export):
    config, pixels = of(CLASSIFIER, head=LABELS), some_pixels(1, 3, 16, 20)
    _, run = export(config, classifier(LABELS))
    probs = run(pixels)
    assert abs(probs.sum() - 1) > 0.05
    _, run = export(config, classifier(LABELS), logits=True)
    np.testing.assert_allclose(expit(run(pixels)), probs, atol=1e-6)


def test_the_page_runs_the_file(export, tmp_path, monkeypatch):
    page = (ROOT / 'docs/howto/export.md').read_text(encoding='utf-8')
    run_it, read_metadata = re.findall(r'```python\n(.*?)```', page, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    export(of(SEGMENTOR, decode_head=BINARY), segmentor(BINARY))
    cv2.imwrite('example.png', some_pixels(16, 20, 3))
    found = {}
    exec(run_it + read_metadata, found)
    (image,) = mmcalib.predict('config.py', 'best.pth', 'example.png').images
    assert np.array_equal(found['predicted'][0], image.predicted)
    np.testing.assert_allclose(found['confidence'][0], image.confidence, atol=1e-5)
    assert found['classes'] == [f'class {k}' for k in range(4)]
    assert json.loads(found['about']['threshold']) == 0.5


def test_the_file_tells_of_itself(tmp_path):
    path, checkpoint = write_model(tmp_path, CLASSIFIER, classifier(HEAD))
    content = torch.load(checkpoint, weights_only=False)
    told = dict(method='temperature', parameters=dict(temperature=1.5), options={}, split='val')
    content['meta']['calibration'] = dict(told, forced=[])
    torch.save(content, tmp_path / 'calibrated.pth')
    out = tmp_path / 'calibrated.onnx'
    said = export_onnx(path, str(tmp_path / 'calibrated.pth'), str(out), size=(16, 20), fixed=True)
    session = onnxruntime.InferenceSession(out)
    assert session.get_inputs()[0].shape == [1, 3, 16, 20]
    kept = session.get_modelmeta().custom_metadata_map
    kept = {key: json.loads(value) for key, value in kept.items()}
    assert kept['classes'] == [f'class {k}' for k in range(5)] and kept['mean'] == [120.0] * 3
    assert kept['std'] == PREPROCESSOR['std']
    assert kept['temperature'] == 1.5 and kept['calibration']['methods'] == ['temperature']
    assert 'calibration: temperature' in said


FACTORS = {
    'of one height': lambda x: 16 / float(x.shape[2]),  # which a trace takes for a constant
    'of one image': lambda x: 16 / float(x.shape[0]),
    'other where traced': lambda x: 2.0 if torch.jit.is_tracing() else 1.0,
    'without an operator': lambda x: torch.linalg.slogdet(x[..., :4, :4])[1].mean(),
}


@REGISTRY.register_module(force=True)
class ScaledFeatures(TinyFeatures):
    def __init__(self, factor):
        super().__init__()
        self.factor = FACTORS[factor]

    def forward(self, x):
        return [each * self.factor(each) for each in super().forward(x)]


@REGISTRY.register_module(force=True)
class MaskHead(FCNHead):
    """As far as one knows it: its scores are sums over masks, and it has other losses."""

    def __init__(self, **options):
        super().__init__(**options)
        del self.loss_decode


@REGISTRY.register_module(force=True)
class OtherWhereTracedOnAnImage(ResNet_CIFAR):
    """Is traced as it is on an image without contrast alone, of zeros for instance."""

    def forward(self, x):
        factor = 1 + (x.max() - x.min() if torch.jit.is_tracing() else 0)
        return tuple(each * factor for each in super().forward(x))


def scaled(factor):
    backbone = dict(type='ScaledFeatures', factor=factor)
    return of(SEGMENTOR, backbone=backbone), segmentor(fcn_head(), backbone=backbone)


def of_nan(kind):
    config, build = MODELS[kind]
    model = build()
    for weight in model.parameters():
        weight.data.fill_(float('nan'))
    return config, model


def test_a_size_that_a_trace_has_fixed_is_told(export):
    said, _ = export(*scaled('of one image'))
    assert "Input 'pixels' (1, 3, 16, 20)" in said and 'Fixed: batch and height and width' in said
    said, run = export(*scaled('of one height'))
    assert "Input 'pixels' (batch, 3, 16, 20)" in said
    assert 'Fixed: height and width, since others failed. a probability differs' in said
    assert run(np.zeros((3, 3, 16, 20))).shape == (3, 4, 16, 20)
    with pytest.raises(Exception, match=r'[Dd]imension'):
        run(np.zeros((1, 3, 32, 20)))


MASKS = fcn_head(type='MaskHead')
SLIDE = dict(mode='slide', crop_size=(8, 8), stride=(4, 4))


@pytest.mark.parametrize(
    ('build', 'options', 'message'),
    [
        (lambda: scaled('other where traced'), {}, r'differs from PyTorch.*othing was written'),
        (lambda: scaled('without an operator'), {}, r'^[^\n]*slogdet[^\n]*$'),
        (lambda: (of(SEGMENTOR, test_cfg=SLIDE), segmentor(fcn_head())), {}, 'test_cfg.mode=whole'),
        (lambda: (of(SEGMENTOR, decode_head=MASKS), segmentor(MASKS)), {}, 'classifies masks'),
        (lambda: (SEGMENTOR, segmentor(fcn_head())), dict(size=None), '--size HEIGHT WIDTH'),
        (lambda: of_nan('segmentor'), {}, 'a probability is not finite'),
        (lambda: of_nan('classifier'), dict(logits=True), 'a probability is not finite'),
    ],
)
def test_what_cannot_be_exported_is_refused(build, options, message, export, tmp_path):
    with pytest.raises(UserError, match=message):
        export(*build(), **options)
    assert not (tmp_path / 'model.onnx').exists()


def test_a_missing_package_is_named(export, monkeypatch):
    monkeypatch.setitem(sys.modules, 'onnxruntime', None)
    with pytest.raises(UserError, match='pip install onnx onnxruntime'):
        export(CLASSIFIER, classifier(HEAD))


def test_the_tool_exports_the_first_test_image_and_overwrites_nothing(run):
    config = ROOT / 'configs/mbls/digits.py'
    cfg = load_config(str(config))
    with REGISTRY.switch_scope_and_registry('mmpretrain') as registry:
        model = registry.build(dict(cfg.model, data_preprocessor=cfg.data_preprocessor))
    torch.save({'state_dict': model.state_dict()}, 'digits.pth')
    arguments = ['export.py', config, 'digits.pth', '--out', 'digits.onnx']
    assert "Input 'pixels' (batch, 1, height, width)" in run(*arguments)
    assert 'digits.onnx exists' in run(*arguments, code=2)
    options = {'model.backbone.type': 'OtherWhereTracedOnAnImage'}
    for size in (None, (8, 8)):
        with pytest.raises(UserError, match='differs from PyTorch'):
            export_onnx(config, 'digits.pth', 'other.onnx', size=size, cfg_options=options)
