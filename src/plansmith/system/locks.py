"""Locks on what is everybody's on this machine, such as a GPU: a folder like /tmp, with files for all users."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from plansmith.system.files import Waiting, is_named, take_lock


@contextmanager
def locked_by_all(path: Path, waiting: Waiting = lambda _: None) -> Iterator[None]:
    """Hold a lock that any user of this machine may take, together with the programs that are started meanwhile.

    The kernel frees it when this process and each program that inherited it (`subprocess` with `close_fds=False`) are
    dead.

    Args:
        path: the lock file; made when missing, like the folder right above it.
        waiting: as for `locked`.
    """
    while True:
        with os.fdopen(_open_for_everybody(path), "rb") as stream:
            take_lock(stream, waiting)
            if is_named(stream, path):
                os.set_inheritable(stream.fileno(), True)
                yield
                return
            # Who tidies up /tmp took the file away while this waited: others lock a new one.


def _open_for_everybody(path: Path) -> int:
    """A descriptor of a lock file that every user may lock; only its maker is asked whether it may be made anew.

    A file of another user's in a folder like /tmp must be opened without O_CREAT (Linux,
    Documentation/admin-guide/sysctl/fs.rst, "protected_regular").
    """
    with suppress(FileExistsError):
        path.parent.mkdir()
        path.parent.chmod(0o1777)
    while True:
        with suppress(FileNotFoundError):
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
            with suppress(PermissionError):
                os.utime(path)  # young again, for who tidies up /tmp
            return descriptor
        with suppress(FileExistsError):
            made = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_EXCL, 0o666)
            os.fchmod(made, 0o666)
            os.close(made)
