"""The text of a config, as checkpoints hold it, read without running any of it."""

from __future__ import annotations

import ast


class _Literal(ast.NodeTransformer):
    """Turns ``dict(a=1)`` into ``{'a': 1}``, and names of classes into texts."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if ast.unparse(node.func) != 'dict':
            return node
        pairs = [(None, each) for each in node.args]
        pairs += [(each.arg and ast.Constant(each.arg), each.value) for each in node.keywords]
        return self.visit_Dict(ast.Dict([key for key, _ in pairs], [value for _, value in pairs]))

    def visit_Dict(self, node: ast.Dict) -> ast.AST:
        pairs = []
        for key, value in zip(node.keys, map(self.visit, node.values), strict=True):
            inner = isinstance(value, ast.Dict) and key is None  # of dict(**{…})
            pairs += zip(value.keys, value.values, strict=True) if inner else [(key, value)]
        return ast.Dict([key for key, _ in pairs], [value for _, value in pairs])

    def visit_Name(self, node: ast.Name) -> ast.AST:
        number = node.id in ('inf', 'nan')
        return ast.Constant(float(node.id) if number else node.id)

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        of_a_name = isinstance(node.value, (ast.Name, ast.Attribute))
        return ast.Constant(ast.unparse(node)) if of_a_name else node


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
            found[target.id] = ast.literal_eval(_Literal().visit(line.value))
    except (
        AttributeError,
        SyntaxError,
        TypeError,
        ValueError,
        RecursionError,
        MemoryError,
    ) as error:
        raise ValueError(f'it is not a config: {error}') from error
    return found
