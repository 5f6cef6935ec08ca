"""The text of a config, as checkpoints hold it, read without running any of it."""

from __future__ import annotations

import ast

WRONG = (AttributeError, SyntaxError, TypeError, ValueError, RecursionError, MemoryError)


def _value(node: ast.AST) -> object:
    """Return a literal's value; ``dict(a=1)`` is one, and the name of a class is a text."""
    pairs = None
    if isinstance(node, ast.Call) and ast.unparse(node.func) == 'dict':
        pairs = [(None, each) for each in node.args] + [(k.arg, k.value) for k in node.keywords]
    elif isinstance(node, ast.Dict):
        keys = [key and _value(key) for key in node.keys]
        pairs = zip(keys, node.values, strict=True)
    if pairs is not None:
        found = {}
        for key, value in pairs:
            found |= _value(value) if key is None else {key: _value(value)}
        return found
    if isinstance(node, (ast.List, ast.Tuple)):
        found = map(_value, node.elts)
        return list(found) if isinstance(node, ast.List) else tuple(found)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand)
    if isinstance(node, ast.Name):
        return float(node.id) if node.id in ('inf', 'nan') else node.id
    if isinstance(node, ast.Attribute) and isinstance(node.value, (ast.Name, ast.Attribute)):
        return ast.unparse(node)
    return ast.literal_eval(node)


def parse_config(text: str) -> dict:
    """Return the values in a text of ``key = value`` lines, as checkpoints of mmengine hold it.

    Values are literals, ``dict(…)`` of them, and names of classes, which become texts. No part of
    it is executed, since a checkpoint may be anyone's.

    Raises:
        ValueError: If the text holds anything else.
    """
    found = {}
    try:
        for line in ast.parse(text).body:
            (target,) = line.targets
            found[target.id] = _value(line.value)
    except WRONG as error:
        raise ValueError(f'it is not a config: {error}') from error
    return found
