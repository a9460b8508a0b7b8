"""A child of a zoo that misbehaves as the name of its entry says."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from plansmith.fleet.zoo.records import ZooRow
from plansmith.system.process import serve


def try_entry(
    *, entry: Mapping[str, Any], threads: int, compare_bare: bool, progress: Callable[[str], None]
) -> dict[str, Any]:
    """Crash, hang, eat memory, find a full disk, or be right."""
    progress(f"with {threads} threads{' and plain exporters' if compare_bare else ''}")
    match entry["name"]:
        case "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        case "hang":
            progress("hanging")
            time.sleep(600)
        case "eat":
            progress("eating")
            eaten = [bytearray(os.urandom(1 << 20)) for _ in range(1000)]
            time.sleep(600 + len(eaten))
        case "full":
            row = ZooRow(name="full", scheme="timm", outcome="failed", problem="no room", machine=True)
            return row.model_dump(mode="json")
    return ZooRow(name=entry["name"], scheme="timm", outcome="right", seconds=0.1).model_dump(mode="json")


if __name__ == "__main__":
    serve({"try_entry": try_entry}, int(sys.argv[1]))
