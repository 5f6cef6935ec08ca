"""That models are compared in full precision, and that it is set back."""

import pytest
import torch
from tiny_models import classifier, images

from mmcalib.posthoc.draw import predictor

CUDNN = torch.backends.cudnn


def test_convolutions_are_not_rounded_meanwhile(monkeypatch):
    monkeypatch.setattr(CUDNN, 'allow_tf32', True)
    monkeypatch.setattr(CUDNN, 'benchmark', True)
    model = classifier(dict(type='LinearClsHead', num_classes=5, in_channels=8))
    with pytest.raises(KeyError), predictor(model) as predict:
        assert len(predict(images()[0])) and not CUDNN.allow_tf32 and CUDNN.benchmark
        raise KeyError
    assert CUDNN.allow_tf32 and CUDNN.benchmark
