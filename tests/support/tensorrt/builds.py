"""Requests for builds, and a process that does one: `python -m tests.support.tensorrt.builds FOLDER UUID PROGRAM`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from plansmith.compilers.trt import build as plan_building
from plansmith.compilers.trt.timing_cache import TimingCaches
from plansmith.records.engine import BuildRequest, BuildSpec, Gpu, Plan

CHILD = "tests.support.tensorrt.child"
ROOT = Path(__file__).parents[3]
GRAPH = "build a plan"


def gpu(uuid: str = "GPU-1") -> Gpu:
    """One that a lock can be asked for."""
    return Gpu(
        name="NVIDIA A100-SXM4-80GB",
        compute_capability="8.0",
        memory_bytes=80 << 30,
        uuid=uuid,
        index=3,
        driver="570.124.06",
    )


def request_in(folder: Path, *, content: str = GRAPH, trtexec: Path | None = None, **fields: Any) -> BuildRequest:
    """A build in folders below one; `content`: the content of its graph."""
    graph, out = folder / "the graph" / "model.onnx", folder / "its out"
    graph.parent.mkdir(parents=True)
    out.mkdir()
    graph.write_text(content)
    spec = BuildSpec(profiles=(), **fields.pop("flags", {}))
    return BuildRequest(
        graph=str(graph),
        out=str(out),
        spec=spec,
        gpu=fields.pop("gpu", gpu()),
        trtexec=str(trtexec) if trtexec is not None else "",
        timing_cache="",
        deadline_seconds=fields.pop("deadline_seconds", 600),
    )


def build(request: BuildRequest, folder: Path, **options: Any) -> Plan:
    """Build with the tests' builders; the log and the caches lie in a folder."""
    caches = TimingCaches(folder / "cache" / "timing")
    return plan_building.build_plan(request, log=folder / "worker.log", cache=caches, **options)


def main(folder: Path, uuid: str, program: Path) -> None:
    """Build in a folder, and print who is waited for, and what became of it."""
    os.chdir(ROOT)
    plan_building.WORKER_MODULE = CHILD

    def waiting(process: int | None) -> None:
        print(f"waiting {process}", flush=True)

    try:
        build(request_in(folder, trtexec=program, gpu=gpu(uuid)), folder, waiting=waiting)
        print("built", flush=True)
    except KeyboardInterrupt:
        print("interrupted", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
