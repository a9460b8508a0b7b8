"""What is measured, written into docs/benchmarks.md, between the comments that mark its place."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterable
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from plansmith import __version__

PAGE = Path(__file__).parents[1] / "docs" / "benchmarks.md"
_LIBRARIES = ("torch", "transformers", "onnxruntime")


def write_measured(name: str, lines: Iterable[str]) -> None:
    """Write lines in place of what was measured before: `<!-- Measured: name. -->` to `<!-- End of name. -->`."""
    begin, end = f"<!-- Measured: {name}. -->", f"<!-- End of {name}. -->"
    before, _, rest = PAGE.read_text().partition(begin)
    _, _, after = rest.partition(end)
    PAGE.write_text("\n".join([f"{before}{begin}", *lines, f"{end}{after}"]))


def setting() -> str:
    """Return date, machine and versions in a line."""
    libraries = ", ".join(f"{name} {version(name).partition('+')[0]}" for name in _LIBRARIES)
    versions = f"Python {platform.python_version()}, plansmith {__version__}, {libraries}"
    return f"{datetime.now(UTC):%Y-%m-%d}, {_machine()}, {versions}"


def _machine() -> str:
    models = re.findall(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    model = models[0] if models else platform.machine()
    return f"{len(os.sched_getaffinity(0))} cores ({model})"
