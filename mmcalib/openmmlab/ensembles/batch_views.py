"""Batches out of a batch: of one view of each image, of copies of one image."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from mmengine.structures import BaseDataElement
from torch import Tensor


def views_of_batch(data: Mapping) -> list[Mapping]:
    """Return the batches of a batch with several views of each image, one of a batch without."""
    samples = data.get('data_samples')
    if not samples or not isinstance(samples[0], (list, tuple)):
        return [data]
    return [{key: value[view] for key, value in data.items()} for view in range(len(samples))]


def upright_view(data: Mapping) -> Mapping:
    """Return the first view of a batch that is not flipped, the first if all are."""
    views = views_of_batch(data)
    if len(views) == 1:
        return views[0]
    return next((v for v in views if not v['data_samples'][0].metainfo.get('flip')), views[0])


def copies_of_image(batch: Mapping, place: int, count: int) -> dict[str, Any]:
    """Return a batch of copies of one image; each data sample is one of its own."""
    copies = {}
    for key, values in batch.items():
        items = [values[place]] * count
        if isinstance(values[place], BaseDataElement):
            items = [item.clone() for item in items]
        copies[key] = torch.stack(items) if isinstance(values, Tensor) else items
    return copies
