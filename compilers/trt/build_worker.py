"""Build child process: builds plans with exclusive use of the GPU; the only process that imports TensorRT.

`process.Worker` runs it as `python -m plansmith.compilers.trt.build_worker <file descriptor> <parent>`; the GPU is the
only one that it sees. By hand, with the request that lies beside a plan:

    python -m plansmith.compilers.trt.build_worker --request request.json --graph model.onnx --out folder
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from plansmith.compilers.trt import build_tasks
from plansmith.compilers.trt.build_tasks import (
    BuildResponse,
    CombineRequest,
    CombineResponse,
    HoldRequest,
    HoldResponse,
    Program,
    RefitRequest,
    Version,
)
from plansmith.errors import EnvironmentFault, PlansmithError
from plansmith.records.engine import BuildCheck, BuildRequest, CheckRequest, Gpu, Plan
from plansmith.system import gpus
from plansmith.system.memory import peak_bytes
from plansmith.system.process import serve
from plansmith.system.tasks import Nothing, Progress


class _GpuConflict(Exception):
    """GPU conflict: another process uses the GPU."""


def find_trtexec(_: Nothing, progress: Progress) -> Program:
    """Find trtexec."""
    from plansmith.compilers.trt.trtexec import output

    del progress
    return Program(trtexec=output.find_trtexec() or "")


def tensorrt_version(request: Program, progress: Progress) -> Version:
    """Return the version of the TensorRT that would build."""
    progress("looking at TensorRT")
    with _installed():
        if request.trtexec:
            from plansmith.compilers.trt.trtexec import output

            return Version(version=output.version(request.trtexec))
        from plansmith.compilers.trt.api import runtime

        return Version(version=runtime.version())


def hold(request: HoldRequest, progress: Progress, *, until: ExitStack) -> HoldResponse:
    """Hold a GPU alone until this process ends, or say who holds it.

    Args:
        request: the GPU.
        progress: not called.
        until: takes the lock.
    """
    del progress
    holders: list[int | None] = []

    def waiting(holder: int | None) -> None:
        holders.append(holder)
        if not request.wait:
            raise _GpuConflict

    try:
        until.enter_context(gpus.lock_gpu(request.gpu, waiting))
    except _GpuConflict:
        return HoldResponse(held=False, holder=holders[0])
    return HoldResponse(held=True, holder=None)


def combine(request: CombineRequest, progress: Progress) -> CombineResponse:
    """Make one timing cache of several."""
    progress("combining what earlier builds measured")
    with _installed():
        from plansmith.compilers.trt.api import timing_cache

    return CombineResponse(combined=timing_cache.combine(request.files, request.out))


def build(request: BuildRequest, progress: Progress) -> BuildResponse:
    """Build a plan."""
    plan = _build(request, progress)
    command: list[str] = []
    if request.trtexec:
        from plansmith.compilers import onnx_files
        from plansmith.compilers.trt.trtexec import building

        graph = onnx_files.describe(Path(request.graph))
        command = building.request_command(request, graph, plan.tensorrt)
    return BuildResponse(plan=plan, peak_host_bytes=peak_bytes(), command=tuple(command))


def check_graph(request: CheckRequest, progress: Progress) -> BuildCheck:
    """Have TensorRT-RTX parse and build a graph."""
    with _installed():
        from plansmith.compilers.trt import rtx_graph

    return rtx_graph.check_graph(request, progress)


def refit(request: RefitRequest, progress: Progress) -> Nothing:
    """Refit a plan with the weights of its graph."""
    progress("putting the weights back")
    with _installed():
        from plansmith.compilers.trt.api import building

    spec = request.spec
    building.refit(
        request.plan,
        request.graph,
        request.out,
        plugins=spec.plugins,
        version_compatible=spec.version_compatible,
        exclude_lean_runtime=spec.exclude_lean_runtime,
        refittable=spec.refit,
    )
    return Nothing()


def by_hand(arguments: Sequence[str]) -> int:
    """Build a plan from a request file, with the caller's graph and folder; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m plansmith.compilers.trt.build_worker", description=by_hand.__doc__)
    parser.add_argument("--request", type=Path, required=True, help="request.json, as it lies beside a plan")
    parser.add_argument("--graph", type=Path, required=True, help="the ONNX file, with its weights beside it")
    parser.add_argument("--out", type=Path, required=True, help="a folder for model.plan; made when missing")
    parser.add_argument("--timing-cache", type=Path, help="a file to start from and to write back to")
    options = parser.parse_args(arguments)
    try:
        request = BuildRequest.model_validate_json(options.request.read_text())
        gpu = same_gpu(request.gpu, gpus.visible_gpus())
        os.environ.update(gpus.environment_of(gpu))
        options.out.mkdir(parents=True, exist_ok=True)
        build_request = request.model_copy(
            update={
                "graph": str(options.graph.absolute()),
                "out": str(options.out.absolute()),
                "timing_cache": str(options.timing_cache.absolute()) if options.timing_cache else "",
                "gpu": gpu.model_copy(update={"index": 0}),
            }
        )
        with gpus.lock_gpu(gpu, lambda holder: _say(f"waiting for process {holder}, which has the GPU")):
            plan = _build(build_request, _say)
    except PlansmithError as error:
        _say(str(error))
        return error.exit_code
    _say(f"built {options.out / plan.file} in {plan.seconds:.0f} s with TensorRT {plan.tensorrt}")
    return 0


def same_gpu(original: Gpu, present: Sequence[Gpu]) -> Gpu:
    """Return the GPU that a plan was built on, or one of the same type.

    Raises:
        EnvironmentFault: there is none.
    """
    alike = [
        gpu for gpu in present if (gpu.name, gpu.compute_capability) == (original.name, original.compute_capability)
    ]
    for gpu in (*(candidate for candidate in alike if candidate.uuid == original.uuid), *alike):
        return gpu
    available = ", ".join(f"{gpu.name} ({gpu.compute_capability})" for gpu in present) or "no GPU"
    raise EnvironmentFault(
        f"the plan was built on {original.name} ({original.compute_capability}), and here is {available}",
        remedy="run this on a machine with such a GPU, where CUDA_VISIBLE_DEVICES lets it be seen",
    )


def _build(request: BuildRequest, progress: Progress) -> Plan:
    with _installed():
        if request.trtexec:
            from plansmith.compilers.trt.trtexec.building import build
        else:
            from plansmith.compilers.trt.api.building import build
    return build(request, progress)


@contextmanager
def _installed() -> Iterator[None]:
    """Translate a missing package into an EnvironmentFault.

    Raises:
        EnvironmentFault: a package is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("plansmith"):
            raise
        raise EnvironmentFault(
            f"{error.name} is not installed", remedy="pip install 'plansmith[compile,tensorrt]'"
        ) from error


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def main(arguments: Sequence[str]) -> int:
    """Serve a parent process on a descriptor, or build by hand; return the exit code."""
    if not arguments or arguments[0].startswith("-"):
        return by_hand(arguments)
    with ExitStack() as until_the_end:
        functions = (
            build_tasks.FIND_TRTEXEC.served_by(find_trtexec),
            build_tasks.TENSORRT_VERSION.served_by(tensorrt_version),
            build_tasks.HOLD.served_by(partial(hold, until=until_the_end)),
            build_tasks.COMBINE.served_by(combine),
            build_tasks.BUILD.served_by(build),
            build_tasks.CHECK_GRAPH.served_by(check_graph),
            build_tasks.REFIT.served_by(refit),
        )
        serve(dict(functions), int(arguments[0]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
