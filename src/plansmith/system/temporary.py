"""Temporary files and folders: their names tell which process made them, so that those of a dead one can be found."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import time
from contextlib import AbstractContextManager
from pathlib import Path

from plansmith.errors import EnvironmentFault

_PAUSES = (0.01, 0.1, 0.5)
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


def make_scratch(what: str) -> Path:
    """A folder in that for temporary files, for `remove_scratch` to take away.

    Raises:
        EnvironmentFault: none can be made.
    """
    try:
        return Path(tempfile.mkdtemp(prefix=f"{scratch_name(what)}-"))
    except OSError as error:
        raise EnvironmentFault(
            f"temporary files cannot be written: {error.strerror}",
            remedy="free some space where they go, or set TMPDIR to a folder that can be written",
        ) from error


def remove_scratch(folder: Path) -> None:
    """Take a folder away, also where a process that was killed just now still writes its last file into it."""
    for pause in _PAUSES:
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return
        time.sleep(pause)


def abandoned_scratch(place: Path) -> list[Path]:
    """The temporary files and folders of this user in a folder whose processes are gone, sorted."""
    return sorted(path for path in place.iterdir() if _is_abandoned(path)) if place.is_dir() else []


def is_of_dead_process(name: str) -> bool:
    """Whether a name was made by `scratch_name`, and of a process that has ended."""
    named = _NAME.match(name)
    return named is not None and not Path("/proc", named[1]).exists()


def _is_abandoned(path: Path) -> bool:
    try:
        return is_of_dead_process(path.name) and path.lstat().st_uid == os.geteuid()
    except FileNotFoundError:
        return False
