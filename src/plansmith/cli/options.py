"""Options shared by several commands, and shell completion of their values."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from plansmith.errors import UsageError

_ARTIFACTS = Path("artifacts")
DEFAULT_REPOSITORY = _ARTIFACTS / "repository"
_MAX_NUMBER = 2**31 - 1


def repository_option(description: str) -> Callable[[Any], Any]:
    """Add `--repository`, with help on what the command does with it."""
    return click.option(
        "--repository",
        metavar="DIR",
        type=click.Path(path_type=Path),
        default=DEFAULT_REPOSITORY,
        show_default=True,
        help=description,
        shell_complete=complete_folder,
    )


def service_option(description: str, *names: str) -> Callable[[Any], Any]:
    """Add `--service`, the service file.

    Args:
        description: what the command does with it.
        names: of the option that it has besides.
    """
    return click.option(
        "--service",
        *names,
        "service",
        metavar="FILE",
        type=click.Path(path_type=Path),
        default=Path("configs") / "service.yaml",
        show_default=True,
        help=description,
        shell_complete=complete_file,
    )


def artifacts_option(description: str) -> Callable[[Any], Any]:
    """Add `--artifacts`, with help on what the command does with it."""
    return click.option(
        "--artifacts",
        metavar="DIR",
        type=click.Path(path_type=Path),
        default=_ARTIFACTS,
        show_default=True,
        help=description,
        shell_complete=complete_folder,
    )


def size_from_option(context: click.Context, parameter: click.Parameter, value: str | None) -> int | None:
    """Parse a size as users write it."""
    from pydantic import TypeAdapter, ValidationError

    from plansmith.records.fields import ByteCount

    del context
    try:
        return None if value is None else TypeAdapter[int](ByteCount).validate_python(value)
    except ValidationError:
        name = parameter.opts[0]
        raise UsageError(f"{name} {value!r} is no size", remedy=f"write it like 8G or 512M: {name} 8G") from None


def complete_target(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete a target: the known names, otherwise files."""
    from plansmith.config.target_names import target_names

    items = [CompletionItem(name) for name in target_names() if name.startswith(incomplete)]
    return items or complete_file(ctx, param, incomplete)


def complete_gpu(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete a kind of GPU."""
    del ctx, param
    from plansmith.system.gpu_catalog import kind_names

    return [CompletionItem(name) for name in kind_names() if name.lower().startswith(incomplete.lower())]


def complete_model(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete a model: those with releases in the repository."""
    del param
    root = Path(ctx.params.get("repository") or Path(ctx.params.get("artifacts") or _ARTIFACTS) / "repository")
    try:
        # As ModelRepository lays them out; importing it takes longer than a person at the keyboard waits.
        names = [folder.name for folder in root.resolve().with_name(f"{root.name}.plansmith").glob("releases/*")]
    except (OSError, ValueError):
        return []
    return [CompletionItem(name) for name in sorted(names) if name.startswith(incomplete)]


def complete_release(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete a release: models, otherwise files."""
    return complete_model(ctx, param, incomplete) or complete_file(ctx, param, incomplete)


def complete_file(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Let the shell complete files."""
    del ctx, param
    return [CompletionItem(incomplete, type="file")]


def complete_folder(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Let the shell complete folders."""
    del ctx, param
    return [CompletionItem(incomplete, type="dir")]


def read_names(option: str, text: str | None, choices: Iterable[str]) -> tuple[str, ...]:
    """Parse a comma-separated list of names; none for an empty text.

    Raises:
        UsageError: there is none, or an unknown one.
    """
    names = _parts(option, text)
    unknown = [name for name in names if name not in set(choices)]
    if unknown:
        raise UsageError(
            f"{option} has {', '.join(map(repr, unknown))}", remedy=f"choose from {', '.join(choices)}, separated by ,"
        )
    return names


def read_numbers(option: str, text: str | None, *, least: int = 1, most: int = _MAX_NUMBER) -> tuple[int, ...]:
    """Parse a comma-separated list of numbers, sorted ascending; none for an empty text.

    Raises:
        UsageError: there is none, or one out of range.
    """
    parts = _parts(option, text)
    wrong = [part for part in parts if not (part.isascii() and part.isdecimal() and len(part) <= 10)]
    wrong = wrong or [part for part in parts if not least <= int(part) <= most]
    if wrong:
        raise UsageError(
            f"{option} has {', '.join(map(repr, wrong))}",
            remedy=f"give whole numbers from {least} to {most}, separated by ,",
        )
    return tuple(sorted(map(int, parts)))


def _parts(option: str, text: str | None) -> tuple[str, ...]:
    if text is None:
        return ()
    parts = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not parts:
        raise UsageError(f"{option} names nothing", remedy="give one or several, separated by ,")
    return parts
