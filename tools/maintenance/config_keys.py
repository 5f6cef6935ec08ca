"""The page of all keys that mmcalib's registered classes take in a config.

``write_config_keys.py`` writes it out of signatures and docstrings; a test holds them together.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import NamedTuple

from mmengine.registry import DATASETS, HOOKS, METRICS, MODELS, TRANSFORMS, WEIGHT_INITIALIZERS

from mmcalib import register
from mmcalib.checks import GONE
from mmcalib.losses import BatchLoss, CalibrationLoss
from mmcalib.metrics import CalibrationMetric

HEAD = """\
# Config keys

<!-- Written by tools/maintenance/write_config_keys.py from the docstrings: change those. -->

All keys of mmcalib's classes in a config, besides `type`.
`custom_imports = dict(imports=['mmcalib'])` registers the classes.

mmcalib adds two top-level keys. `num_threads` is the most CPU threads that a run takes: a small
network is slower with more. `evaluations` holds named changes to a config, which
`tools/test.py --evaluation NAME` applies before the test:

```python
evaluations = dict(paper=dict(test_evaluator=[dict(type='CalibrationMetric', protocol='paper')]))
```
"""
# What is built where, in the order of the page.
PLACES = {
    'Losses': 'In `head.loss` (mmpretrain) or `decode_head.loss_decode` (mmseg); formulas and '
    'ranges: [losses](losses.md).',
    'Models': 'In `model`, or in a part of it.',
    'Metrics': 'In `val_evaluator` and `test_evaluator`.',
    'Hooks': 'In `custom_hooks`, or under a new name in `default_hooks`.',
    'Data sets': 'In `train_dataloader.dataset`, and likewise for validation and test.',
    'Transforms': 'In a `pipeline`.',
    'Initialisers': 'In `init_cfg`.',
}
REGISTRIES = {
    'Metrics': METRICS,
    'Hooks': HOOKS,
    'Data sets': DATASETS,
    'Transforms': TRANSFORMS,
    'Initialisers': WEIGHT_INITIALIZERS,
}
OURS = 'mmcalib.'
# Keys of every loss, which have one table.
COMMON = (CalibrationLoss, BatchLoss)
# Classes whose keys others take, which have a section of their own.
OF_CLASSES = {'CalibrationMetric': CalibrationMetric}
LOSS_NAME = (
    'Key in mmseg\'s log. It must contain "loss", or mmengine leaves it out of the gradient.'
)


class Key(NamedTuple):
    """A key of a class: its name, its default as code, and what its docstring tells."""

    name: str
    default: str
    meaning: str


def registered() -> dict[str, dict[str, object]]:
    """Return mmcalib's registered classes and functions by name, in the order of the page."""
    register()
    found = {place: {} for place in PLACES}
    for place, registry in (('Models', MODELS), *REGISTRIES.items()):
        for name, kind in registry.module_dict.items():
            if kind.__module__.startswith(OURS) and name not in GONE:
                is_loss = kind.__module__.startswith('mmcalib.losses')
                found['Losses' if is_loss else place][name] = kind
    return {place: dict(sorted(kinds.items())) for place, kinds in found.items()}


def keys_of(kind: object) -> tuple[list[Key], str | None]:
    """Return the keys of a class or function, and a class elsewhere whose keys it takes as well."""
    if inspect.isclass(kind) and issubclass(kind, CalibrationLoss) and kind not in COMMON:
        return _keys_of_loss(kind)
    keys: dict[str, Key] = {}
    for owner in _owners(kind):
        if not owner.__module__.startswith(OURS):
            return list(keys.values()), owner.__name__
        named = OF_CLASSES.get(owner.__name__) is owner
        if owner is not kind and (owner in COMMON or named):
            return list(keys.values()), owner.__name__
        function = owner if inspect.isfunction(owner) else owner.__init__
        meanings = _meanings(inspect.getdoc(owner) or '')
        parameters = inspect.signature(function).parameters.values()
        for p in parameters:
            if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL) and p.name not in ('self', *keys):
                default = 'required' if p.default is p.empty else f'`{p.default!r}`'
                meaning = LOSS_NAME if p.name == 'loss_name' else meanings.get(p.name, '')
                keys[p.name] = Key(p.name, default, meaning)
        if owner is CalibrationLoss or not any(p.kind is p.VAR_KEYWORD for p in parameters):
            break
    return list(keys.values()), None


