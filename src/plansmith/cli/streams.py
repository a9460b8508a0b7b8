"""Standard output and standard error, whatever they lead to: a terminal, a file, or a reader that has gone."""

from __future__ import annotations

import codecs
import contextlib
import io
import os
import shutil
import sys
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer
    from rich.console import Console

_STANDARD_INPUT, _STANDARD_OUTPUT, _STANDARD_ERROR = 0, 1, 2
_UNABLE_TERMINALS = {"", "dumb", "unknown"}
_WRITABLE = "plansmith-writable"
_PLAIN = {"…": "...", "·": "-", "–": "-", "→": "->", "✓": "+", "✗": "X"}


def prepare_streams() -> None:
    """Make the standard streams fit for any reader and any encoding; once, before anything is printed.

    A reader that has had enough (`| head -1`) is no error: what is printed goes nowhere from then on, the work goes
    on, and the exit code tells how the work went. A character that the encoding lacks is written in ASCII.
    """
    _open_missing()
    codecs.register_error(_WRITABLE, _writable)
    sys.stdout = _text_stream(_Output(_STANDARD_OUTPUT, "wb", closefd=False), sys.stdout)
    sys.stderr = _text_stream(_Messages(_STANDARD_ERROR, "wb", closefd=False), sys.stderr)


def open_console(*, stderr: bool = False) -> Console:
    """A standard stream for lines with colours; without them where the terminal or the user wants none."""
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
    """The width of a terminal, which knows it better than COLUMNS does; for other streams what COLUMNS says, or 80."""
    own = os.get_terminal_size(stream.fileno()).columns if stream.isatty() else 0
    return own or shutil.get_terminal_size().columns


def can_redraw() -> bool:
    """Whether standard error is a terminal on which a line can be drawn again."""
    return sys.stderr.isatty() and _is_able()


class _Output(io.FileIO):
    """A stream whose reader may go; all other faults are told once, as faults of standard output."""

    _lost = False

    def write(self, data: ReadableBuffer, /) -> int:
        """Write, or drop what nobody reads any more."""
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
    """Standard error: where it cannot be written there is no place to say so, and the work matters more."""

    def _judge(self, error: OSError) -> None:
        del error


def _text_stream(raw: _Output, was: TextIO | None) -> io.TextIOWrapper:
    encoding = was.encoding if was is not None else "utf-8"
    return io.TextIOWrapper(io.BufferedWriter(raw), encoding=encoding, errors=_WRITABLE, line_buffering=True)


def _is_able() -> bool:
    """Whether a terminal, if there is one, knows of colours and of moving about."""
    return os.environ.get("TERM", "").lower() not in _UNABLE_TERMINALS


def _open_missing() -> None:
    """Lead closed streams (`>&-`) nowhere, so that no file that is opened later gets their number."""
    for number in (_STANDARD_INPUT, _STANDARD_OUTPUT, _STANDARD_ERROR):
        try:
            os.fstat(number)
        except OSError:
            with contextlib.suppress(OSError):
                os.open(os.devnull, os.O_RDWR)


def _writable(error: UnicodeError) -> tuple[str | bytes, int]:
    """What stands for characters that an encoding lacks: a file name's raw byte, plain ASCII, or the number."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    first = error.object[error.start]
    if "\udc80" <= first <= "\udcff":  # a byte of a file name that is no text, as os.fsdecode gives it
        return bytes([ord(first) - 0xDC00]), error.start + 1
    plain = _PLAIN.get(first) or first.encode("ascii", "backslashreplace").decode("ascii")
    return plain, error.start + 1
