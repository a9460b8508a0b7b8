"""Words that several commands print."""

from __future__ import annotations

import errno
import shlex
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import click

from plansmith.cli.streams import columns
from plansmith.errors import EnvironmentFault, UsageError

_NARROWEST = 60


def short(path: Path) -> str:
    """A path as a person would type it from here, quoted for the shell where it must be."""
    return shlex.quote(str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path))


def fault_from_os_error(error: OSError) -> EnvironmentFault:
    """What a file, or standard output, that cannot be read or written is to the user."""
    said = f"{error.filename}: {error.strerror}" if error.filename else str(error)
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return EnvironmentFault(said, remedy="free some space, or write it elsewhere")
    return EnvironmentFault(said, remedy="see that it is there, readable and writable")


def write_output(path: Path, content: str | bytes, *, replace: bool, option: str = "--output") -> None:
    """Write what was asked for to the file that was named by an option.

    Raises:
        UsageError: it is there already and may not be replaced, or cannot be written.
    """
    from plansmith.system.files import write_file

    try:
        write_file(path, content, replace=replace)
    except FileExistsError as error:
        raise UsageError(f"{path} is there already", remedy=f"choose another {option}, or pass --force") from error
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}", remedy=f"choose another {option}") from error


def program() -> str:
    """How to call this program from this shell: by its name, or by its path where it is not on PATH."""
    called = Path(sys.argv[0])
    if called.name != "plansmith":
        return "python -m plansmith"
    return "plansmith" if shutil.which("plansmith") == str(called.absolute()) else short(called.absolute())


def nested_lines(value: Any, indent: str = "") -> list[str]:
    """Nested facts as indented lines; numbers stay on one line, and what is empty is left out."""
    lines: list[str] = []
    for key, item in value.items():
        if item in ([], {}):
            continue
        if isinstance(item, dict):
            lines += [f"{indent}{key}:", *nested_lines(item, indent + "  ")]
        elif isinstance(item, list) and isinstance(item[0], int):
            lines.append(f"{indent}{key}: {', '.join(map(str, item))}")
        elif isinstance(item, list):
            lines += [f"{indent}{key}:", *(f"{indent}  {entry}" for entry in item)]
        else:
            lines.append(f"{indent}{key}: {item}")
    return lines


def echo_lines(lines: Iterable[str]) -> None:
    """Print lines; in a terminal those that are too long go on between words, set in deeper than they began."""
    width = columns(sys.stdout) if sys.stdout.isatty() else 0
    for line in lines:
        if width < _NARROWEST or len(line) <= width:
            click.echo(line)
            continue
        deeper = " " * (len(line) - len(line.lstrip()) + 4)
        parts = textwrap.wrap(line, width, subsequent_indent=deeper, break_long_words=False, break_on_hyphens=False)
        click.echo("\n".join(parts))


def require_text(*given: str) -> None:
    """See that names which end up in records are text, the working directory's too.

    Raises:
        UsageError: one has bytes that the locale cannot read.
    """
    for name in (*given, str(Path.cwd())):
        try:
            name.encode()
        except UnicodeEncodeError as error:
            raise UsageError(
                f"{printable(name)} is no text in this locale",
                remedy="export LC_ALL=C.UTF-8, or give the file or folder a name that is text",
            ) from error


def printable(text: str) -> str:
    """Text in one line that a terminal only shows: line ends and the like of file names as escapes."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)


def count(number: int, what: str) -> str:
    """So many of a thing: 1 version, 3 versions."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of cells as lines with columns of equal width; the last column is as long as it is."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def without_empty_columns(rows: Sequence[Sequence[str]]) -> list[list[str]]:
    """Rows without the columns that have a head and nothing else."""
    columns = [column for column in zip(*rows, strict=True) if any(column[1:])]
    return [list(row) for row in zip(*columns, strict=True)]
