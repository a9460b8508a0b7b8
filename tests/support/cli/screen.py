"""`plansmith` in a terminal of its own: what was written to it, and what stands on its screen at the end."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .command import COMMAND, environment

_SEQUENCE = re.compile(r"\x1b\[([?\d;]*)([A-Za-z])")
_DEADLINE_SECONDS = 120


@dataclass(frozen=True)
class Shown:
    """What a terminal was sent.

    Args:
        status: the exit code.
        written: every character, sequences included.
        columns: of the terminal.
    """

    status: int
    written: str
    columns: int

    @property
    def sequences(self) -> set[str]:
        """The last letters of the escape sequences: m colours, A and K draw again."""
        return {match[2] for match in _SEQUENCE.finditer(self.written)}

    @property
    def colours(self) -> list[str]:
        """The sequences that set a colour, and not only bold or dim."""
        sequences = [codes for codes, last in _SEQUENCE.findall(self.written) if last == "m"]
        return [codes for codes in sequences if any(30 <= int(code or 0) <= 107 for code in codes.split(";"))]

    @property
    def screen(self) -> list[str]:
        """The lines that are left, as a terminal that wraps shows them."""
        return [line.rstrip() for line in _Screen(self.columns).show(self.written)]

    @property
    def text(self) -> str:
        """All that stands on the screen, lines that were wrapped put together again at the last column."""
        lines = _Screen(self.columns).show(self.written)
        return "".join(line if len(line) == self.columns else f"{line}\n" for line in lines)


def in_terminal(
    folder: Path,
    *arguments: str,
    columns: int = 80,
    without: str = "",
    command: Sequence[str] = COMMAND,
    **variables: str,
) -> Shown:
    """Run one command line to its end, with all three streams on a terminal.

    Args:
        folder: the working directory.
        arguments: the command line.
        columns: how wide the terminal is.
        without: a variable that is not set.
        command: what stands before the arguments.
        variables: of the environment.
    """
    values = environment(**{"TERM": "xterm-256color", **variables})
    own = {
        key: value for key, value in values.items() if key not in {"COLUMNS", "NO_COLOR", "FORCE_COLOR"} - {*variables}
    }
    own.pop(without, None)
    screen, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    process = subprocess.Popen(
        [*command, *arguments], cwd=folder, env=own, stdin=terminal, stdout=terminal, stderr=terminal
    )
    os.close(terminal)
    with os.fdopen(screen, "rb", buffering=0) as stream:
        written = b"".join(_read(stream.fileno()))
    return Shown(process.wait(timeout=_DEADLINE_SECONDS), written.decode().replace("\r\n", "\n"), columns)


def _read(number: int) -> list[bytes]:
    """All that comes until the last process closes the terminal, which Linux tells as an error."""
    chunks: list[bytes] = []
    while True:
        try:
            part = os.read(number, 65536)
        except OSError:
            return chunks
        if not part:
            return chunks
        chunks.append(part)


class _Screen:
    """The few things that a terminal does: letters, line ends, up, and erasing a line."""

    def __init__(self, columns: int) -> None:
        self._columns = columns
        self._lines: list[list[str]] = [[]]
        self._row = self._column = 0

    def show(self, written: str) -> list[str]:
        place = 0
        while place < len(written):
            sequence = _SEQUENCE.match(written, place)
            if sequence:
                self._obey(sequence[1], sequence[2])
                place = sequence.end()
            else:
                self._put(written[place])
                place += 1
        return ["".join(line) for line in self._lines]

    def _obey(self, codes: str, last: str) -> None:
        if last == "A":
            self._row = max(self._row - int(codes or 1), 0)
        elif last == "K":
            assert codes == "2"
            self._lines[self._row] = []
        else:
            assert last in "mhl", f"what is {codes}{last}?"

    def _put(self, letter: str) -> None:
        if letter == "\r":
            self._column = 0
        elif letter == "\n":
            self._next_row()
        else:
            if self._column == self._columns:
                self._next_row()
            line = self._lines[self._row]
            line.extend(" " * (self._column + 1 - len(line)))
            line[self._column] = letter
            self._column += 1

    def _next_row(self) -> None:
        self._row, self._column = self._row + 1, 0
        self._lines.extend([] for _ in range(self._row + 1 - len(self._lines)))
