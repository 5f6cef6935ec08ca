"""The examples in docstrings run, and show what they say."""

import doctest

import pytest
import torch

from mmcalib import losses

FORMULAS = [
    'brier',
    'bsce',
    'confidence_penalty',
    'dual_focal',
    'inverse_focal',
    'label_smoothing',
    'margin_label_smoothing',
    'softmax_focal',
]


@pytest.mark.parametrize('name', FORMULAS)
def test_examples(name):
    function = getattr(losses, name)
    scope = {'torch': torch, name: function}
    (test,) = doctest.DocTestFinder().find(function, globs=scope)
    assert test.examples
    assert doctest.DocTestRunner().run(test).failed == 0
