"""The examples in docstrings run, and show what they say."""

import doctest

import pytest
import torch

from mmcalib.losses import confidence_penalty as ecp
from mmcalib.losses import label_smoothing as ls
from mmcalib.losses import margin_label_smoothing as mbls
from mmcalib.losses import softmax_focal as fl


@pytest.mark.parametrize('function', [mbls, ls, fl, ecp], ids=lambda f: f.__name__)
def test_examples(function):
    scope = {'torch': torch, function.__name__: function}
    (test,) = doctest.DocTestFinder().find(function, globs=scope)
    assert test.examples
    assert doctest.DocTestRunner().run(test).failed == 0
