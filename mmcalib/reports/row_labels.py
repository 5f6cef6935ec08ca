"""What tells configs apart, as ``key=value``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

Place = tuple[str, ...]
ABSENT = '–'


def distinct(names: Sequence[str], configs: Sequence[Mapping]) -> list[str]:
    """Return names, those that several configs have with the settings in which these differ."""
    found = list(names)
    for name in dict.fromkeys(names):
        places = [number for number, each in enumerate(names) if each == name]
        told = told_apart([configs[number] for number in places])
        for number, words in zip(places, told, strict=True):
            found[number] = ', '.join([name, *words])
    return found


def told_apart(configs: Sequence[Mapping]) -> list[list[str]]:
    """Return what each config has otherwise than most, such as ``max_epochs=30``.

    What no single majority shares is said of each config.

    Args:
        configs: Nested mappings and lists, in JSON's types.
    """
    settings = [flatten(config) for config in configs]
    said: list[list[str]] = [[] for _ in configs]
    for place in dict.fromkeys(place for each in settings for place in each):
        part = (*place[:-1], 'type')
        is_part = place != part and any(part in each for each in settings)
        # The options of what is not there need no word.
        there = [n for n, each in enumerate(settings) if part in each or not is_part]
        texts = {n: key_and_value(place, settings[n].get(place, ABSENT)) for n in there}
        (most, count), *others = Counter(texts.values()).most_common(2)
        if others:
            is_usual = count > others[0][1]
            for n, text in texts.items():
                if not (is_usual and text == most):
                    said[n].append(text)
    return said


def flatten(node: object, place: Place = ()) -> dict[Place, object]:
    """Return the settings of a config by their places in it.

    What a list holds is known by its type, so that a transform more does not move the others.
    """
    if isinstance(node, list) and len(node) == 1 and isinstance(node[0], list):
        node = node[0]
    if isinstance(node, list) and all(_is_part(item) for item in node):
        seen, parts = Counter(), {}
        for each in node:
            seen[each['type']] += 1
            number = f' {seen[each["type"]]}' if seen[each['type']] > 1 else ''
            parts[f'{each["type"]}{number}'] = each
        node = parts
    if not isinstance(node, Mapping):
        return {} if node is None else {place: node}
    return {
        inner: value
        for key, item in node.items()
        for inner, value in flatten(item, (*place, str(key))).items()
    }


def _is_part(node: object) -> bool:
    return isinstance(node, Mapping) and isinstance(node.get('type'), str)


def key_and_value(place: Place, value: object) -> str:
    """Return ``RandomCrop.padding=4`` of a place; the part of a config goes without saying."""
    *before, last = place
    parts = before if last == 'type' and before else place
    name = '.'.join(parts[1:] or parts)
    return name if value == parts[-1] else f'{name}={value}'
