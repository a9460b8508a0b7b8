"""Atomic writes of files and folders: they appear whole or not at all.

Everything that outlives a process is written in a staging folder, flushed to the disk, and moved into
place by one rename. A staging folder belongs to whoever holds its lock; one that nobody holds was left
by a killed process and is swept away by the next.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from itertools import takewhile
from pathlib import Path
from typing import IO, Any

from plansmith.errors import EnvironmentFault, RepositoryError

_PAUSES = (0.01, 0.1, 0.5)
_NAME = re.compile(r"\.?plansmith-(\d+)-")

_STAGING_LOCK = ".lock"
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_UNWRITABLE = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.ENOENT, errno.EEXIST}
# A disk with less room than this when a library failed for an unclear reason is taken for full.
_ROOM_BYTES = 64 * 1024
Waiting = Callable[[int | None], None]
"""Told once that a lock is held by another: the process that holds it, where the kernel names one."""

STAGING = "staging"
LOCKS = "locks"


def scratch_name(purpose: str) -> str:
    """Return the name, or its prefix, of a temporary item of this process: plansmith-<process>-<purpose>."""
    return f"plansmith-{os.getpid()}-{purpose}"


def scratch_folder(purpose: str, place: Path | None = None) -> AbstractContextManager[str]:
    """Temporary folder, deleted at the end of the `with` block.

    Args:
        purpose: it is for, in one word.
        place: where it is made, hidden; in the folder for temporary files when None.
    """
    hidden = "" if place is None else "."
    return tempfile.TemporaryDirectory(prefix=f"{hidden}{scratch_name(purpose)}-", dir=place)


def make_scratch(purpose: str) -> Path:
    """Create a temporary folder, to be deleted by `remove_scratch`.

    Raises:
        EnvironmentFault: none can be made.
    """
    try:
        return Path(tempfile.mkdtemp(prefix=f"{scratch_name(purpose)}-"))
    except OSError as error:
        raise EnvironmentFault(
            f"temporary files cannot be written: {error.strerror}",
            remedy="free some space where they go, or set TMPDIR to a folder that can be written",
        ) from error


def remove_scratch(folder: Path) -> None:
    """Delete a temporary folder, even while a process that was just killed still writes its last file into it."""
    for pause in _PAUSES:
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return
        time.sleep(pause)


def abandoned_scratch(place: Path) -> list[Path]:
    """Return this user's temporary files and folders in a folder whose processes have ended, sorted."""
    return sorted(path for path in place.iterdir() if _is_abandoned_file(path)) if place.is_dir() else []


def is_of_dead_process(name: str) -> bool:
    """Whether a name was made by `scratch_name` in a process that has ended."""
    named = _NAME.match(name)
    return named is not None and not Path("/proc", named[1]).exists()


def _is_abandoned_file(path: Path) -> bool:
    try:
        return is_of_dead_process(path.name) and path.lstat().st_uid == os.geteuid()
    except FileNotFoundError:
        return False


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
    """Create a folder with missing parents, and flush their directory entries to the disk.

    Nothing is put into a folder before its entry is flushed. So that of an empty one is, too: a killed process may have
    just created it.
    """
    for new_folder in [*takewhile(lambda path: not _is_flushed(path), (folder, *folder.parents))][::-1]:
        new_folder.mkdir(exist_ok=True)
        fsync_path(new_folder.parent)


def _is_flushed(folder: Path) -> bool:
    """Whether a folder is there, and its entry was flushed by whoever created it, as far as that can be seen."""
    if not folder.is_dir():
        return False
    if not all(os.access(path, os.R_OK) for path in (folder, folder.parent)):
        return True  # somebody else's work: what cannot be read cannot be flushed
    with os.scandir(folder) as entries:
        return any(entries)


def move_into_place(staged: Path, final: Path) -> None:
    """Rename a flushed file, folder or link to its final name, and flush its parent directory."""
    staged.replace(final)
    fsync_path(final.parent)


def link_or_copy(source: Path, target: Path) -> None:
    """Hard-link a finished, immutable file to a second name; copy it where links are impossible."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        target.hardlink_to(source)
    except OSError as error:
        if error.errno not in {errno.EXDEV, errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK, errno.ENOSYS}:
            raise
        shutil.copy2(source, target)
        fsync_path(target)  # as a link's content is


def write_file(path: Path, content: str | bytes, *, replace: bool) -> None:
    """Write a file in a user's folder, atomically.

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


class HeldByAnother(Exception):
    """Lock conflict: another process holds a lock that this one does not wait for."""


def not_waiting(_process: int | None) -> None:
    """Raise HeldByAnother: the `waiting` callback of callers that do not wait for a lock."""
    raise HeldByAnother


