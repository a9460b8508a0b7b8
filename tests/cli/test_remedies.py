"""What the remedies of errors tell to type can be typed: the commands and their options are there."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import click
import pytest

from plansmith.cli import cli

from ..support.source import source_files

_COMMAND = re.compile(r"plansmith ((?:[a-z][a-z-]*)(?: [^`;,()\n]*)?)")
_NO_COMMANDS = {"comes", "is", "on", "that"}
"""What follows plansmith in a sentence."""


def _remedies() -> Iterator[tuple[str, str]]:
    """Module and text of every remedy that stands in the source; X stands for what is put into it."""
    for module, path in source_files():
        for call in ast.walk(ast.parse(path.read_text())):
            if isinstance(call, ast.keyword) and call.arg == "remedy":
                yield from ((module, text) for text in _texts(call.value))


def _texts(value: ast.expr) -> Iterator[str]:
    if isinstance(value, ast.JoinedStr):
        yield "".join(str(part.value) if isinstance(part, ast.Constant) else "X" for part in value.values)
    elif isinstance(value, ast.Constant):
        yield str(value.value)
    else:
        for inner in ast.iter_child_nodes(value):
            if isinstance(inner, ast.expr):
                yield from _texts(inner)


TYPED = sorted({(module, typed) for module, text in _remedies() for typed in _COMMAND.findall(text)})


@pytest.mark.parametrize(("module", "typed"), TYPED)
def test_remedy_command_can_be_typed(module: str, typed: str) -> None:
    """A command of a remedy can be typed."""
    tokens = typed.split()
    if tokens[0] in _NO_COMMANDS:
        return
    command: click.Command = cli
    context = click.Context(cli)
    while isinstance(command, click.Group):
        subcommand = command.get_command(context, tokens.pop(0)) if tokens else None
        assert subcommand is not None, f"{module}: {typed}"
        command = subcommand
    options = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    assert {word for word in tokens if word.startswith("--")} <= {*options, "--help"}, f"{module}: {typed}"
