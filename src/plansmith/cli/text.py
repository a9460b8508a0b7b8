"""Words that several commands print."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path


def short(path: Path) -> str:
    """A path as a person would type it from here, quoted for the shell where it must be."""
    return shlex.quote(str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path))


def program() -> str:
    """How to call this program from this shell: by its name, or by its path where it is not on PATH."""
    called = Path(sys.argv[0])
    if called.name != "plansmith":
        return "python -m plansmith"
    return "plansmith" if shutil.which("plansmith") == str(called.absolute()) else short(called.absolute())
