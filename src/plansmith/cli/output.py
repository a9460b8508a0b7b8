"""Standard output and standard error: handling of any stream type, and output that several commands share."""

from __future__ import annotations

import codecs
import contextlib
import errno
import io
import os
import shlex
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

from plansmith.errors import EnvironmentFault, UsageError
from plansmith.formatting import short_path

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer
    from rich.console import Console


_STANDARD_INPUT, _STANDARD_OUTPUT, _STANDARD_ERROR = 0, 1, 2
_COLORS_WITHOUT_TERMINAL = ("FORCE_COLOR", "TTY_COMPATIBLE")
_UNABLE_TERMINALS = {"", "dumb", "unknown"}
_WRITABLE = "plansmith-writable"
_PLAIN = {"…": "...", "·": "-", "–": "-", "→": "->", "✓": "+", "✗": "X"}

_NARROWEST = 60
_CAUTION = "not validated"


def prepare_streams() -> None:
    """Prepare the standard streams for any reader and encoding; once, before anything is printed.

    A reader that has had enough (`| head -1`) is no error: what is printed goes nowhere from then on, the work goes
    on, and the exit code tells how the work went. A character that the encoding lacks is written in ASCII.
    """
    _open_missing()
    codecs.register_error(_WRITABLE, _writable)
    sys.stdout = _text_stream(_Output(_STANDARD_OUTPUT, "wb", closefd=False), sys.stdout)
    sys.stderr = _text_stream(_Messages(_STANDARD_ERROR, "wb", closefd=False), sys.stderr)


def open_console(*, stderr: bool = False) -> Console:
    """Open a console on a standard stream; without colors if the terminal or the user wants none."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    plain = stream.isatty() and not _is_able()
    return Console(
        stderr=stderr,
        highlight=False,
        soft_wrap=True,
        color_system=None if plain else "auto",
        width=columns(stream),
    )


def columns(stream: TextIO) -> int:
    """Return the width of a terminal, which overrides COLUMNS; for other streams COLUMNS, or 80."""
    own = os.get_terminal_size(stream.fileno()).columns if stream.isatty() else 0
    return own or shutil.get_terminal_size().columns


def can_redraw() -> bool:
    """Whether standard error is a terminal on which a line can be redrawn."""
    return sys.stderr.isatty() and _is_able()


class _Output(io.FileIO):
    """Output stream that tolerates a closed pipe; other errors are reported once, as standard output errors."""

    _lost = False

    def write(self, data: ReadableBuffer, /) -> int:
        """Write, or discard output that no process reads any more."""
        if not self._lost:
            try:
                return super().write(data)
            except OSError as error:
                self._lost = True
                self._judge(error)
        return memoryview(data).nbytes

    def _judge(self, error: OSError) -> None:
        if not isinstance(error, BrokenPipeError):
            raise OSError(error.errno, error.strerror, "standard output") from error


class _Messages(_Output):
    """Standard error stream that ignores write errors: there is nowhere to report them, and work continues."""

    def _judge(self, error: OSError) -> None:
        del error


def _text_stream(raw: _Output, was: TextIO | None) -> io.TextIOWrapper:
    encoding = was.encoding if was is not None else "utf-8"
    return io.TextIOWrapper(io.BufferedWriter(raw), encoding=encoding, errors=_WRITABLE, line_buffering=True)


def _is_able() -> bool:
    """Whether a terminal, if there is one, supports colors and cursor movement."""
    return os.environ.get("TERM", "").lower() not in _UNABLE_TERMINALS


def _open_missing() -> None:
    """Open closed standard streams (`>&-`) on the null device, so that no later file gets their descriptors."""
    for number in (_STANDARD_INPUT, _STANDARD_OUTPUT, _STANDARD_ERROR):
        try:
            os.fstat(number)
        except OSError:
            with contextlib.suppress(OSError):
                os.open(os.devnull, os.O_RDWR)


def _writable(error: UnicodeError) -> tuple[str | bytes, int]:
    """Replace characters that an encoding lacks: by a file name's raw byte, plain ASCII, or the code point."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    first = error.object[error.start]
    if "\udc80" <= first <= "\udcff":  # a byte of a file name that is no text, as os.fsdecode gives it
        return bytes([ord(first) - 0xDC00]), error.start + 1
    plain = _PLAIN.get(first) or first.encode("ascii", "backslashreplace").decode("ascii")
    return plain, error.start + 1


