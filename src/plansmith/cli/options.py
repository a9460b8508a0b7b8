"""Options that several commands have."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem


def repository_option(words: str) -> Callable[[Any], Any]:
    """`--repository`, with what the command does with it."""
    default = Path("artifacts/repository")
    return click.option("--repository", type=click.Path(path_type=Path), default=default, show_default=True, help=words)


def complete_target(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """What the shell offers for a target: the known names, or else files."""
    del ctx, param
    from plansmith.targets import target_names

    found = [CompletionItem(name) for name in target_names() if name.startswith(incomplete)]
    return found or [CompletionItem(incomplete, type="file")]


def artifacts_option(words: str) -> Callable[[Any], Any]:
    """`--artifacts`, with what the command does with it."""
    default = Path("artifacts")
    return click.option("--artifacts", type=click.Path(path_type=Path), default=default, show_default=True, help=words)
