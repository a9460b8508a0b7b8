"""The child that builds plans: has the GPU alone while it lives, and TensorRT is imported nowhere else.

`process.Worker` runs it as `python -m plansmith.compilers.trt.build_worker <file descriptor> <parent>`; the GPU is the
only one that it sees. By hand, with the request that lies beside a plan:

    python -m plansmith.compilers.trt.build_worker --request request.json --graph model.onnx --out folder
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from plansmith.errors import EnvironmentFault, PlansmithError
from plansmith.records.engine import BuildCheck, BuildRequest, BuildSpec, CheckRequest, Gpu, Plan
from plansmith.system import gpus
from plansmith.system.memory import peak_bytes
from plansmith.system.process import serve

Progress = Callable[[str], None]


class _Held(Exception):
    """Another process has the GPU."""


def find_trtexec(*, progress: Progress) -> dict[str, str]:
    """The program, empty where there is none."""
    del progress
    return {"program": _part("trtexec.probe").find_trtexec() or ""}


def tensorrt_version(*, trtexec: str, progress: Progress) -> dict[str, str]:
    """The version of the TensorRT that would build: in full by its Python package, three numbers by trtexec."""
    progress("looking at TensorRT")
    if trtexec:
        return {"version": _part("trtexec.probe").version(trtexec)}
    return {"version": _part("trt.api.probe").version()}


def hold(*, gpu: Mapping[str, Any], wait: bool, progress: Progress, until: ExitStack) -> dict[str, Any]:
    """Have the GPU alone until the end of this process, or say who has it.

    Args:
        gpu: a `Gpu` of this machine.
        wait: for the one who has it.
        progress: not told anything.
        until: takes the lock.
    """
    del progress
    holders: list[int | None] = []

    def waiting(holder: int | None) -> None:
        holders.append(holder)
        if not wait:
            raise _Held

    try:
        until.enter_context(gpus.held(Gpu.model_validate(gpu), waiting))
    except _Held:
        return {"held": False, "holder": holders[0]}
    return {"held": True, "holder": None}


def combine(*, files: Sequence[str], out: str, progress: Progress) -> dict[str, bool]:
    """Make one timing cache of several; whether TensorRT took them all."""
    progress("combining what earlier builds measured")
    return {"combined": _part("trt.api.combine_timing").combine([Path(file) for file in files], Path(out))}


def build(*, request: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
    """Build a plan: the `Plan`, the most memory that was held, and the command line of a program that built it."""
    told = BuildRequest.model_validate(request)
    plan = _build(told, progress)
    command: list[str] = []
    if told.trtexec:
        graph = _part("onnx_files").describe(Path(told.graph))
        command = _part("trtexec.building").request_command(told, graph, plan.tensorrt)
    return {"plan": plan.model_dump(mode="json"), "peak_host_bytes": peak_bytes(), "command": command}


def check_graph(*, request: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
    """Have TensorRT-RTX parse and build a graph: the `BuildCheck`."""
    check: BuildCheck = _part("trt.check.graph").check_graph(CheckRequest.model_validate(request), progress)
    return check.model_dump(mode="json")


def refit(*, plan: str, graph: str, out: str, spec: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
    """Put the weights of its graph back into a plan."""
    progress("putting the weights back")
    built = BuildSpec.model_validate(spec)
    _part("trt.api.refit").refit(
        Path(plan),
        Path(graph),
        Path(out),
        plugins=built.plugins,
        version_compatible=built.version_compatible,
        exclude_lean_runtime=built.exclude_lean_runtime,
        refittable=built.refit,
    )
    return {}


def by_hand(arguments: Sequence[str]) -> int:
    """Build a plan from a request in a file, with a graph and a folder of the caller's; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m plansmith.compilers.trt.build_worker", description=by_hand.__doc__)
    parser.add_argument("--request", type=Path, required=True, help="request.json, as it lies beside a plan")
    parser.add_argument("--graph", type=Path, required=True, help="the ONNX file, with its weights beside it")
    parser.add_argument("--out", type=Path, required=True, help="a folder for model.plan; made when missing")
    parser.add_argument("--timing-cache", type=Path, help="a file to start from and to write back to")
    given = parser.parse_args(arguments)
    try:
        request = BuildRequest.model_validate_json(given.request.read_text())
        gpu = same_gpu(request.gpu, gpus.visible_gpus())
        os.environ.update(gpus.environment_of(gpu))
        given.out.mkdir(parents=True, exist_ok=True)
        told = request.model_copy(
            update={
                "graph": str(given.graph.absolute()),
                "out": str(given.out.absolute()),
                "timing_cache": str(given.timing_cache.absolute()) if given.timing_cache else "",
                "gpu": gpu.model_copy(update={"index": 0}),
            }
        )
        with gpus.held(gpu, lambda holder: _say(f"waiting for process {holder}, which has the GPU")):
            plan = _build(told, _say)
    except PlansmithError as error:
        _say(str(error))
        return error.exit_code
    _say(f"built {given.out / plan.file} in {plan.seconds:.0f} s with TensorRT {plan.tensorrt}")
    return 0


def same_gpu(wanted: Gpu, present: Sequence[Gpu]) -> Gpu:
    """The GPU that a plan was built on, or one like it.

    Raises:
        EnvironmentFault: there is none.
    """
    alike = [gpu for gpu in present if (gpu.name, gpu.compute_capability) == (wanted.name, wanted.compute_capability)]
    for gpu in (*(one for one in alike if one.uuid == wanted.uuid), *alike):
        return gpu
    here = ", ".join(f"{gpu.name} ({gpu.compute_capability})" for gpu in present) or "no GPU"
    raise EnvironmentFault(
        f"the plan was built on {wanted.name} ({wanted.compute_capability}), and here is {here}",
        remedy="run this on a machine with such a GPU, where CUDA_VISIBLE_DEVICES lets it be seen",
    )


def _build(request: BuildRequest, progress: Progress) -> Plan:
    builder = _part("trtexec.building" if request.trtexec else "trt.api.building")
    plan: Plan = builder.build(request, progress)
    return plan


def _part(name: str) -> Any:
    """A module below `compilers`; what it imports at once may be missing here."""
    try:
        return importlib.import_module(f"plansmith.compilers.{name}")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("plansmith"):
            raise
        raise EnvironmentFault(
            f"{error.name} is not installed", remedy="pip install 'plansmith[compile,tensorrt]'"
        ) from error


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


_FUNCTIONS = (find_trtexec, tensorrt_version, combine, build, check_graph, refit)


def main(arguments: Sequence[str]) -> int:
    """Serve a parent on a descriptor, or build by hand; the exit code."""
    if not arguments or arguments[0].startswith("-"):
        return by_hand(arguments)
    with ExitStack() as until_the_end:
        functions: dict[str, Callable[..., Any]] = {f.__name__: f for f in _FUNCTIONS}
        functions["hold"] = partial(hold, until=until_the_end)
        serve(functions, int(arguments[0]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
