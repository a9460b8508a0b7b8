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
_UNPARSED = re.compile(r"Error parsing text-format inference\.ModelConfig: (?P<what>.*)$", re.MULTILINE)


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


def unread_configuration(log: Path, model: str, start: int) -> str | None:
    """Why Triton could not read a model's configuration, if its log says so from a place on.

    Args:
        log: the server's.
        model: its name.
        start: how many bytes of the log are from before.
    """
    text = _text(log, start)
    reasons = [found["why"] for found in _UNREAD.finditer(text) if found["model"] == model]
    if not reasons:
        return None
    details = [found["what"] for found in _UNPARSED.finditer(text)]
    return f"its configuration cannot be read: {[*reasons, *details][-1]}"


def _text(log: Path, start: int = 0) -> str:
    with log.open("rb") as stream:
        stream.seek(start)
        return stream.read().decode(errors="replace")
