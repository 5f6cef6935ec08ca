"""The blocks of docs/export.md, run as they stand: the numbers are those of a prediction."""

import re
import shutil
import sys

import cv2
import numpy as np
import overconfident
import pytest
from commands import ROOT
from file_models import CLASSIFIER, SEGMENTOR, write_model
from tiny_models import classifier, fcn_head, segmentor

import mmcalib
from mmcalib.posthoc import SCALERS
from mmcalib.posthoc.attached_model import attach
from mmcalib.posthoc.attached_scaling import AttachedScaling


def attached(config, method):
    model = {**config['model'], 'type': 'CalibratedModel', 'calibrates': config['model']['type']}
    imports = dict(imports=['mmcalib'])
    return {
        **config,
        'model': {**model, 'calibration': dict(method=method)},
        'custom_imports': imports,
    }


def calibrate(model, method, num_classes):
    """Attach a scaling, fitted to noise, to a model."""
    logits, labels = overconfident.draw(num_classes=num_classes)
    scaler = SCALERS[method]().fit(logits, labels)
    return attach(model, AttachedScaling(method).take(scaler.tensors))


BINARY = fcn_head(2, out_channels=1, threshold=0.5)
MODELS = {
    'classifier': (CLASSIFIER, classifier, CLASSIFIER['model']['head']),
    'segmentor': (SEGMENTOR, segmentor, fcn_head()),
    'binary segmentor': (
        dict(SEGMENTOR, model=dict(SEGMENTOR['model'], decode_head=BINARY)),
        segmentor,
        BINARY,
    ),
    'attached to a classifier': (
        attached(CLASSIFIER, 'ets'),
        lambda head: calibrate(classifier(head), 'ets', 5),
        CLASSIFIER['model']['head'],
    ),
    'attached to a segmentor': (
        attached(SEGMENTOR, 'class-temperatures'),
        lambda head: calibrate(segmentor(head), 'class-temperatures', 4),
        fcn_head(),
    ),
}


@pytest.mark.parametrize('kind', MODELS)
def test_onnxruntime_gives_the_numbers_of_a_prediction(kind, tmp_path, monkeypatch):
    pytest.importorskip('onnx')
    pytest.importorskip('onnxruntime')
    monkeypatch.setitem(sys.modules, 'onnxscript', None)  # not needed
    monkeypatch.chdir(tmp_path)
    config, build, head = MODELS[kind]
    _, checkpoint = write_model(tmp_path, config, build(head))
    shutil.copy(checkpoint, 'calibrated.pth')
    rng = np.random.default_rng(0)
    export, run = re.findall(
        r'```python\n(.*?)```', (ROOT / 'docs/export.md').read_text(encoding='utf-8'), re.DOTALL
    )

    def draw(height, width):  # so large that the test pipeline leaves it as it is
        cv2.imwrite('example.png', rng.integers(0, 256, (height, width, 3), dtype=np.uint8))

    draw(16, 20)
    exec(export, {})
    for size in ((16, 20), (12, 20)):
        draw(*size)
        found = {}
        exec(run, found)
        (image,) = mmcalib.predict('config.py', 'calibrated.pth', 'example.png').images
        assert np.array_equal(found['predicted'][0], image.predicted)
        np.testing.assert_allclose(found['confidence'][0], image.confidence, atol=1e-5)
        np.testing.assert_allclose(found['probabilities'].sum(axis=1), 1, atol=1e-5)
        if image.probabilities is not None:
            np.testing.assert_allclose(found['probabilities'][0], image.probabilities, atol=1e-5)
