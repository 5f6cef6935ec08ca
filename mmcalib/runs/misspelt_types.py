"""A ``type`` in a config that no registry knows, and the nearest one that exists."""

from __future__ import annotations

import re

from mmengine import registry

from mmcalib.checks import suggestion
from mmcalib.runs.constructor_arguments import known_types
from mmcalib.runs.loss_config import type_name

# As mmengine writes the errors of all its registries.
UNKNOWN = re.compile(
    r"([\w.]+) is not in the (?:\w+::)?([\w ]+) registry\. Please check .*? found at [^\s'\")]+"
)


def with_nearest_type(message: str) -> str:
    """Return an error with what to correct, in place of what mmengine wrote about a type."""
    return UNKNOWN.sub(lambda found: _remedy(*found.groups()), message)


def _remedy(kind: str, name: str) -> str:
    known = set()
    for root in vars(registry).values():
        if isinstance(root, registry.Registry) and root.name == name:
            known = known_types(root)
    near = suggestion(type_name(kind), known)
    return (
        f'there is no {name} of type={kind!r}{near or "."} A class of your own needs '
        "custom_imports=dict(imports=['ITS.MODULE']) in the config"
    )
