"""What TensorRT says: every line in the log of the process, and kept for whoever asks why something failed."""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from plansmith.compilers.trt.inspection.verbose import TITLE

# As trtexec marks them, so that one reader does for the logs of both builders.
_LETTERS = {"INTERNAL_ERROR": "F", "ERROR": "E", "WARNING": "W", "INFO": "I"}


@dataclass
class LogCapture:
    """The lines since somebody began to listen, without time, each with the letter of its severity.

    `layers`: the verbose message with the layers of what was built, empty where there was none.
    """

    lines: list[tuple[str, str]] = field(default_factory=list)
    layers: str = ""

    @property
    def text(self) -> str:
        """All of them as a log."""
        return "\n".join(f"[{letter}] [TRT] {line}" for letter, line in self.lines)

    @property
    def errors(self) -> list[str]:
        """What went wrong, in order."""
        return [line for letter, line in self.lines if letter in {"F", "E"}]

    @property
    def warnings(self) -> list[str]:
        """Each once, in order."""
        return list(dict.fromkeys(line for letter, line in self.lines if letter == "W"))

    def forgive(self, begun: int) -> None:
        """Take what was said from a number on for warnings: it does not end the build."""
        self.lines[begun:] = [("W", line) for _, line in self.lines[begun:]]


def listen() -> LogCapture:
    """Begin a record that this process's logger fills from now on, instead of the one before."""
    logger().heard = heard = LogCapture()
    return heard


@cache
def logger() -> Any:
    """The `tensorrt.ILogger` of this process: TensorRT keeps the first that it is given, for all of its objects.

    Verbose lines are left out, as they are by trtexec: hundreds of thousands tell of each tactic that was tried.
    """
    import tensorrt
    from polygraphy.backend.trt import util

    class Logger(tensorrt.ILogger):  # type: ignore[misc] # no types
        """Called by threads of TensorRT, which cannot take an exception."""

        def __init__(self) -> None:
            tensorrt.ILogger.__init__(self)
            self.heard = LogCapture()

        def log(self, severity: Any, msg: str) -> None:
            """Take one line."""
            letter = _LETTERS.get(severity.name)
            if letter is not None:
                self.heard.lines.append((letter, msg))
                _write(letter, msg)
            elif msg.startswith(TITLE):
                self.heard.layers = msg

    # Polygraphy's loaders make a logger of their own unless this one is there.
    util.TRT_LOGGER = made = Logger()
    return made


def _write(letter: str, line: str) -> None:
    """One call for the whole line, as several threads write; a log that takes nothing more ends no build."""
    with suppress(OSError, ValueError):
        sys.stderr.write(f"[{time.strftime('%m/%d/%Y-%H:%M:%S')}] [{letter}] [TRT] {line}\n")
        sys.stderr.flush()
