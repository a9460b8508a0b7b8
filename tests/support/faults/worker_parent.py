"""A process with a worker: prints the worker's process id, then keeps calling it until somebody ends both."""

from __future__ import annotations

import sys
from pathlib import Path

from plansmith.system.process import Worker


def main(log: Path) -> None:
    """Start a worker and wait for the end."""
    with Worker("tests.support.faults.tiny_worker", log) as worker:
        sys.stdout.write(f"{worker.call('pid')}\n")
        sys.stdout.flush()
        worker.call("wait")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
