"""Folder backend: a store on a local disk or on a shared mount."""

from __future__ import annotations

import errno
import hashlib
import os
import shlex
import stat
import tempfile
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import IO

from plansmith.errors import RepositoryError
from plansmith.stores.backend.object_store import Abilities, Changed, KeyTaken, Moved, untold
from plansmith.system.aws.bucket import MOST_DOCUMENT_BYTES, Document, ObjectMetadata, require_small
from plansmith.system.files import fsync_path, link_or_copy, locked, make_folder, move_into_place, storage_errors

_STAGING = ".staging"
_LOCKS = ".locks"
_CHUNK_BYTES = 1 << 20
_ABANDONED_SECONDS = 24 * 3600.0

# What the file system itself puts into its root.
_FILE_SYSTEM = {"lost+found"}

_READ_ONLY = {errno.EACCES, errno.EPERM, errno.EROFS}


class FolderObjects:
    """File system backend of `Objects`. File modes follow the umask.

    A lock on a file keeps those apart who write the same document, also on NFS, where Linux makes it one of the
    server's (flock(2)). That goes for files that are open for writing, and so not for folders: what is half written has
    no lock as elsewhere, and is taken for abandoned when nobody wrote to it for a day.

    Args:
        root: the folder; made when something is first written.
    """

    abilities = Abilities(create_once=True, swap=True, safe_in_race=True, checksums=True)

    def __init__(self, root: Path) -> None:
        self._root = root.resolve()
        self.place = str(self._root)
        self.typed = shlex.quote(self.place)

    def find(self, key: str) -> ObjectMetadata | None:
        """Return the metadata of the object under a key."""
        with self._reading(key):
            try:
                status = self._path(key).stat()
            except (FileNotFoundError, NotADirectoryError):
                return None
            return ObjectMetadata(key, status.st_size, status.st_mtime)

    def below(self, prefix: str) -> Iterator[ObjectMetadata]:
        """Yield all objects whose keys have a prefix, sorted by key."""
        folder, _, _ = prefix.rpartition("/")
        for key in self._keys(self._path(folder) if folder else self._root, f"{folder}/" if folder else ""):
            item = self.find(key) if key.startswith(prefix) else None
            if item is not None:
                yield item

    def read(self, key: str) -> Document | None:
        """Read a small object."""
        with self._reading(key):
            try:
                with _opened(self._path(key)) as stream:
                    content = stream.read(MOST_DOCUMENT_BYTES + 1)
            except (FileNotFoundError, NotADirectoryError):
                return None
        require_small(len(content), key, self.place)
        return Document(content, _tag(content))

    def create(self, key: str, content: bytes) -> str:
        """Write a small object if the key is free."""
        with self._alone(key):
            document = self.read(key)
            if document is None:
                self.put(key, content)
        if document is not None:
            if document.content != content:
                raise KeyTaken(key)
            self.flush([key])
        return _tag(content)

    def swap(self, key: str, content: bytes, tag: str) -> str:
        """Compare and swap: replace a small object that still has this tag."""
        with self._alone(key):
            document = self.read(key)
            unchanged = document is not None and document.tag == tag
            if unchanged:
                self.put(key, content)
        if not unchanged:
            raise Changed(key)
        return _tag(content)

    def put(self, key: str, content: bytes) -> None:
        """Write a small object, overwriting any other."""
        with self._staged() as staged:
            staged.write_bytes(content)
            fsync_path(staged)
            self._show(staged, key)

    def send(self, path: Path, key: str, sha256: str, moved: Moved = untold) -> None:
        """Upload a file atomically."""
        with self._staged() as staged:
            _copy(path, staged, sha256, moved)
            self.give_up(staged.stat().st_mtime - _ABANDONED_SECONDS)
            self._show(staged, key)

    def fetch(self, key: str, path: Path, sha256: str, moved: Moved = untold) -> None:
        """Download an object's content to a file."""
        with storage_errors(path.parent), self._reading(key):
            _copy(self._path(key), path, sha256, moved)

    def sha256(self, key: str, moved: Moved = untold) -> str:
        """Return the SHA-256 of an object's content."""
        digest = hashlib.sha256()
        with self._reading(key), _opened(self._path(key)) as stream:
            while piece := stream.read(_CHUNK_BYTES):
                digest.update(piece)
                moved(len(piece))
        return digest.hexdigest()

    def copy(self, source: str, key: str) -> None:
        """Copy an object to another key; with the same key, renew its age."""
        with self._staged() as staged, self._reading(source):
            if source == key:
                os.utime(self._path(key))
                return
            link_or_copy(self._path(source), staged)
            self._show(staged, key)

    def remove(self, keys: Iterable[str]) -> None:
        """Delete objects; folders stay, as other processes may be about to write there."""
        with self._errors():
            for key in keys:
                self._path(key).unlink(missing_ok=True)

    def flush(self, keys: Iterable[str]) -> None:
        """Flush the directory entries of objects; their contents were flushed before they had one."""
        with self._errors():
            for folder in sorted({self._path(key).parent for key in keys}):
                with suppress(FileNotFoundError):
                    fsync_path(folder)

    def give_up(self, before: float) -> int:
        """Delete partial files left by killed processes."""
        given_up = 0
        with self._errors():
            for left in list((self._root / _STAGING).glob("*")):
                with suppress(FileNotFoundError):
                    if left.stat().st_mtime < before:
                        left.unlink()
                        given_up += 1
        return given_up

    def probed(self) -> Abilities:
        """Return the abilities of a folder, which need no probe."""
        return self.abilities

    def now(self) -> float:
        """Return the time in seconds since 1970 by the clock that dates the files (on NFS the server's).

        It takes a new file to see that: who may only read goes by the clock of this machine.
        """
        staging = self._root / _STAGING
        with self._errors():
            try:
                make_folder(staging)
                with tempfile.TemporaryFile(dir=staging) as dated:
                    return os.fstat(dated.fileno()).st_mtime
            except OSError as error:
                if error.errno not in _READ_ONLY:
                    raise
                return time.time()

    def _path(self, key: str) -> Path:
        """Return the path of an object.

        Raises:
            RepositoryError: that would be somewhere else.
        """
        parts = key.split("/")
        if {"", ".", ".."} & set(parts):
            raise RepositoryError(
                f"{key!r} is no key of {self.place}", remedy="name things without .. and without empty parts"
            )
        return self._root.joinpath(*parts)

    def _keys(self, folder: Path, prefix: str) -> Iterator[str]:
        """Yield the keys of all files below a folder, sorted as in S3.

        Hidden ones are left out: they are this module's own, or a file system's or desktop's (.nfs…, .DS_Store).
        """
        with self._reading(prefix):
            try:
                with os.scandir(folder) as entries:
                    shown = [entry for entry in entries if not entry.name.startswith(".")]
                    folder_flags = {entry.name: entry.is_dir(follow_symlinks=False) for entry in shown}
            except (FileNotFoundError, NotADirectoryError):
                return
        for name in sorted(f"{name}/" if is_folder else name for name, is_folder in folder_flags.items()):
            if not name.endswith("/"):
                yield prefix + name
            elif name.rstrip("/") not in _FILE_SYSTEM:
                yield from self._keys(folder / name, prefix + name)

    @contextmanager
    def _alone(self, key: str) -> Iterator[None]:
        """Hold an exclusive lock for writing this document."""
        lock = self._root / _LOCKS / hashlib.sha256(key.encode()).hexdigest()[:2]
        with self._errors(), locked(lock):
            yield

    @contextmanager
    def _staged(self) -> Iterator[Path]:
        """Yield a staging path to write to, on the same file system."""
        with self._errors():
            folder = self._root / _STAGING
            make_folder(folder)
            staged = folder / uuid.uuid4().hex
            try:
                yield staged
            finally:
                staged.unlink(missing_ok=True)

    def _show(self, staged: Path, key: str) -> None:
        final = self._path(key)
        make_folder(final.parent)
        move_into_place(staged, final)

    def _errors(self) -> AbstractContextManager[None]:
        return storage_errors(self._root, alternative="folder for the store")

    @contextmanager
    def _reading(self, key: str) -> Iterator[None]:
        """Translate errors for objects that are missing or not readable."""
        try:
            yield
        except FileNotFoundError as error:
            raise RepositoryError(
                f"{self.place} has no {key}", remedy=f"plansmith verify --store {self.typed}"
            ) from error
        except PermissionError as error:
            raise RepositoryError(
                f"{error.filename} in the store {self.place} may not be read",
                remedy="have its owner give you the right to read it, and all that lies in the store",
            ) from error


def _copy(source: Path, target: Path, sha256: str, moved: Moved) -> None:
    """Copy a file and verify the content that arrives; nothing is left behind on failure."""
    digest = hashlib.sha256()
    with _opened(source) as stream, _written_or_gone(target) as out:
        while piece := stream.read(_CHUNK_BYTES):
            digest.update(piece)
            out.write(piece)
            moved(len(piece))
        if digest.hexdigest() != sha256:
            raise RepositoryError(
                f"{source} is damaged: its content is not that of SHA-256 {sha256[:12]}…",
                remedy="restore it, or publish its release again",
            )
    fsync_path(target)


def _opened(path: Path) -> IO[bytes]:
    """Open a regular file: nobody writes into a pipe, and a device never ends.

    Raises:
        RepositoryError: it is none.
    """
    if not stat.S_ISREG(path.stat().st_mode):
        raise RepositoryError(f"{path} is no file, and no object of a store", remedy="delete it")
    return path.open("rb")


@contextmanager
def _written_or_gone(target: Path) -> Iterator[IO[bytes]]:
    with target.open("wb") as out:
        try:
            yield out
        except BaseException:
            target.unlink()
            raise


def _tag(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
