"""`build_worker` with builders that run what a test gives them: the process around a build is real, the plan is not.

`trtexec` is a program of the test's; without one, `build_by_api` does what the graph's first line says.
"""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from plansmith.compilers import onnx_files
from plansmith.compilers.trt import build_worker
from plansmith.compilers.trt.api import building as api_building
from plansmith.compilers.trt.api import runtime, timing_cache
from plansmith.compilers.trt.trtexec import building as program_building
from plansmith.compilers.trt.trtexec import output
from plansmith.errors import EngineError
from plansmith.records.engine import BuildRequest, Plan
from plansmith.system.process import tied_to

VERSION = "10.16.1"
PROGRAM_VARIABLE = "TEST_TRTEXEC"


def command_of(request: BuildRequest, *_: object) -> list[str]:
    """As trtexec's, as far as these tests look."""
    cache = [f"--timingCacheFile={request.timing_cache}"] if request.timing_cache else []
    out = f"--saveEngine={request.out}/model.plan"
    return [request.trtexec, f"--onnx={request.graph}", out, "--minShapes='a:b':1x2", *cache]


def build_by_program(request: BuildRequest, progress: Callable[[str], None]) -> Plan:
    """Run the program to its end."""
    progress("running the program")
    tie = tied_to(os.getpid())
    status = subprocess.call(command_of(request), stdin=subprocess.DEVNULL, close_fds=False, preexec_fn=tie)
    if status:
        raise EngineError(f"trtexec ended with {status}", remedy="read the log")
    return plan_of(request)


def build_by_api(request: BuildRequest, progress: Callable[[str], None]) -> Plan:
    """Do what the graph says."""
    progress("doing what the graph says")
    out, text = Path(request.out), Path(request.graph).read_text()
    (out / "half-made").write_text("a folder that a failure has to empty")
    if text == "be killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if text == "fill the disk":
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(out / "model.plan"))
    if request.timing_cache:
        cache = Path(request.timing_cache)
        cache.write_text(f"{cache.read_text() if cache.exists() else ''}graph ")
    if text == "be late":
        raise EngineError("the plan was not built in time", remedy="give it more time")
    (out / "half-made").rename(out / "model.plan")
    sys.stderr.write(f"built on {os.environ['CUDA_VISIBLE_DEVICES']}, number {request.gpu.index}\n")
    return plan_of(request)


def plan_of(request: BuildRequest) -> Plan:
    """What is told of a plan that a test's builder left."""
    plan = Path(request.out, "model.plan")
    return Plan(
        file=plan.name,
        bytes=plan.stat().st_size,
        gpu=request.gpu,
        tensorrt=VERSION,
        builder="trtexec" if request.trtexec else "api",
        seconds=0,
        peak_host_bytes=None,
        peak_device_bytes=None,
        timing_cache="",
        tensors=(),
        profile_bytes=(),
        layers_file="layers.json",
        log="",
        reproduce="",
        warnings=("a warning of the builder's",),
    )


def combine(files: Sequence[Path], out: Path) -> bool:
    """Every entry once."""
    entries = [entry for file in files for entry in file.read_text().split()]
    out.write_text("".join(f"{entry} " for entry in dict.fromkeys(entries)))
    return True


def refit(plan: Path, graph: Path, out: Path, **how: object) -> None:
    """A file that tells of the call."""
    out.write_text(f"{plan.read_text()} {graph.read_text()} {how['refittable']}")


def no_api() -> str:
    """As a TensorRT whose libraries crash."""
    os.kill(os.getpid(), signal.SIGSEGV)
    return ""


STANDING_IN = (
    (onnx_files, {"describe": lambda _: None}),
    (api_building, {"build": build_by_api, "refit": refit}),
    (timing_cache, {"combine": combine}),
    (runtime, {"version": no_api if "TEST_CRASH" in os.environ else lambda: "10.16.1.11"}),
    (program_building, {"build": build_by_program, "request_command": command_of}),
    (output, {"version": lambda _: VERSION, "find_trtexec": lambda: os.environ.get(PROGRAM_VARIABLE)}),
)

if __name__ == "__main__":
    for module, functions in STANDING_IN:
        vars(module).update(functions)
    sys.exit(build_worker.main(sys.argv[1:]))
