"""A child of a zoo that misbehaves as the name of its entry says."""

from __future__ import annotations

import os
import signal
import sys
import time

from plansmith.fleet.zoo.records import TRY_ENTRY, TryRequest, ZooRow
from plansmith.system.process import serve
from plansmith.system.tasks import Progress


def try_entry(request: TryRequest, progress: Progress) -> ZooRow:
    """Crash, hang, eat memory, find a full disk, or be right."""
    progress(f"with {request.threads} threads{' and plain exporters' if request.compare_bare else ''}")
    match request.entry.name:
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
            return ZooRow(name="full", scheme="timm", outcome="failed", problem="no room", machine=True)
    return ZooRow(name=request.entry.name, scheme="timm", outcome="right", seconds=0.1)


if __name__ == "__main__":
    serve(dict([TRY_ENTRY.served_by(try_entry)]), int(sys.argv[1]))
