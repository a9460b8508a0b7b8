"""The files that Triton is shown: whether they are those of a release, and how it tells that they changed."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path

from plansmith.system.digest import Digester
from plansmith.system.files import fsync_path

# One second, in nanoseconds: no file system of Linux that has links notes times more coarsely.
_FILE_TIME_STEP = 10**9


def is_same(digester: Digester, shown: Path, released: Path, *, quick: bool = False) -> bool:
    """Whether Triton is shown a file of a release, unharmed.

    Args:
        digester: hashes both where they are not one file.
        shown: what Triton reads.
        released: the release's.
        quick: compare sizes, and read nothing.
    """
    if not shown.is_file():
        return False
    if shown.samefile(released):
        return True
    if quick:
        return shown.stat().st_size == released.stat().st_size
    return digester.file(shown) == digester.file(released)


def make_younger(folder: Path, others: Iterable[Path]) -> None:
    """Give a folder a later time than any file of those shown before it, whatever the clock says.

    A running Triton takes a folder whose youngest file is no younger than that of its last load for unchanged: it
    answers a load with success and does nothing (core, ModelTimestamp::IsModified in model_repository_manager.cc; seen
    with 2.51 where an older view was shown again).
    """
    before = max((path.stat().st_mtime_ns for other in others for path in (other, *other.rglob("*"))), default=0)
    moment = max(time.time_ns(), before + _FILE_TIME_STEP)
    os.utime(folder, ns=(moment, moment))
    fsync_path(folder)
