"""An archive on the disk: it appears whole under its name, and never in place of another."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path

from plansmith.errors import RepositoryError
from plansmith.system.files import fsync_path, locked, make_folder, move_into_place, storage_errors


def write_archive_file(path: Path, size: int, stream: Callable[[], Iterator[bytes]]) -> tuple[str, bool]:
    """Write an archive, unless it is there; another process that writes the same one is waited for.

    Args:
        path: its final name.
        size: in bytes.
        stream: makes the content, each time it is called.

    Returns:
        SHA-256 of it, and whether it was there already.

    Raises:
        RepositoryError: another content has the name; the disk is full; or the folder cannot be written.
    """
    partial = path.with_name(f".{path.name}.partial")  # the lock file too: what a killed process left is written over
    with storage_errors(path.parent, other="--output"):
        make_folder(path.parent)
        if not path.exists():
            with locked(partial):
                try:
                    if not path.exists():
                        return _write(partial, path, stream()), False
                finally:
                    partial.unlink(missing_ok=True)
        return _compare(path, size, stream()), True


def _write(partial: Path, path: Path, stream: Iterator[bytes]) -> str:
    digest = hashlib.sha256()
    with partial.open("wb") as out:
        for chunk in stream:
            digest.update(chunk)
            out.write(chunk)
    fsync_path(partial)
    move_into_place(partial, path)
    return digest.hexdigest()


def _compare(path: Path, size: int, stream: Iterator[bytes]) -> str:
    """The digest of an archive that is there, which has to be the one that would be written."""
    digest = hashlib.sha256()
    if path.is_file() and path.stat().st_size == size:
        with path.open("rb") as existing:
            for chunk in stream:
                if existing.read(len(chunk)) != chunk:
                    break
                digest.update(chunk)
            else:
                return digest.hexdigest()
    raise RepositoryError(
        f"{path} is there already, with other content, and is not overwritten: endpoints keep what they loaded",
        remedy="choose another --output, or move it away",
    )
