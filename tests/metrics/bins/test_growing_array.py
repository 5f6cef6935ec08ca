"""Rows of many images lie in one block: small tensors between large ones pin freed memory."""

import gc

import pytest
import torch
from samples import segmented

from mmcalib.metrics import CalibrationMetric
from mmcalib.metrics.bins.growing_array import GrowingArray


def living_tensors():
    gc.collect()
    return sum(isinstance(each, torch.Tensor) for each in gc.get_objects())


@pytest.mark.parametrize('protocol', ['pooled', 'image', 'paper', 'boundary'])
def test_an_image_leaves_no_tensor_of_its_own(protocol):
    # 5,000 images of 21×200×200 kept 20 GB of holes between theirs.
    metric = CalibrationMetric(
        ('ECE', 'AECE', 'NLL', 'Brier', 'ClasswiseECE', 'TACE'), protocol=protocol, per_class=True
    )
    metric.keep_statistics = True
    samples = segmented(40)
    for number, sample in enumerate(samples):
        metric.process(None, [sample])
        if number == 15:
            before = living_tensors()
    # The protocol 'paper' keeps the values of each batch of 8 images.
    assert living_tensors() - before < 12, 'of 24 images'


def test_rows_stay_as_they_were_appended():
    array, rows = GrowingArray(3), torch.rand(50, 3, dtype=torch.float64)
    for start in range(0, 50, 7):
        array.append(rows[start : start + 7].clone())
    assert len(array) == 50 and torch.equal(array.rows, rows)
    widened = GrowingArray(dtype=torch.float32).append(torch.ones(2)).append(rows[:2, 0])
    assert widened.rows.dtype == torch.float64 and widened.rows.tolist()[2:] == rows[:2, 0].tolist()
