"""Plans and timing caches on the disk: whole or not at all."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from plansmith.durable import fsync_path, move_into_place, storage_errors


def write_whole(content: Any, path: Path) -> None:
    """Write what TensorRT gave (`IHostMemory`, or bytes) without a second copy of it in memory.

    Raises:
        RepositoryError: the disk is full, or takes no files there.
    """
    with (
        storage_errors(path.parent),
        tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as folder,
    ):
        staged = Path(folder, path.name)
        with staged.open("wb") as stream:
            stream.write(memoryview(content))
        fsync_path(staged)
        move_into_place(staged, path)
