"""The pages on commands: usage, examples and options, as `--help` has them, and a mistake; a page for each section."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

import click

from plansmith.cli import SECTIONS, cli

from .markdown import fenced, page, prose
from .mistakes import MISTAKES

_EXAMPLES = "\b\n"


def command_pages() -> dict[str, str]:
    """The pages by their path in docs/."""
    root = click.Context(cli, info_name="plansmith")
    pages = {}
    for title, commands in SECTIONS.items():
        blocks = [block for name in commands for block in _command(cli.commands[name], root)]
        pages[f"reference/commands/{re.sub(r'[^a-z]+', '-', title.lower())}.md"] = page(title, *blocks)
    return pages


def _command(command: click.Command, parent: click.Context) -> Iterator[str]:
    context = click.Context(command, info_name=command.name, parent=parent)
    depth = 2 if parent.parent is None else 3
    yield f"{'#' * depth} {context.command_path}"
    yield fenced(" ".join([context.command_path, *command.collect_usage_pieces(context)]))
    for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
        yield fenced(paragraph.removeprefix(_EXAMPLES)) if paragraph.startswith(_EXAMPLES) else prose(paragraph)
    options = [item for item in command.get_params(context) if isinstance(item, click.Option)]
    records = (item.get_help_record(context) for item in options)
    listed = [f"- `{names}`: {prose(text)}" for names, text in filter(None, records) if "--help" not in names]
    yield "\n".join(listed)
    if mistake := MISTAKES.get(context.command_path.partition(" ")[2]):
        typed = f"{context.command_path} {mistake.arguments}".rstrip()
        yield f"With one thing wrong (exit code {mistake.status}):"
        yield fenced(f"$ {typed}\nplansmith: {mistake.message}", "console")
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            yield from _command(command.commands[name], context)
