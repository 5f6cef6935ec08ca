"""The text of a config, as checkpoints hold it, read without running any of it."""

from __future__ import annotations

import ast

NUMBERS = {'inf': float('inf'), 'nan': float('nan')}


def parse_config(text: str) -> dict:
    """Return the values in a text of ``key = value`` lines, as checkpoints of mmengine hold it.

    Values are literals, ``dict(…)`` of them, and names of classes, which become texts. No part of
    it is executed, since a checkpoint may be anyone's.

    Raises:
        ValueError: If the text holds anything else.
    """
    try:
        return dict(_assignment(line) for line in ast.parse(text).body)
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError(f'it is not a config: {error}') from error


def _assignment(line: ast.stmt) -> tuple[str, object]:
    if isinstance(line, ast.Assign) and len(line.targets) == 1:
        target = line.targets[0]
        if isinstance(target, ast.Name):
            return target.id, _value(line.value)
    raise _code(line)


def _code(node: ast.AST) -> ValueError:
    return ValueError(f'line {node.lineno} is code: {ast.unparse(node)[:60]}')


def _value(node: ast.expr) -> object:
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.List):
        return [_value(item) for item in node.elts]
    if isinstance(node, ast.Tuple):
        return tuple(_value(item) for item in node.elts)
    if isinstance(node, ast.Set):
        return {_value(item) for item in node.elts}
    if isinstance(node, ast.Dict):
        return dict(_item(*pair) for pair in zip(node.keys, node.values, strict=True))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = _value(node.operand)
        if isinstance(value, (int, float)):
            return -value
    if isinstance(node, ast.Name):
        return NUMBERS.get(node.id, node.id)
    if isinstance(node, ast.Attribute) and _is_dotted_name(node):
        return ast.unparse(node)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == 'dict':
        return _dict(node)
    raise _code(node)


def _is_dotted_name(node: ast.expr) -> bool:
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Name)


def _dict(node: ast.Call) -> dict:
    values = {}
    for key, argument in [
        *((None, argument) for argument in node.args),
        *((keyword.arg, keyword.value) for keyword in node.keywords),
    ]:
        value = _value(argument)
        if key is not None:
            values[key] = value
        elif isinstance(value, dict):
            values.update(value)
        else:
            raise _code(node)
    return values


def _item(key: ast.expr | None, value: ast.expr) -> tuple:
    if key is None:  # of {**value}
        raise _code(value)
    return _value(key), _value(value)
