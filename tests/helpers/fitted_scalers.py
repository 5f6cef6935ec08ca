"""Scalers fitted to logits that are too large, and the cases that all methods are tested with."""

import numpy as np
import torch
from overconfident import draw

from mmcalib.posthoc import SCALERS

METHODS = list(SCALERS)
BINARY_METHODS = ('platt', 'beta')
# (method, K) of every method with every head that it takes.
CASES = []
for method in METHODS:
    for case_logits in (1, 2, 4):
        if case_logits < 3 or method not in BINARY_METHODS:
            CASES.append((method, case_logits))
CASES_KEEPING_ARGMAX = [case for case in CASES if SCALERS[case[0]].keeps_argmax]
# None is a default, and all differ.
OPTIONS = {
    'vector': dict(diagonal=2.0, intercept=0.5),
    'matrix': dict(diagonal=3.0, off_diagonal=0.7, intercept=0.4),
    'class-temperatures': dict(penalty=4.0),
    'class-conditional': dict(diagonal=5.0, off_diagonal=20.0, intercept=3.0),
}


def most_logits(method):
    """Return the number of logits that a method is tested with: two, or four classes."""
    return 2 if method in BINARY_METHODS else 4


def fit_scaler(method, *data, **options):
    """Return a scaler with these options, fitted to logits, labels and perhaps groups."""
    return SCALERS[method](**options).fit(*data)


def fitted_scaler(method, num_logits=None, **options):
    """Return a scaler that is fitted to 300 predictions."""
    data = draw(300, num_classes=num_logits or most_logits(method))
    return fit_scaler(method, *data, **options)


def draw_tensors(num_predictions, num_logits):
    """Return logits and labels as tensors."""
    logits, labels = draw(num_predictions, num_classes=num_logits)
    return torch.as_tensor(logits), torch.as_tensor(labels)


def with_two_classes(logits):
    """Return an array of logits as they are, and those of a sigmoid as (0, z)."""
    if logits.shape[1] > 1:
        return logits
    return np.concatenate([np.zeros_like(logits), logits], axis=1)
