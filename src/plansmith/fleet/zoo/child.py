"""Zoo worker process: runs one entry and reports its outcome.

Run as `python -m plansmith.fleet.zoo.child <descriptor>`, or forked by a fork server.
"""

from __future__ import annotations

import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from plansmith.fleet.zoo.records import TRY_ENTRY, TryRequest, ZooRow
from plansmith.system.process import serve
from plansmith.system.tasks import Progress


def try_entry(request: TryRequest, progress: Progress) -> ZooRow:
    """Make, compile and judge one entry."""
    progress("importing")
    import torch

    from plansmith.compilers.onnxrt import limit_threads
    from plansmith.fleet.zoo.trial import try_entry as run

    torch.set_num_threads(request.threads)
    limit_threads(request.threads)
    with tempfile.TemporaryDirectory(prefix="zoo-") as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return run(request.entry, Path(folder), progress, compare_bare=request.compare_bare)


def functions() -> dict[str, Callable[..., Any]]:
    """Return the function that does the task, by its name, for `process.serve`."""
    return dict([TRY_ENTRY.served_by(try_entry)])


if __name__ == "__main__":
    serve(functions(), int(sys.argv[1]))
