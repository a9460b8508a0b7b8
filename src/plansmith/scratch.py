"""Temporary files and folders: their names tell which process made them, so that those of a dead one can be found."""

from __future__ import annotations

import os
import re
import tempfile
from contextlib import AbstractContextManager
from pathlib import Path

_NAME = re.compile(r"\.?plansmith-(\d+)-")


def scratch_name(what: str) -> str:
    """The name, or its beginning, of something temporary of this process: plansmith-<process>-<what>."""
    return f"plansmith-{os.getpid()}-{what}"


def scratch_folder(what: str, place: Path | None = None) -> AbstractContextManager[str]:
    """A folder that goes at the end of a `with` block.

    Args:
        what: it is for, in one word.
        place: where it is made, hidden; in the folder for temporary files when None.
    """
    hidden = "" if place is None else "."
    return tempfile.TemporaryDirectory(prefix=f"{hidden}{scratch_name(what)}-", dir=place)


def abandoned_scratch(place: Path) -> list[Path]:
    """The temporary files and folders of this user in a folder whose processes are gone, sorted."""
    return sorted(path for path in place.iterdir() if _is_abandoned(path)) if place.is_dir() else []


def _is_abandoned(path: Path) -> bool:
    named = _NAME.match(path.name)
    try:
        return named is not None and path.lstat().st_uid == os.geteuid() and not Path("/proc", named[1]).exists()
    except FileNotFoundError:
        return False
