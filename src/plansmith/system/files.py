"""Files and folders that appear whole or not at all.

Everything that outlives a process is written in a staging folder, flushed to the disk, and moved into
place by one rename. A staging folder belongs to whoever holds its lock; one that nobody holds was left
by a killed process and is swept away by the next.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import takewhile
from pathlib import Path
from typing import IO, Any

from plansmith.errors import RepositoryError

_STAGING_LOCK = ".lock"

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}

_UNWRITABLE = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.ENOENT, errno.EEXIST}

# A disk with less room than this when a library failed for an unclear reason is taken for full.
_ROOM_BYTES = 64 * 1024


def fsync_path(path: Path) -> None:
    """Flush one file, or one directory's entries, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def fsync_tree(folder: Path) -> None:
    """Flush a folder: its files first, then the directories, innermost first."""
    for root, _, names in os.walk(folder, topdown=False):
        for name in names:
            path = Path(root, name)
            if not path.is_symlink():
                fsync_path(path)
        fsync_path(Path(root))


def make_folder(folder: Path) -> None:
    """Make a folder, and those above it that are missing, and flush their names to the disk."""
    if folder.is_dir():
        return
    missing = list(takewhile(lambda path: not path.exists(), (folder, *folder.parents)))
    folder.mkdir(parents=True, exist_ok=True)
    for made in missing:
        fsync_path(made.parent)


def move_into_place(staged: Path, final: Path) -> None:
    """Rename a flushed file, folder or link to its final name, and flush the directory that holds it."""
    staged.replace(final)
    fsync_path(final.parent)


def link_or_copy(source: Path, target: Path) -> None:
    """Give a finished, never again written file a second name; copy it where links cannot reach."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        target.hardlink_to(source)
    except OSError as error:
        if error.errno not in {errno.EXDEV, errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK, errno.ENOSYS}:
            raise
        shutil.copy2(source, target)


def write_file(path: Path, content: str | bytes, *, replace: bool) -> None:
    """Write one file in a folder of the user's, which appears whole or not at all.

    Raises:
        FileExistsError: it is there already, and `replace` is false.
        OSError: its folder is not there, or takes no files.
    """
    if path.exists() and not replace:
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
    with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as folder:
        staged = Path(folder, path.name)
        staged.write_bytes(content.encode() if isinstance(content, str) else content)
        fsync_path(staged)
        if replace:
            move_into_place(staged, path)
        else:
            link_or_copy(staged, path)
            fsync_path(path.parent)


Waiting = Callable[[int | None], None]
"""Told once that a lock is held by another: the process that holds it, where the kernel names one."""


class HeldByAnother(Exception):
    """A lock that another process holds is not waited for."""


def not_waiting(_process: int | None) -> None:
    """To be told of a lock that another holds by whoever does not wait for it; raises HeldByAnother."""
    raise HeldByAnother


@contextmanager
def locked(path: Path, waiting: Waiting = lambda _: None, *, shared: bool = False) -> Iterator[None]:
    """Hold a lock on a lock file; the kernel frees it when the process dies.

    Args:
        path: the lock file; made when missing.
        waiting: told before this waits for another process; what it raises ends the attempt.
        shared: let others hold it too, as long as nobody wants it for himself.
    """
    while True:
        make_folder(path.parent)
        with path.open("a") as stream:
            take_lock(stream, waiting, shared=shared)
            if is_named(stream, path):
                yield
                return
            # Who tidied up took the file away while this waited: others lock a new one.


def is_named(stream: IO[Any], path: Path) -> bool:
    """Whether an open file is the one that a path names."""
    try:
        return os.path.samestat(os.fstat(stream.fileno()), path.stat(follow_symlinks=False))
    except FileNotFoundError:
        return False


@contextmanager
def locked_to_look(path: Path, waiting: Waiting = lambda _: None) -> Iterator[None]:
    """Hold a lock shared and write nothing; where the lock file is not there, nobody ever held it.

    Args:
        path: the lock file.
        waiting: as for `locked`.
    """
    try:
        stream = path.open("rb")
    except (FileNotFoundError, NotADirectoryError):
        yield
        return
    with stream:
        take_lock(stream, waiting, shared=True)
        yield


def take_lock(stream: IO[Any], waiting: Waiting, *, shared: bool = False) -> None:
    """Lock an open file until it is closed, as `locked` does."""
    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    try:
        fcntl.flock(stream, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        waiting(_holder(os.fstat(stream.fileno())))
        fcntl.flock(stream, kind)


def _holder(lock: os.stat_result) -> int | None:
    """A process that holds a lock on a file, from the kernel's list (Linux /proc/locks)."""
    name = f"{os.major(lock.st_dev):02x}:{os.minor(lock.st_dev):02x}:{lock.st_ino}"
    try:
        rows = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    except OSError:
        return None
    # A row that waits has an arrow before its kind: "1: -> FLOCK …".
    return next((int(row[4]) for row in rows if row[1] == "FLOCK" and row[5] == name and int(row[4]) > 0), None)


