"""A process with a worker: prints the worker's process id, then keeps calling it until somebody ends both.

The worker is started as a program, or forked: `python -m tests.support.faults.worker_parent LOG [fork]`.
"""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path

from plansmith.system.fork_server import forked_workers
from plansmith.system.process import Worker


def main(log: Path, *options: str) -> None:
    """Start a worker and wait for the end."""
    module = "tests.support.faults.tiny_worker"
    with forked_workers(module, ()) if options else nullcontext(), Worker(module, log) as worker:
        sys.stdout.write(f"{worker.call('pid')}\n")
        sys.stdout.flush()
        worker.call("wait")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
