"""What a Python file says without being run: its classes, and how they can be called."""

from __future__ import annotations

import ast
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

_MOST_BYTES = 16 * 2**20


@dataclass(frozen=True)
class Source:
    """A file that was read.

    `tree`: what it says; None where it cannot be parsed, as `problem` tells, in `line`. `newer`: the Python that will
    run it is newer than the one that reads it, and might; `unsure`: nobody says which Python that is.
    """

    tree: ast.Module | None
    problem: str = ""
    line: int = 0
    newer: bool = False
    unsure: bool = False


def read_source(path: Path, python: str | None) -> Source:
    """Parse a file.

    Args:
        path: of the file.
        python: the version that will run it, such as "3.12"; None where nobody says.
    """
    try:
        if path.stat().st_size > _MOST_BYTES:
            return Source(None, "it is larger than any program is")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return Source(ast.parse(path.read_bytes()))
    except OSError as error:
        return Source(None, str(error.strerror))
    except SyntaxError as error:
        newer = python is not None and tuple(map(int, python.split(".")[:2])) > sys.version_info[:2]
        return Source(None, error.msg, error.lineno or 0, newer=newer, unsure=python is None)
    except (ValueError, RecursionError, MemoryError) as error:
        return Source(None, str(error))


def top_level(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements that run when a module is imported, those in `if`, `try`, `with` and loops too."""
    for statement in body:
        yield statement
        for inner in ("body", "orelse", "finalbody"):
            if not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                yield from top_level(getattr(statement, inner, []))
        for handler in getattr(statement, "handlers", []):
            yield from top_level(handler.body)


def find_class(tree: ast.Module, name: str) -> ast.ClassDef | Literal["elsewhere", "nowhere"]:
    """The class that a module gives a name to, or where it comes from."""
    found: ast.ClassDef | Literal["elsewhere", "nowhere"] = "nowhere"
    for statement in top_level(tree.body):
        if isinstance(statement, ast.ClassDef) and statement.name == name:
            found = statement
        elif _binds(statement, name):
            found = "elsewhere"
    return found


def methods(of: ast.ClassDef) -> dict[str, ast.FunctionDef | ast.AsyncFunctionDef | None]:
    """What a class's own body defines, by name; None for what is no function that can be looked at."""
    found: dict[str, ast.FunctionDef | ast.AsyncFunctionDef | None] = {}
    for statement in top_level(of.body):
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            found[statement.name] = statement
        elif isinstance(statement, ast.Assign | ast.AnnAssign):
            found |= dict.fromkeys(_names(statement))
    return found


def takes(function: ast.FunctionDef | ast.AsyncFunctionDef, count: int, *, on_class: bool = False) -> bool:
    """Whether a method can be called with so many arguments by position.

    Args:
        function: the method.
        count: of arguments, without the instance or class.
        on_class: it is called on the class, where a plain function gets no instance.
    """
    names = {ast.unparse(decorator) for decorator in function.decorator_list}
    if names - {"staticmethod", "classmethod"}:
        return True
    bound = "staticmethod" not in names and (not on_class or "classmethod" in names)
    arguments, given = function.args, count + bound
    positional = [*arguments.posonlyargs, *arguments.args]
    needed = len(positional) - len(arguments.defaults)
    required = [a for a, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if default is None]
    return not required and needed <= given and (arguments.vararg is not None or given <= len(positional))


def _binds(statement: ast.stmt, name: str) -> bool:
    if isinstance(statement, ast.ImportFrom | ast.Import):
        return any((alias.asname or alias.name) in {name, "*"} for alias in statement.names)
    return isinstance(statement, ast.Assign | ast.AnnAssign) and name in _names(statement)


def _names(statement: ast.Assign | ast.AnnAssign) -> Iterator[str]:
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    for target in targets:
        yield from (node.id for node in ast.walk(target) if isinstance(node, ast.Name))
