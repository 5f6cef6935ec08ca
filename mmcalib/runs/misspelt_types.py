"""A ``type`` in a config that no registry knows, and the nearest one that exists."""

from __future__ import annotations

import re

from mmengine import registry

from mmcalib.near_names import suggestion
from mmcalib.runs.constructor_arguments import known_types
from mmcalib.runs.loss_config import type_name

# As mmengine ends the errors of all its registries.
UNKNOWN = re.compile(r'([\w.]+) is not in the (?:\w+::)?([\w ]+) registry')


def unknown_type(error: Exception) -> str | None:
    """Return what to correct after an error of a registry, None after another error."""
    found = UNKNOWN.search(str(error))
    if found is None:
        return None
    kind, name = found.groups()
    known = set()
    for root in vars(registry).values():
        if isinstance(root, registry.Registry) and root.name == name:
            known = known_types(root)
    return (
        f'there is no {name} of type={kind!r}{suggestion(type_name(kind), known)}; a class of your '
        "own needs custom_imports=dict(imports=['ITS.MODULE']) in the config"
    )
