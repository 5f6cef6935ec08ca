"""Labels of rows and tables: the settings in which configs differ, as ``key=value``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain

KeyPath = tuple[str, ...]
ABSENT = '–'


def distinct_names(names: Sequence[str], configs: Sequence[Mapping]) -> list[str]:
    """Return names; equal ones get the settings in which their configs differ."""
    labels = list(names)
    for name in dict.fromkeys(names):
        indices = [index for index, other in enumerate(names) if other == name]
        differences = differing_settings([configs[index] for index in indices])
        for index, settings in zip(indices, differences, strict=True):
            labels[index] = ', '.join([name, *settings])
    return labels


def differing_settings(configs: Sequence[Mapping]) -> list[list[str]]:
    """Return the settings that each config has otherwise than most, such as ``max_epochs=30``.

    Where no single value is in most configs, each config has its own in the result.

    Args:
        configs: Nested mappings and lists, in JSON's types.
    """
    all_settings = [flatten(config) for config in configs]
    differences: list[list[str]] = [[] for _ in configs]
    for path in dict.fromkeys(chain.from_iterable(all_settings)):
        texts = _texts_at(path, all_settings)
        counts = Counter(texts.values()).most_common(2)
        if len(counts) < 2:
            continue
        (most_common, count), (_, next_count) = counts
        usual = most_common if count > next_count else None
        for index, text in texts.items():
            if text != usual:
                differences[index].append(text)
    return differences


def _texts_at(path: KeyPath, all_settings: Sequence[Mapping[KeyPath, object]]) -> dict[int, str]:
    """Return the setting at a path as text, by the index of the config.

    Where a part of the config is missing, its type alone is said to be absent: its options are not.
    """
    type_path = (*path[:-1], 'type')
    is_option = path != type_path and any(type_path in settings for settings in all_settings)
    return {
        index: key_and_value(path, settings.get(path, ABSENT))
        for index, settings in enumerate(all_settings)
        if type_path in settings or not is_option
    }


def flatten(node: object, path: KeyPath = ()) -> dict[KeyPath, object]:
    """Return the settings of a config by their paths of keys.

    A part in a list is known by its type, so that one transform more does not move the others.
    """
    node = _by_type(node)
    if node is None:
        return {}
    if not isinstance(node, Mapping):
        return {path: node}
    settings = {}
    for key, item in node.items():
        settings |= flatten(item, (*path, str(key)))
    return settings


def _by_type(node: object) -> object:
    """Return a list of parts as a mapping by their types, any other node as it is."""
    if isinstance(node, list) and len(node) == 1 and isinstance(node[0], list):
        node = node[0]  # The one pipeline of a data set.
    if not isinstance(node, list) or not all(_is_part(item) for item in node):
        return node
    parts = {}
    counts = Counter()
    for part in node:
        counts[part['type']] += 1
        count = counts[part['type']]
        key = part['type'] if count == 1 else f'{part["type"]} {count}'
        parts[key] = part
    return parts


def _is_part(node: object) -> bool:
    return isinstance(node, Mapping) and isinstance(node.get('type'), str)


def key_and_value(path: KeyPath, value: object) -> str:
    """Return ``RandomCrop.padding=4`` for a setting, without the section of the config."""
    keys = path[:-1] if path[-1] == 'type' and len(path) > 1 else path
    name = '.'.join(keys[1:] or keys)
    return name if value == keys[-1] else f'{name}={value}'