def short(path: Path) -> str:
    """Shorten a path relative to the working directory, quoted for the shell if necessary."""
    return shlex.quote(short_path(path))


def fault_from_missing_module(error: ModuleNotFoundError) -> EnvironmentFault | None:
    """Return the fault of a missing library of an extra; None if it is no such library, which is a bug."""
    from plansmith.system.libraries import extra_of

    library = (error.name or "").partition(".")[0]
    extra = extra_of(library)
    if not extra:
        return None
    name = "protobuf" if library == "google" else library
    return EnvironmentFault(f"{name} is not installed", remedy=f"pip install 'plansmith[{extra}]'")


def fault_from_os_error(error: OSError) -> EnvironmentFault:
    """Convert an OSError of a file or of standard output to a plansmith error for the user."""
    message = f"{error.filename}: {error.strerror}" if error.filename else str(error)
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return EnvironmentFault(message, remedy="free some space, or write it elsewhere")
    return EnvironmentFault(message, remedy="see that it is there, readable and writable")


def write_output(path: Path, content: str | bytes, *, replace: bool, option: str = "--output") -> None:
    """Write the requested output to the file named by an option.

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


def this_program() -> list[str]:
    """Return the arguments that start this program once more, as it was started."""
    called = Path(sys.argv[0])
    return [sys.executable, str(called)] if called.name == "plansmith" else [sys.executable, "-m", "plansmith"]


def program() -> str:
    """Return the command that runs this program in this shell: its name, or its path if it is not on PATH."""
    called = Path(sys.argv[0])
    if called.name != "plansmith":
        return "python -m plansmith"
    return "plansmith" if shutil.which("plansmith") == str(called.absolute()) else short(called.absolute())


def nested_lines(value: Any, indent: str = "") -> list[str]:
    """Format nested facts as indented lines; numbers share one line, and empty values are left out."""
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
    """Print lines, cautions in yellow; in a terminal long lines are wrapped between words, with a hanging indent."""
    width = columns(sys.stdout) if sys.stdout.isatty() else 0
    for line in lines:
        text = line
        if width >= _NARROWEST and len(line) > width:
            deeper = " " * (len(line) - len(line.lstrip()) + 4)
            parts = textwrap.wrap(line, width, subsequent_indent=deeper, break_long_words=False, break_on_hyphens=False)
            text = "\n".join(parts)
        if line.lstrip().startswith(_CAUTION):
            _echo_styled((text, "yellow"))
        else:
            click.echo(text)


def echo_verdict(before: str, verdict: str) -> None:
    """Print a line that ends in the verdict of the accuracy gate: green if it was passed, otherwise red."""
    _echo_styled((f"{before}, ", ""), (f"gate {verdict}", "bold green" if verdict == "passed" else "bold red"))


def _echo_styled(*parts: tuple[str, str]) -> None:
    """Print a line of texts in styles of rich, which is not imported where colors are not shown."""
    if not sys.stdout.isatty() and not any(map(os.environ.get, _COLORS_WITHOUT_TERMINAL)):
        click.echo("".join(text for text, _ in parts))
        return
    from rich.text import Text

    open_console().print(Text.assemble(*parts))


def require_text(*texts: str) -> None:
    """Require that names stored in records are valid text, including the working directory's path.

    Raises:
        UsageError: one has bytes that the locale cannot read.
    """
    for name in (*texts, str(Path.cwd())):
        try:
            name.encode()
        except UnicodeEncodeError as error:
            raise UsageError(
                f"{printable(name)} is no text in this locale",
                remedy="export LC_ALL=C.UTF-8, or give the file or folder a name that is text",
            ) from error


def printable(text: str) -> str:
    """Escape line breaks and control characters, so that a file name prints as one line."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Format rows of cells as lines with aligned columns; the last column is not padded."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def without_empty_columns(rows: Sequence[Sequence[str]]) -> list[list[str]]:
    """Drop columns that have a header and no values."""
    columns = [column for column in zip(*rows, strict=True) if any(column[1:])]
    return [list(row) for row in zip(*columns, strict=True)]
