"""Differences between the configs of several trainings, in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

Path = tuple[str, ...]
PRESENT = object()  # of a transform, hook or schedule, whose options have entries of their own
ABSENT = object()
# The part of a training goes without saying where one of its options is named.
IMPLIED = (
    *('augmentation', 'data', 'hooks', 'length', 'learning_rates', 'loss_schedules', 'network'),
    *('optimizer', 'other_losses', 'sampling', 'model', 'evaluation', 'data_options', 'pipeline'),
)
UNITS = {'max_epochs': 'epochs', 'max_iters': 'iterations'}
RENAMED = {
    'selection': 'validation',
    'save_best': 'best checkpoint by',
    'min_accuracy': 'accuracy floor',
}


def in_words(configs: Sequence[Mapping]) -> tuple[list[list[str]], list[str]]:
    """Return the differences between each config and most of them, in words.

    Args:
        configs: Nested mappings and lists, in JSON's types.

    Returns:
        For each config what it has otherwise than most, and what most have where not all do. A
        setting that no single majority shares is said of each config.
    """
    settings = [flattened(config) for config in configs]
    said: list[list[str]] = [[] for _ in configs]
    of_most = []
    for path in dict.fromkeys(path for each in settings for path in each):
        # The options of what is not there need no word.
        absent = 'no' if len(path) == 1 or _can_be_absent(path, settings) else 'default'
        texts = [
            _words(path, each.get(path, ABSENT), absent)
            if _is_there(each, path, settings)
            else None
            for each in settings
        ]
        counts = Counter(text for text in texts if text is not None).most_common()
        if len(counts) < 2:
            continue
        most = counts[0][0] if counts[0][1] > counts[1][1] else None
        if most is not None:
            of_most.append(most)
        for words, text in zip(said, texts, strict=True):
            if text not in (None, most):
                words.append(text)
    return said, of_most


def flattened(node: object, path: Path = ()) -> dict[Path, object]:
    """Return the settings of a config by their places in it.

    What a list holds is known by its type, so that a transform more does not move the others.
    """
    if isinstance(node, Mapping):
        found = {path: node['type']} if path and 'type' in node else {}
        for key, value in node.items():
            if key != 'type':
                found |= flattened(value, (*path, str(key)))
        return found
    if isinstance(node, list) and any(isinstance(item, (Mapping, list)) for item in node):
        found, seen = {}, Counter()
        for item in node:
            if isinstance(item, list) and len(node) == 1:
                return flattened(item, path)
            name = _name_of(item)
            seen[name] += 1
            place = (*path, name if seen[name] == 1 else f'{name} {seen[name]}')
            found |= {**flattened(item, place), place: PRESENT}
        return found
    return {} if node in ([], None) else {path: node}


def _name_of(item: object) -> str:
    if not isinstance(item, Mapping):
        return 'part'
    if 'parameter' in item and 'type' not in item:
        return f'{item["parameter"]} schedule'
    return str(item.get('type', 'part'))


def _can_be_absent(path: Path, settings: Sequence[Mapping]) -> bool:
    """Return whether a place is of a part that some configs lack, and of no option of one."""
    optional = path[0] == 'other_losses' or path == ('selection', 'min_accuracy')
    return optional or any(each.get(path) is PRESENT for each in settings)


def _is_there(config: Mapping, path: Path, settings: Sequence[Mapping]) -> bool:
    """Return whether a config has the parts that a place lies in, where any config has them."""
    parts = [path[:length] for length in range(1, len(path))]
    return all(part in config or not any(part in each for each in settings) for part in parts)


def _words(path: Path, value: object, absent: str) -> str:
    *before, last = path
    if last in UNITS and value is not ABSENT:
        return f'{value} {UNITS[last]}'
    while before and before[0] in IMPLIED:
        before = before[1:]
    parts = [RENAMED.get(part, part.replace('_', ' ')) for part in [*before, last]]
    name = ' '.join(dict.fromkeys(parts))
    if value is PRESENT:
        return name
    if value is ABSENT:
        return f'{absent} {name}'
    return f'{name} {value}'
