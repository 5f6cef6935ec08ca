"""Data that determine no temperature are refused, whichever class of mistake made them."""

import pytest
import torch
from overconfident import draw
from torch import nn

import mmcalib


def calibrate_rows(logits, labels):
    batches = [(torch.as_tensor(logits), torch.as_tensor(labels))]
    return mmcalib.calibrate(nn.Identity(), batches)


def test_calibrate_logits_of_the_wrong_sign_refused():
    logits, labels = draw(n=300)
    with pytest.raises(ValueError, match=r'no information about the labels .*same order'):
        calibrate_rows(-logits, labels)


def test_calibrate_two_classes_exchanged_refused():
    logits, labels = draw(n=400)
    exchanged = logits[:, [1, 0, 2, 3]]
    with pytest.raises(ValueError, match='0 as 1, 1 as 0'):
        calibrate_rows(exchanged, labels)


def test_calibrate_over_confident_logits_fitted():
    logits, labels = draw(n=400, temperature=2.5)
    assert calibrate_rows(logits, labels).scaler.temperature_ == pytest.approx(2.5, rel=0.2)