def abandoned_folders(parent: Path) -> list[Path]:
    """The staging folders below a parent that killed processes left, sorted; asking changes nothing."""
    found = sorted(parent.iterdir()) if parent.is_dir() else []
    # Whoever made one of these held the parent's lock until the folder's own was taken.
    with locked_to_look(parent / _STAGING_LOCK):
        return [folder for folder in found if folder.is_dir() and _is_abandoned(folder)]


def _is_abandoned(folder: Path) -> bool:
    """Whether a staging folder is there and nobody holds its lock."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return folder.exists()
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)


@contextmanager
def staging_folder(parent: Path) -> Iterator[Path]:
    """A private folder on the same file system as its final place; removed unless it was moved away."""
    folder = parent / uuid.uuid4().hex
    with locked(parent / _STAGING_LOCK):
        _sweep(parent)
        folder.mkdir()
        descriptor = os.open(folder, os.O_RDONLY)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)  # last: what is not held is taken for abandoned


def sweep(parent: Path) -> None:
    """Remove what killed processes left below a parent of staging folders."""
    with locked(parent / _STAGING_LOCK):
        _sweep(parent)


def remove_folder(folder: Path, staging: Path) -> None:
    """Take a finished folder away: out of sight in one rename, then off the disk."""
    if folder.exists():
        with staging_folder(staging) as bin_folder:
            move_into_place(folder, bin_folder / "removed")


def _sweep(parent: Path) -> None:
    """Remove the staging folders below `parent` whose owner is gone; the caller holds the parent's lock."""
    for folder in parent.iterdir():
        with suppress(FileNotFoundError, NotADirectoryError):
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            else:
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(descriptor)


def require_writable(place: Path) -> None:
    """See that a folder, or the nearest one above it that is there, takes files; leaves nothing behind.

    Raises:
        RepositoryError: it does not.
    """
    nearest = next(path for path in (place, *place.parents) if path.exists())
    with storage_errors(place):
        try:
            tempfile.TemporaryFile(dir=nearest).close()
        except OSError as error:
            error.filename = str(place)  # the file that was tried means nothing to anybody
            raise


@contextmanager
def storage_errors(place: Path, *, other: str = "--artifacts or --repository folder") -> Iterator[None]:
    """Turn a full or unwritable file system into one message that names the place.

    A file elsewhere that cannot be read or written is not this place's fault, and passes as it is.

    Args:
        place: the folder.
        other: what to choose another of, for the remedy.
    """
    try:
        yield
    except Exception as error:
        known = _storage_error(error, place, other)
        if known is None:
            raise
        raise known from error


def _storage_error(error: Exception, place: Path, other: str) -> RepositoryError | None:
    code = error.errno if isinstance(error, OSError) else None
    if code in _FULL or _tells_of_full_disk(error, place):
        if not _is_full(place) and _is_full(Path(tempfile.gettempdir())):
            return RepositoryError(
                f"no space left on the file system of {tempfile.gettempdir()}, where temporary files go",
                remedy="free some space, or set TMPDIR to a folder that has more",
            )
        return RepositoryError(
            f"no space left on the file system of {place}",
            remedy=f"free some space, or choose another {other}",
        )
    if code in _UNWRITABLE and _is_about(error, place):
        return RepositoryError(
            f"cannot write to {place}: {os.strerror(code)}",
            remedy=f"choose a writable {other}",
        )
    if code == errno.EXDEV:
        return RepositoryError(
            f"{place} lies on a file system of its own, so that nothing can be moved there in one step",
            remedy=f"use a folder inside it, such as {place / 'models'}",
        )
    return None


def _is_about(error: Exception, place: Path) -> bool:
    """Whether an operating system's error names no file, or one of this place or of the store beside it."""
    named = getattr(error, "filename", None)
    return named is None or str(named).startswith(str(place)) or Path(named) in place.parents


def _tells_of_full_disk(error: Exception, place: Path) -> bool:
    """Whether an error of another library is a full disk in its own words, or without a word of it."""
    if isinstance(error, RepositoryError):
        return False
    if any(os.strerror(code) in str(error) for code in _FULL):
        return True
    return _is_full(place)


def _is_full(place: Path) -> bool:
    found = os.statvfs(next(path for path in (place, *place.parents) if path.exists()))
    writable = found.f_blocks > 0 and not found.f_flag & os.ST_RDONLY
    return writable and found.f_bavail * found.f_frsize < _ROOM_BYTES


STAGING = "staging"

LOCKS = "locks"
