"""Comparison of the data that two dataloaders read."""

from __future__ import annotations

import os
from collections.abc import Mapping


def same_data(one: Mapping | None, other: Mapping | None) -> bool:
    """Return whether two dataloaders' configs read the same data, whatever their pipelines."""
    if one is None or other is None:
        return False
    return _without_pipeline(one['dataset']) == _without_pipeline(other['dataset'])


def _without_pipeline(node: object) -> object:
    if isinstance(node, Mapping):
        skipped = ('pipeline', 'test_mode', 'lazy_init', 'serialize_data')
        return {key: _without_pipeline(value) for key, value in node.items() if key not in skipped}
    if isinstance(node, (list, tuple)):
        return [_without_pipeline(item) for item in node]
    return os.path.normpath(node) if isinstance(node, str) and '/' in node else node
