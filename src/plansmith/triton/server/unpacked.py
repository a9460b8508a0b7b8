"""The environments of Python models that servers unpack, and what of them is left when a server was killed."""

from __future__ import annotations

import os
import shutil
import time
from contextlib import suppress
from pathlib import Path

from plansmith.config.python import OWNER_FILE
from plansmith.system.temporary import is_of_dead_process

PLACE = Path("/tmp")  # noqa: S108 - Triton's choice (EnvironmentManager in src/pb_env.cc of its Python backend)
_FOLDERS = "python_env_*"
_FILLED_SECONDS = 60


def remove_environments(token: str) -> None:
    """Remove what a server that was ended by force left of the environments that it had unpacked."""
    for file in PLACE.glob(f"{_FOLDERS}/*/{OWNER_FILE}"):
        with suppress(OSError):
            if file.read_text() == token:
                shutil.rmtree(file.parents[1], ignore_errors=True)


def abandoned_environments(place: Path = PLACE) -> list[Path]:
    """The folders of this user's servers that are gone, sorted: those that say so, and those that nothing came into."""
    return sorted(folder for folder in place.glob(_FOLDERS) if _is_abandoned(folder))


def _is_abandoned(folder: Path) -> bool:
    with suppress(OSError):
        stat = folder.stat(follow_symlinks=False)
        if stat.st_uid != os.geteuid():
            return False
        owners = [file.read_text() for file in folder.glob(f"*/{OWNER_FILE}")]
        if owners:
            return all(map(is_of_dead_process, owners))
        return not any(folder.iterdir()) and time.time() - stat.st_mtime > _FILLED_SECONDS
    return False
