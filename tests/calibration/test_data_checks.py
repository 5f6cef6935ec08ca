"""Data that determine no temperature are refused, whichever class of mistake made them."""

import pytest
import torch
from overconfident import draw
from torch import nn

import mmcalib
from mmcalib.posthoc import SCALERS


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


def rare_rows(num_rows=60, num_positive=3):
    """Return log-odds of which the few positives have low ones, and too many are predicted."""
    logits = 1.2 * torch.randn(num_rows, 1, generator=torch.Generator().manual_seed(0)) - 1.5
    labels = torch.zeros(num_rows, dtype=torch.long)
    labels[logits[:, 0].argsort()[2 : 2 + num_positive]] = 1
    return logits, labels


@pytest.mark.parametrize('method', [None, 'beta'])
@pytest.mark.parametrize('num_logits', [1, 2])
def test_calibrate_two_classes_reversed_scaling_refused(method, num_logits):
    logits, labels = rare_rows()
    if num_logits == 2:
        logits = torch.cat([-logits / 2, logits / 2], dim=1)
    batches = [(logits, labels)]
    words = r'reverses or levels the order .* 3 of 60 labels of class 1: .* more labels of class 1'
    with pytest.raises(ValueError, match=words):
        mmcalib.calibrate(nn.Identity(), batches, method=method)
    with pytest.warns(UserWarning, match=words):
        SCALERS[method or 'platt']().fit(logits, labels)


def test_calibrate_auto_does_not_choose_a_reversed_scaling():
    found = mmcalib.calibrate(nn.Identity(), [rare_rows()], method='auto')
    problems = {row['method']: row['problem'] for row in found.candidates}
    assert 'reverses' in problems['platt']
    assert found.method != 'platt'


def test_calibrate_label_with_a_reversed_scaling_takes_that_of_all():
    rare_logits, rare_labels = rare_rows()
    logits = torch.randn(60, 2, generator=torch.Generator().manual_seed(1))
    labels = (
        torch.rand(60, 2, generator=torch.Generator().manual_seed(2)) < logits.sigmoid()
    ).long()
    batches = [(torch.cat([logits, rare_logits], 1), torch.cat([labels, rare_labels[:, None]], 1))]
    found = mmcalib.calibrate(nn.Identity(), batches)
    assert found.scaler.shared_labels == [2]
    assert 'would reverse the order of predictions' in str(found)
    assert all(scaler.scale_ > 0 for scaler in found.scaler.scalers)
