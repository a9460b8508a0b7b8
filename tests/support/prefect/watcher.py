"""Ends processes once the one that asked for it is gone: `python watcher.py MARK [FOLDER]`.

It waits until its standard input ends, ends the processes with the mark and removes the folder.

Only what Python brings along: one of it runs for every program.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from pathlib import Path

VARIABLE = "PLANSMITH_PROGRAM_OF_A_TEST"
_ROUND_SECONDS = 0.05
_REMOVE_SECONDS = 10


def marked(mark: str) -> list[int]:
    """The processes with a mark in the environment that they were started with, and that have not ended."""
    sought = f"{VARIABLE}={mark}".encode()
    pids = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            # Empty where it has ended and nobody has asked how.
            if sought in (process / "environ").read_bytes().split(b"\0"):
                pids.append(int(process.name))
        except OSError:  # it ended, or belongs to somebody else
            continue
    return pids


def end(mark: str) -> None:
    """SIGKILL to all of them, until no process is left that one of them could have started in the meantime."""
    while numbers := marked(mark):
        for number in numbers:
            try:
                os.kill(number, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(_ROUND_SECONDS)


def remove(folder: Path) -> None:
    """Remove a folder into which processes that are about to end may still write."""
    deadline = time.monotonic() + _REMOVE_SECONDS
    shutil.rmtree(folder, ignore_errors=True)
    while folder.exists() and time.monotonic() < deadline:
        time.sleep(_ROUND_SECONDS)
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.stdin.buffer.read()
    end(sys.argv[1])
    for folder in sys.argv[2:]:
        remove(Path(folder))
