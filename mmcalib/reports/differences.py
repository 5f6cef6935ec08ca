"""What tells configs apart, as ``key=value``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

Path = tuple[str, ...]
ABSENT = '–'


def differences(configs: Sequence[Mapping]) -> list[list[str]]:
    """Return what each config has otherwise than most, such as ``max_epochs=30``.

    What no single majority shares is said of each config.

    Args:
        configs: Nested mappings and lists, in JSON's types.
    """
    settings = [flatten(config) for config in configs]
    said: list[list[str]] = [[] for _ in configs]
    for path in dict.fromkeys(path for each in settings for path in each):
        part = (*path[:-1], 'type')
        is_part = path != part and any(part in each for each in settings)
        # The options of what is not there need no word.
        texts = [
            None if is_part and part not in each else key_and_value(path, each.get(path, ABSENT))
            for each in settings
        ]
        counts = Counter(text for text in texts if text is not None).most_common(2)
        if len(counts) < 2:
            continue
        most = counts[0][0] if counts[0][1] > counts[1][1] else None
        for words, text in zip(said, texts, strict=True):
            if text not in (None, most):
                words.append(text)
    return said


def flatten(node: object, path: Path = ()) -> dict[Path, object]:
    """Return the settings of a config by their places in it.

    What a list holds is known by its type, so that a transform more does not move the others.
    """
    if isinstance(node, list) and len(node) == 1 and isinstance(node[0], list):
        node = node[0]
    typed = isinstance(node, list) and all(isinstance(e, Mapping) and 'type' in e for e in node)
    if typed:
        seen, parts = Counter(), {}
        for each in node:
            seen[each['type']] += 1
            number = f' {seen[each["type"]]}' if seen[each['type']] > 1 else ''
            parts[f'{each["type"]}{number}'] = each
        node = parts
    if not isinstance(node, Mapping):
        return {} if node is None else {path: node}
    return {
        place: value
        for key, item in node.items()
        for place, value in flatten(item, (*path, str(key))).items()
    }


def key_and_value(path: Path, value: object) -> str:
    """Return ``RandomCrop.padding=4`` of a place; the part of a config goes without saying."""
    *before, last = path
    parts = before if last == 'type' and before else path
    name = '.'.join(parts[1:] or parts)
    return name if value == parts[-1] else f'{name}={value}'
