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
    if isinstance(expression, ast.BinOp):  # texts are added
        expression = ast.JoinedStr([expression.left, expression.right])
    match expression:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return _joined("", parts, values)
        case ast.Call(
            func=ast.Attribute(value=ast.Constant(value=str(text)), attr="join"), args=[ast.List(elts=parts)]
        ):
            return _joined(text, parts, values)
        case ast.IfExp(body=left, orelse=right):
            return text_of(left, values) or text_of(right, values)
        case ast.FormattedValue(value=ast.Name(id=name)) | ast.Name(id=name):
            value = values.get(name)
            rest = {key: item for key, item in values.items() if key != name}
            return text_of(value if isinstance(value, ast.expr) else ast.Constant(value), rest)
    return ""


def _joined(between: str, parts: list[ast.expr], values: dict[str, Any]) -> str:
    return between.join(text_of(part, values) or "…" for part in parts)
