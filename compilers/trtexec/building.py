"""Building a plan with trtexec: the same request and the same answer as of TensorRT's Python API."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from plansmith.compilers import onnx_files
from plansmith.compilers.trt.failures import failure_of, known_failure
from plansmith.compilers.trt.inspection.layers import read_layers
from plansmith.compilers.trtexec import probe
from plansmith.compilers.trtexec.command import build_command
from plansmith.compilers.trtexec.output import TrtexecOutput, read_output
from plansmith.compilers.trtexec.process import Ended, run
from plansmith.compilers.trtexec.tensors import plan_tensors
from plansmith.errors import EngineError, EnvironmentFault, PlansmithError
from plansmith.records.engine import BuildRequest, Gpu, Plan
from plansmith.records.model import Component
from plansmith.system.files import storage_errors, write_file

PLAN_FILE = "model.plan"
LAYERS_FILE = "layers.json"
LOG_FILE = "build.log"
REPRODUCE_FILE = "reproduce.sh"
_INSPECTED_FILE = "inspected.json"

_WARNINGS_KEPT = 20
_MIB = 2**20
_PHASES = {
    re.compile(r"Loading standard plugins"): "starting TensorRT",
    re.compile(r"Start parsing network model"): "reading the graph",
    re.compile(r"Finished parsing network model"): "looking for the fastest kernels",
    re.compile(r"Detected \d+ inputs and \d+ outputs? network tensors"): "putting the plan together",
    re.compile(r"Engine built in"): "writing the plan",
}


def build(request: BuildRequest, progress: Callable[[str], None]) -> Plan:
    """Build one plan into `request.out`; what the program writes goes to standard output as it comes.

    Args:
        request: what to build; `request.trtexec` is the program.
        progress: told what the builder is doing, in a few words; what it raises ends the build.

    Raises:
        EngineError: the build failed, or took longer than its deadline.
        EnvironmentFault: the program, the GPU, its driver or memory is missing.
        RepositoryError: the disk took no more.
    """
    out = Path(request.out)
    graph = onnx_files.describe(Path(request.graph))
    command = request_command(request, graph, probe.version(request.trtexec))
    began = time.monotonic()
    ended = run(
        command,
        {**os.environ, **gpu_environment(request.gpu)},
        deadline_seconds=request.deadline_seconds,
        on_line=_listener(progress),
    )
    seconds = time.monotonic() - began
    said = read_output(ended.text)
    try:
        refuse_failure(request, ended, said)
        inspected = _inspected(request)
        layers = read_layers(inspected) if inspected else ()
        tensors = plan_tensors(inspected, graph, request.spec.formats)
    except PlansmithError:
        (out / PLAN_FILE).unlink(missing_ok=True)
        raise
    with storage_errors(out):
        write_file(out / LAYERS_FILE, json.dumps([layer.model_dump(mode="json") for layer in layers]), replace=True)
    return Plan(
        file=PLAN_FILE,
        bytes=(out / PLAN_FILE).stat().st_size,
        gpu=request.gpu,
        tensorrt=said.version,
        builder="trtexec",
        seconds=seconds,
        peak_host_bytes=ended.peak_bytes,
        peak_device_bytes=said.peak_device_mib * _MIB if said.peak_device_mib is not None else None,
        timing_cache=describe_cache(said, _timing_cache(request)),
        tensors=tensors,
        profile_bytes=(),
        layers_file=LAYERS_FILE,
        log=LOG_FILE,
        reproduce=REPRODUCE_FILE,
        warnings=first_warnings(said.warnings),
    )


def request_command(request: BuildRequest, graph: Component, version: str) -> list[str]:
    """The command line of a request, for TensorRT of this version.

    The GPU is chosen by `gpu_environment`, where it has a UUID: CUDA numbers GPUs in another order than the driver.

    Raises:
        EngineError: trtexec cannot do this.
    """
    out = Path(request.out)
    return build_command(
        request.spec,
        inputs=graph.inputs,
        outputs=graph.outputs,
        graph=request.graph,
        plan=str(out / PLAN_FILE),
        layers=str(out / _INSPECTED_FILE),
        timing_cache=_timing_cache(request),
        program=request.trtexec,
        major=int(version.partition(".")[0]),
        gpu_index=request.gpu.index if not request.gpu.uuid and request.gpu.index >= 0 else None,
    )


def gpu_environment(gpu: Gpu) -> dict[str, str]:
    """The variables that make CUDA see one GPU alone, or count all as the driver does where it has no UUID."""
    return {"CUDA_VISIBLE_DEVICES": gpu.uuid} if gpu.uuid else {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def describe_cache(said: TrtexecOutput, file: str) -> str:
    """What became of the timing cache."""
    if not file:
        return "none"
    if any("invalid timing cache" in warning.lower() for warning in said.warnings):
        return "refused by TensorRT; begun anew"
    read = f"read ({said.cache_read_bytes} bytes)" if said.cache_read_bytes else "begun anew"
    return read if said.cache_written_bytes is None else f"{read}, written back ({said.cache_written_bytes} bytes)"


def _timing_cache(request: BuildRequest) -> str:
    return request.timing_cache if request.spec.timing_cache else ""


def _listener(progress: Callable[[str], None]) -> Callable[[str], None]:
    told = ""

    def hear(line: str) -> None:
        nonlocal told
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
        doing = next((words for pattern, words in _PHASES.items() if pattern.search(line)), told)
        if doing != told:
            told = doing
            progress(doing)

    return hear


def first_warnings(warnings: Sequence[str]) -> tuple[str, ...]:
    """The first warnings: some graphs have one for each of their weights."""
    more = len(warnings) - _WARNINGS_KEPT
    return (*warnings[:_WARNINGS_KEPT], *([f"{more} more warnings stand in the log"] if more > 0 else []))


def refuse_failure(request: BuildRequest, ended: Ended, said: TrtexecOutput) -> None:
    """Raise what is known of a build that gave no plan, or none that can be trusted."""
    what = f"building a plan of {Path(request.graph).name}"
    if ended.status is None:
        raise EngineError(
            f"{what}: trtexec did not end within {request.deadline_seconds / 60:.0f} minutes",
            remedy="give it more time (tensorrt: deadline_minutes), or less to do: fewer profiles, narrower shapes, a"
            " lower tensorrt: optimization_level",
        )
    if ended.status < 0:
        raise _death(ended, what)
    if ended.status or said.ended == "failed":
        raise failure_of(ended.text, what=what)
    plan = Path(request.out, PLAN_FILE)
    if said.ended != "passed" or not plan.is_file() or not plan.stat().st_size:
        # A builder that streams the plan to its file may fail and still end well (networkToSerializedEngine).
        raise known_failure(ended.text, what=what) or EngineError(
            f"{what}: trtexec ended as if all were well, but left no plan",
            remedy="see whether tensorrt: trtexec is NVIDIA's program; read the log",
        )
    if said.version.startswith("10.") and not said.strongly_typed:
        raise EngineError(
            f"{what}: trtexec of TensorRT {said.version} did not say that the network is strongly typed",
            remedy="use the trtexec of TensorRT 10.12 or later, or --builder api",
        )
    if request.gpu.uuid and said.gpu_uuid and request.gpu.uuid != said.gpu_uuid:
        raise EngineError(
            f"{what}: trtexec took the GPU {said.gpu_uuid} ({said.gpu_name}), not {request.gpu.uuid}",
            remedy="take CUDA_VISIBLE_DEVICES out of the environment of this machine's container or job",
        )


def _death(ended: Ended, what: str) -> PlansmithError:
    """What is known of a program that a signal ended."""
    assert ended.status is not None
    if ended.killer:
        return EnvironmentFault(f"{what}: trtexec was killed, {ended.killer}", remedy=ended.killer_remedy)
    name = signal.Signals(-ended.status).name
    last = ended.text.strip().rpartition("\n")[2]
    return known_failure(ended.text, what=what) or EngineError(
        f"{what}: trtexec crashed with {name}" + (f"; its last words were: {last}" if last else ""),
        remedy="run reproduce.sh to see whether it does so again; try --builder api or a newer target, and report it to"
        " NVIDIA with the log",
    )


def _inspected(request: BuildRequest) -> str:
    """The inspector's JSON, whose file goes; empty where the plan was told to keep its layers to itself."""
    file = Path(request.out, _INSPECTED_FILE)
    text = file.read_text() if file.is_file() else ""
    file.unlink(missing_ok=True)
    if text.strip() or request.spec.verbosity == "none":
        return text.strip()
    raise EngineError(
        "trtexec built a plan but wrote nothing of its layers",
        remedy="see whether there is room in the artifact folder; read the log",
    )
