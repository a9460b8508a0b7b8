"""Options that several commands have."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click


def repository_option(words: str) -> Callable[[Any], Any]:
    """`--repository`, with what the command does with it."""
    default = Path("artifacts/repository")
    return click.option("--repository", type=click.Path(path_type=Path), default=default, show_default=True, help=words)


def artifacts_option(words: str) -> Callable[[Any], Any]:
    """`--artifacts`, with what the command does with it."""
    default = Path("artifacts")
    return click.option("--artifacts", type=click.Path(path_type=Path), default=default, show_default=True, help=words)
