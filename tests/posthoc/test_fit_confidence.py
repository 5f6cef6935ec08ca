"""Scalings of a bare confidence, of which only is known when it was right."""

import numpy as np
import pytest
import torch

from mmcalib.metrics import measure
from mmcalib.posthoc import SCALERS, PlattScaler, load_scaler

METHODS = [name for name, kind in SCALERS.items() if 'sigmoid' in kind.heads]


def confidences(n=4000, seed=0):
    """Confidences, of which a third of the log-odds, and less, is true."""
    rng = np.random.default_rng(seed)
    odds = rng.normal(1, 2, n)
    truth = 1 / (1 + np.exp(-(0.4 * odds - 0.3)))
    return 1 / (1 + np.exp(-odds)), rng.random(n) < truth


@pytest.mark.filterwarnings('ignore::UserWarning')
@pytest.mark.parametrize('method', METHODS)
def test_every_method_of_a_sigmoid_calibrates_a_confidence(method, tmp_path):
    conf, correct = confidences()
    scaler = SCALERS[method]().fit_confidence(conf[::2], correct[::2])
    after = scaler.confidence(conf[1::2])
    before = measure(conf=conf[1::2], correct=correct[1::2], metrics='ECE')
    limit = 4.5 if method in ('platt', 'beta', 'isotonic') else before
    assert measure(conf=after, correct=correct[1::2], metrics='ECE') < limit < before + 1
    scaler.save(tmp_path / 'scaler.json')
    assert np.array_equal(load_scaler(tmp_path / 'scaler.json').confidence(conf[1::2]), after)


def test_kinds_and_refusals():
    conf, correct = confidences(200)
    ours = PlattScaler().fit_confidence(torch.tensor(conf).float(), torch.tensor(correct))
    assert ours.confidence(torch.tensor(conf).float()).dtype == torch.float32
    assert np.isfinite(ours.confidence(np.array([0.0, 1.0]))).all()
    with pytest.raises(ValueError, match='conf has 1 of 200 values outside'):
        PlattScaler().fit_confidence(np.r_[90.0, conf[1:]], correct)
    with pytest.raises(ValueError, match='all labels have class'):
        PlattScaler().fit_confidence(conf, correct | True)
