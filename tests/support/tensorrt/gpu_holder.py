"""A process that holds the lock of a GPU, or waits for it; it ends with its standard input.

    python -m tests.support.tensorrt.gpu_holder UUID [program that inherits the lock …]

Prints a line at a time: "waiting N" where process N has it, "held", and "started N" for the program.
"""

from __future__ import annotations

import subprocess
import sys

from plansmith.records.engine import Gpu
from plansmith.system.gpus import lock_gpu


def main(uuid: str, *program: str) -> None:
    """Hold the lock until the end of the input."""
    gpu = Gpu(name="NVIDIA L4", compute_capability="8.9", memory_bytes=24 << 30, uuid=uuid)
    with lock_gpu(gpu, lambda holder: print(f"waiting {holder}", flush=True)):
        if program:
            started = subprocess.Popen(program, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, close_fds=False)
            print(f"started {started.pid}", flush=True)
        print("held", flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
