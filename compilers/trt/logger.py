"""What TensorRT says: every line in the log of the process, warnings and errors kept for whoever asks."""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from typing import Any

# As trtexec marks them, so that one reader does for the logs of both builders.
_LETTERS = {"INTERNAL_ERROR": "F", "ERROR": "E", "WARNING": "W", "INFO": "I"}


@dataclass
class Heard:
    """The lines since somebody began to listen, without time and severity; each warning once."""

    errors: list[str] = field(default_factory=list)
    warnings: dict[str, None] = field(default_factory=dict)

    def take(self, severity: str, line: str) -> None:
        """Keep a line of a severity, by its name in `tensorrt.ILogger`."""
        if severity in {"INTERNAL_ERROR", "ERROR"}:
            self.errors.append(line)
        elif severity == "WARNING":
            self.warnings[line] = None


def listen() -> Heard:
    """Begin a record that this process's logger fills from now on, instead of the one before."""
    logger().heard = heard = Heard()
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
            self.heard = Heard()

        def log(self, severity: Any, msg: str) -> None:
            """Take one line."""
            if severity.name in _LETTERS:
                self.heard.take(severity.name, msg)
                _write(_LETTERS[severity.name], msg)

    # Polygraphy's loaders make a logger of their own unless this one is there.
    util.TRT_LOGGER = made = Logger()
    return made


def _write(letter: str, line: str) -> None:
    """One call for the whole line, as several threads write; a log that takes nothing more ends no build."""
    with suppress(OSError, ValueError):
        sys.stderr.write(f"[{time.strftime('%m/%d/%Y-%H:%M:%S')}] [{letter}] [TRT] {line}\n")
        sys.stderr.flush()
