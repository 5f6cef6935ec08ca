"""Sections, tables and code blocks of the pages in docs/reference."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Mapping
from typing import Any

from commands import ROOT

REQUIRED = 'required'


def page(name: str) -> str:
    return (ROOT / 'docs/reference' / name).read_text('utf-8')


def sections(text: str) -> dict[str, str]:
    """Return what is below each heading of the second level."""
    parts = re.split(r'^## (.+)$', text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def parameter_rows(section: str) -> dict[str, list[str]]:
    """Return the cells after the name of each row of the section's table of parameters."""
    lines = section.split('\n')
    start = next((i for i, line in enumerate(lines) if line.startswith('| parameter |')), None)
    if start is None:
        return {}
    rows = {}
    for line in lines[start + 2 :]:
        if not line.startswith('|'):
            break
        name, *cells = [cell.strip() for cell in line.strip('|').split(' | ')]
        rows[name.strip('` ')] = cells
    return rows


def code_blocks(section: str) -> list[str]:
    return re.findall(r'```python\n(.*?)```', section, flags=re.DOTALL)


def defaults(function: Any, leave_out: tuple[str, ...] = ()) -> dict[str, str]:
    """Return the defaults of named parameters as pages print them."""
    named = (
        p
        for p in inspect.signature(function).parameters.values()
        if p.kind is not p.VAR_KEYWORD and p.name not in leave_out
    )
    return {p.name: REQUIRED if p.default is p.empty else f'`{p.default!r}`' for p in named}


def value_cases(cell: str, default: Any) -> tuple[list, list]:
    """Return values that a cell allows, and some that it does not."""
    texts = re.findall(r'`([^`]+)`', cell)
    at_least = re.search(r'≥ ([\d.]+)', cell)
    within = re.fullmatch(r'\[([\d.]+), ([\d.]+)\]', cell)
    if within:
        low, high = map(float, within.groups())
        return [low, high], [low - 1, high + 1]
    if at_least and isinstance(default, (int, float)):
        bound = type(default)(float(at_least.group(1)))
        return [bound, bound + 2], [bound - 1]
    if texts and '≥' not in cell and '≤' not in cell:
        try:
            return [ast.literal_eval(text) for text in texts], ['none of these']
        except (ValueError, SyntaxError):  # the names of other parameters
            pass
    return [], []


def check_values(make: Any, section: str, required: Mapping[str, Any]) -> int:
    """Raise unless each value that a section allows can be had, and others not; count them."""
    counted = 0
    for name, (default, values, _) in parameter_rows(section).items():
        if not default.startswith('`'):
            continue
        good, bad = value_cases(values, ast.literal_eval(default.strip('`')))
        for value in good:
            make(**{**required, name: value})
        for value in bad:
            try:
                make(**{**required, name: value})
            except (TypeError, ValueError):
                counted += 1
            else:
                raise AssertionError(f'{make.__name__} takes {name}={value!r}')
    return counted
