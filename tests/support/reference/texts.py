"""Texts of messages, read from the source without running it."""

from __future__ import annotations

import ast
from functools import cache
from typing import Any


def assigned(statement: ast.stmt, *, before: int) -> dict[str, ast.expr]:
    """The values that variables of a function were last assigned before a line."""
    return {name: value for line, name, value in _assignments(statement) if line < before}


@cache
def _assignments(statement: ast.stmt) -> tuple[tuple[int, str, ast.expr], ...]:
    return tuple(
        (node.lineno, target.id, node.value)
        for node in ast.walk(statement)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    )


def text_of(expression: ast.expr | None, values: dict[str, Any]) -> str:
    """The text of an expression; empty where it is known only when a model is checked."""
    match expression:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(text_of(part, values) or "…" for part in parts)
        case ast.IfExp(body=one, orelse=other):
            return text_of(one, values) or text_of(other, values)
        case ast.FormattedValue(value=ast.Name() as name) | (ast.Name() as name):
            value = values.get(name.id)
            rest = {key: item for key, item in values.items() if key != name.id}
            return value if isinstance(value, str) else text_of(value, rest) if isinstance(value, ast.expr) else ""
        case _:
            return ""