@contextmanager
def locked(path: Path, waiting: Waiting = lambda _: None, *, shared: bool = False) -> Iterator[None]:
    """Hold a lock on a lock file for the block; the kernel releases it when the process dies.

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
    """Whether a path still refers to an open file."""
    try:
        return os.path.samestat(os.fstat(stream.fileno()), path.stat(follow_symlinks=False))
    except FileNotFoundError:
        return False


@contextmanager
def locked_to_look(path: Path, waiting: Waiting = lambda _: None) -> Iterator[None]:
    """Hold a shared lock without writing; a missing lock file means that the lock was never held.

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
    """Lock an open file until it is closed, as in `locked`."""
    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    try:
        fcntl.flock(stream, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        waiting(_holder(os.fstat(stream.fileno())))
        fcntl.flock(stream, kind)


def _holder(lock: os.stat_result) -> int | None:
    """The process that holds a lock on a file, from the kernel's list (Linux /proc/locks)."""
    name = f"{os.major(lock.st_dev):02x}:{os.minor(lock.st_dev):02x}:{lock.st_ino}"
    try:
        rows = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    except OSError:
        return None
    # A row that waits has an arrow before its kind: "1: -> FLOCK …".
    return next((int(row[4]) for row in rows if row[1] == "FLOCK" and row[5] == name and int(row[4]) > 0), None)


def abandoned_folders(parent: Path) -> list[Path]:
    """Return the staging folders below a parent that killed processes left, sorted; changes nothing."""
    entries = sorted(parent.iterdir()) if parent.is_dir() else []
    # Whoever made one of these held the parent's lock until the folder's own was taken.
    with locked_to_look(parent / _STAGING_LOCK):
        return [folder for folder in entries if folder.is_dir() and _is_abandoned(folder)]


def _is_abandoned(folder: Path) -> bool:
    """Whether a staging folder exists and no process holds its lock."""
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
    """Private staging folder on the same file system as its final place; deleted unless it was moved away."""
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
    """Delete what killed processes left below a parent of staging folders."""
    with locked(parent / _STAGING_LOCK):
        _sweep(parent)


def remove_folder(folder: Path, staging: Path) -> None:
    """Delete a finished folder: first move it away in one rename, then delete its files."""
    if folder.exists():
        with staging_folder(staging) as bin_folder:
            move_into_place(folder, bin_folder / "removed")


def _sweep(parent: Path) -> None:
    """Remove the staging folders below `parent` whose owner process is gone; the caller holds the parent's lock."""
    for folder in parent.iterdir():
        with suppress(FileNotFoundError, NotADirectoryError):
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            else:
                os.fsync(descriptor)  # what was moved here to be deleted must not come back without its files
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(descriptor)


def require_writable(place: Path) -> None:
    """Require that a folder, or its nearest existing parent, is writable; leaves nothing behind.

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
def storage_errors(place: Path, *, alternative: str = "--artifacts or --repository folder") -> Iterator[None]:
    """Convert errors of a full or unwritable file system to one error that names the place.

    A file elsewhere that cannot be read or written is not this place's fault, and passes as it is.

    Args:
        place: the folder.
        alternative: what to choose another of, for the remedy.
    """
    try:
        yield
    except Exception as error:
        fault = _storage_error(error, place, alternative)
        if fault is None:
            raise
        raise fault from error


def _storage_error(error: Exception, place: Path, alternative: str) -> RepositoryError | None:
    code = error.errno if isinstance(error, OSError) else None
    if code in _FULL or _tells_of_full_disk(error, place):
        if not _is_full(place) and _is_full(Path(tempfile.gettempdir())):
            return RepositoryError(
                f"no space left on the file system of {tempfile.gettempdir()}, where temporary files go",
                remedy="free some space, or set TMPDIR to a folder that has more",
            )
        return RepositoryError(
            f"no space left on the file system of {place}",
            remedy=f"free some space, or choose another {alternative}",
        )
    if code in _UNWRITABLE and _is_about(error, place):
        return RepositoryError(
            f"cannot write to {place}: {os.strerror(code)}",
            remedy=f"choose a writable {alternative}",
        )
    if code == errno.EXDEV:
        return RepositoryError(
            f"{place} lies on a file system of its own, so that nothing can be moved there in one step",
            remedy=f"use a folder inside it, such as {place / 'models'}",
        )
    return None


def _is_about(error: Exception, place: Path) -> bool:
    """Whether an operating system error names no file, a file of this place, or one of its parent folders."""
    named = getattr(error, "filename", None)
    return named is None or str(named).startswith(str(place)) or Path(named) in place.parents


def _tells_of_full_disk(error: Exception, place: Path) -> bool:
    """Whether another library's error means a full disk, whether or not its message mentions that."""
    if isinstance(error, RepositoryError):
        return False
    if any(os.strerror(code) in str(error) for code in _FULL):
        return True
    return _is_full(place)


def _is_full(place: Path) -> bool:
    usage = os.statvfs(next(path for path in (place, *place.parents) if path.exists()))
    writable = usage.f_blocks > 0 and not usage.f_flag & os.ST_RDONLY
    return writable and usage.f_bavail * usage.f_frsize < _ROOM_BYTES
