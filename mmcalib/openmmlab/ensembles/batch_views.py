"""Batches made of another batch: one view of each image, or copies of one image."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from mmengine.structures import BaseDataElement
from torch import Tensor


def split_views(data: Mapping) -> list[Mapping]:
    """Return a batch for each view of the images; the batch itself if images have one view."""
    samples = data.get('data_samples')
    if not samples or not isinstance(samples[0], (list, tuple)):
        return [data]
    views = []
    for index in range(len(samples)):
        views.append({key: values[index] for key, values in data.items()})
    return views


def upright_view(data: Mapping) -> Mapping:
    """Return the first view of a batch that is not flipped; the first view if all are."""
    views = split_views(data)
    upright = [view for view in views if not view['data_samples'][0].metainfo.get('flip')]
    return (upright or views)[0]


def repeat_image(batch: Mapping, index: int, count: int) -> dict[str, Any]:
    """Return a batch of copies of one image, whose data samples are independent."""
    copies = {}
    for key, values in batch.items():
        items = [values[index]] * count
        if isinstance(values[index], BaseDataElement):
            items = [item.clone() for item in items]
        copies[key] = torch.stack(items) if isinstance(values, Tensor) else items
    return copies
