"""A store in a folder: on a disk of this machine, or one that several mount."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from plansmith.durable import (
    fsync_path,
    locked,
    make_folder,
    move_into_place,
    staging_folder,
    storage_errors,
)
from plansmith.errors import RepositoryError
from plansmith.stores.objects import Abilities, Changed, Document, Held, Moved, Taken, untold

_STAGING = ".staging"
_LOCKS = ".locks"
_CHUNK_BYTES = 1 << 20
_MODE = 0o644


class FolderObjects:
    """Objects as files: `Objects` says what each method does.

    A lock on a file keeps those apart who swap the same object, also on NFS (Linux: flock there is a lock of the
    server's).

    Args:
        root: the folder; made when something is first written.
    """

    abilities = Abilities(create_once=True, swap=True, safe_in_race=True, checksums=True)

    def __init__(self, root: Path) -> None:
        self._root = root.resolve()
        self.place = str(self._root)

    def find(self, key: str) -> Held | None:
        """What is there under a key."""
        with storage_errors(self._root):
            try:
                told = self._path(key).stat()
            except (FileNotFoundError, NotADirectoryError):
                return None
            return Held(key, told.st_size, told.st_mtime)

    def below(self, prefix: str) -> Iterator[Held]:
        """All objects whose keys begin so, sorted by key."""
        folder, _, _ = prefix.rpartition("/")
        start = self._path(folder) if folder else self._root
        keys = []
        for at, folders, names in os.walk(start):
            folders[:] = [name for name in folders if not name.startswith(".")]
            keys += [Path(at, name).relative_to(self._root).as_posix() for name in names]
        for key in sorted(keys):
            found = self.find(key) if key.startswith(prefix) else None
            if found is not None:
                yield found

    def read(self, key: str) -> Document | None:
        """A small object."""
        with storage_errors(self._root):
            try:
                content = self._path(key).read_bytes()
            except (FileNotFoundError, NotADirectoryError):
                return None
            return Document(content, _tag(content))

    def create(self, key: str, content: bytes) -> str:
        """Write a small object where there is none."""
        with self._written(content) as staged:
            path = self._path(key)
            make_folder(path.parent)
            try:
                path.hardlink_to(staged)
            except FileExistsError:
                if path.read_bytes() != content:
                    raise Taken(key) from None
            fsync_path(path.parent)
        return _tag(content)

    def swap(self, key: str, content: bytes, tag: str) -> str:
        """Replace a small object that is still the one of this tag."""
        lock = self._root / _LOCKS / hashlib.sha256(key.encode()).hexdigest()[:2]
        with storage_errors(self._root), locked(lock):
            found = self.read(key)
            if found is None or found.tag != tag:
                raise Changed(key)
            self.put(key, content)
        return _tag(content)

    def put(self, key: str, content: bytes) -> None:
        """Write a small object, whatever is there."""
        with self._written(content) as staged:
            path = self._path(key)
            make_folder(path.parent)
            move_into_place(staged, path)

    def send(self, path: Path, key: str, sha256: str, moved: Moved = untold) -> None:
        """Write a file; it appears whole."""
        with self._staged() as staged:
            _copy(path, staged, sha256, moved)
            final = self._path(key)
            make_folder(final.parent)
            move_into_place(staged, final)

    def fetch(self, key: str, path: Path, sha256: str, moved: Moved = untold) -> None:
        """Write an object's content to a file."""
        with storage_errors(path.parent):
            try:
                _copy(self._path(key), path, sha256, moved)
            except FileNotFoundError as error:
                raise RepositoryError(
                    f"{self.place} has no {key}", remedy=f"plansmith verify --store {self.place}"
                ) from error

    def sha256(self, key: str) -> str:
        """The SHA-256 of an object's content."""
        with storage_errors(self._root), self._path(key).open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()

    def copy(self, source: str, key: str) -> None:
        """Give an object a second key, or with the same one a new age."""
        with storage_errors(self._root):
            if source == key:
                os.utime(self._path(key))
                return
            with self._staged() as staged:
                staged.hardlink_to(self._path(source))
                final = self._path(key)
                make_folder(final.parent)
                move_into_place(staged, final)

    def remove(self, keys: Iterable[str]) -> None:
        """Take objects away; folders stay, as others may be about to write there."""
        with storage_errors(self._root):
            for key in keys:
                self._path(key).unlink(missing_ok=True)

    def now(self) -> float:
        """Seconds since 1970."""
        return time.time()

    def _path(self, key: str) -> Path:
        return self._root.joinpath(*key.split("/"))

    @contextmanager
    def _staged(self) -> Iterator[Path]:
        """A file to write, on the same file system."""
        with storage_errors(self._root):
            make_folder(self._root)
            with staging_folder(self._root / _STAGING) as folder:
                yield folder / "content"

    @contextmanager
    def _written(self, content: bytes) -> Iterator[Path]:
        with self._staged() as staged:
            staged.write_bytes(content)
            staged.chmod(_MODE)
            fsync_path(staged)
            yield staged


def _copy(source: Path, target: Path, sha256: str, moved: Moved) -> None:
    """Copy a file and see that what arrives is what was meant; nothing is left otherwise."""
    digest = hashlib.sha256()
    with source.open("rb") as stream, target.open("wb") as out:
        while piece := stream.read(_CHUNK_BYTES):
            digest.update(piece)
            out.write(piece)
            moved(len(piece))
    if digest.hexdigest() != sha256:
        target.unlink()
        raise RepositoryError(
            f"{source} is damaged: its content is not that of SHA-256 {sha256[:12]}…",
            remedy="restore it, or publish its release again",
        )
    target.chmod(_MODE)
    fsync_path(target)


def _tag(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
