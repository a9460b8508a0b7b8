"""The worker of a zoo: one entry, and its end.

Run as `python -m plansmith.fleet.zoo.child <descriptor> <parent>`.
"""

from __future__ import annotations

import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from plansmith.fleet.zoo.entries import ZooEntry
from plansmith.system.process import serve


def try_entry(
    *, entry: Mapping[str, Any], threads: int, compare_bare: bool, progress: Callable[[str], None]
) -> dict[str, Any]:
    """Make, compile and judge one entry with so many threads."""
    progress("importing")
    import torch

    from plansmith.compilers.onnxrt import limit_threads
    from plansmith.fleet.zoo.trial import try_entry as run

    torch.set_num_threads(threads)
    limit_threads(threads)
    with tempfile.TemporaryDirectory(prefix="zoo-") as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        row = run(ZooEntry.model_validate(entry), Path(folder), progress, compare_bare=compare_bare)
    return row.model_dump(mode="json")


if __name__ == "__main__":
    serve({"try_entry": try_entry}, int(sys.argv[1]))
