"""What a Triton server's log says about a start that failed."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_TAIL_LINES = 8
_HARMLESS = "CudaDriverHelper has not been initialized"
_ERROR = re.compile(r"E\d{4} |error:|\[libprotobuf ERROR")
_ROW = re.compile(r"^\| (?P<model>\S+) +\| \S+ +\| (?P<why>(UNAVAILABLE|Not loaded).*?) *\|$", re.MULTILINE)
_UNREAD = re.compile(r"Poll failed for model directory '(?P<model>[^']+)': (?P<why>.*)\"$", re.MULTILINE)


def is_port_taken(log: Path) -> bool:
    """The server could not listen on a port of its own."""
    return re.search(r"failed to start .* already in use", _text(log)) is not None


def refused_models(log: Path) -> dict[str, str]:
    """Why models were not loaded, by name, as far as the log of a start says so.

    A configuration that Triton cannot even read appears neither in its table of models nor in its repository index.
    """
    text = _text(log)
    unread = {found["model"]: found["why"] for found in _UNREAD.finditer(text)}
    return unread | {found["model"]: found["why"] for found in _ROW.finditer(text)}


def reasons(log: Path) -> str:
    """The models that were refused, otherwise the lines of errors, otherwise the last lines."""
    lines = [line for line in _text(log).splitlines() if line.strip()]
    refused = [f"{model}: {why}" for model, why in refused_models(log).items()]
    errors = [line for line in lines if _ERROR.match(line) and _HARMLESS not in line]
    return "\n".join(refused or (errors or lines)[-_TAIL_LINES:])


def _text(log: Path) -> str:
    return log.read_text(errors="replace")