def _keys_of_loss(kind: type) -> tuple[list[Key], str]:
    base = BatchLoss if issubclass(kind, BatchLoss) else CalibrationLoss
    meanings = _meanings(inspect.getdoc(kind.formula) or '') | _meanings(inspect.getdoc(kind) or '')
    meanings['loss_name'] = LOSS_NAME
    common = inspect.signature(base).parameters.keys() - {'loss_name'}
    return [
        Key(p.name, 'required' if p.default is p.empty else f'`{p.default!r}`', meanings[p.name])
        for p in inspect.signature(kind).parameters.values()
        if p.name not in common
    ], base.__name__


def _owners(kind: object) -> Iterator:
    """Yield the classes whose ``__init__`` a class runs, its own first; a function is its own."""
    if inspect.isfunction(kind):
        yield kind
        return
    for owner in inspect.getmro(kind)[:-1]:
        if '__init__' in vars(owner):
            yield owner


def page() -> str:
    """Return docs/reference/config_keys.md."""
    parts = [HEAD]
    for place, kinds in registered().items():
        parts.append(f'## {place}\n\n{PLACES[place]}\n')
        if place == 'Losses':
            for base, title in zip(COMMON, ('Every loss', 'MDCA and mL1-ACE'), strict=True):
                parts.append(f'### {title}\n\n{_table(base)}\n')
        for name, kind in kinds.items():
            summary = markdown((inspect.getdoc(kind) or '').split('\n\n')[0])
            parts.append(f'### {name}\n\n{summary}\n\n{_table(kind)}\n')
    return '\n'.join(parts)


def _table(kind: object) -> str:
    keys, parent = keys_of(kind)
    lines = [f'| `{key.name}` | {key.default} | {key.meaning} |' for key in keys]
    if lines:
        lines = ['| key | default | meaning |', '|---|---|---|', *lines]
    if parent == CalibrationLoss.__name__:
        without = ' except `class_weight` and `compile`' if kind is BatchLoss else ''
        lines += ['', f'Also those of [every loss](#every-loss){without}.']
    elif parent == BatchLoss.__name__:
        lines += ['', 'Also those of [both batch terms](#mdca-and-ml1-ace).']
    elif parent in OF_CLASSES:
        lines += ['', f'All keys of [`{parent}`](#{parent.lower()}) except `metrics`.']
    elif parent:
        lines += ['', f'Also those of `{parent}`.']
    elif not lines:
        lines = ['It has no keys.']
    return '\n'.join(lines).strip()


def _meanings(docstring: str) -> dict[str, str]:
    """Return what the section ``Args:`` of a docstring tells of each name."""
    section = re.search(r'^Args:\n(.*?)(?=^\S|\Z)', docstring, flags=re.MULTILINE | re.DOTALL)
    entries = re.split(r'^    (?=[\w*])', section.group(1) if section else '', flags=re.MULTILINE)
    pairs = (entry.split(':', 1) for entry in entries if ':' in entry)
    return {name.strip('* '): markdown(' '.join(text.split())) for name, text in pairs}


def markdown(text: str) -> str:
    """Return a text of a docstring as Markdown, on one line."""
    text = ' '.join(text.split()).replace('::', ':')
    text = re.sub(r':math:`([^`]*)`', r'$\1$', text)
    text = re.sub(r':\w+:`~?(?:[\w.]*\.)?(\w+)`', r'`\1`', text)
    text = re.sub(r'(?<!`)``([^`]+)``(?!`)', r'`\1`', text)
    return text.replace('|', r'\|')
