"""Plan builds with trtexec: same request and result as with TensorRT's Python API."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from plansmith.compilers import onnx_files
from plansmith.compilers.trt.failures import failure_of, known_failure
from plansmith.compilers.trt.layers import read_layers, read_tensors
from plansmith.compilers.trt.trtexec import output
from plansmith.compilers.trt.trtexec.command import build_command
from plansmith.compilers.trt.trtexec.output import TrtexecOutput, read_output
from plansmith.errors import EngineError, EnvironmentFault, PlansmithError
from plansmith.records.engine import BuildRequest, Gpu, Plan, PlanTensor, TensorFormat
from plansmith.records.model import Component, Tensor
from plansmith.system import memory
from plansmith.system.files import storage_errors, write_file
from plansmith.system.process import signal_group, tied_to

_POLL_SECONDS = 0.2
_TERMINATE_SECONDS = 10
_CHUNK_BYTES = 65536

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


@dataclass(frozen=True)
class Ended:
    """How a process ended.

    `status`: its exit code, or minus the signal, None where it was ended at its deadline; `peak_bytes`: most memory
    that it held; `killer` and `killer_remedy`: who killed it, where something did.
    """

    text: str
    status: int | None
    peak_bytes: int
    killer: str = ""
    killer_remedy: str = ""


def run(
    command: Sequence[str], environment: Mapping[str, str], *, deadline_seconds: float, on_line: Callable[[str], None]
) -> Ended:
    """Run a program to its end or deadline, without a shell.

    It leads a group of its own, which is ended with it, also when `on_line` raises; the kernel ends it when the
    thread that calls this does. It inherits what this process holds open to be inherited, such as the GPU's lock.

    Args:
        command: the program and its arguments.
        environment: of the program, all of it.
        deadline_seconds: after which it is asked to end, and killed ten seconds later.
        on_line: told every line that it writes, on either stream.

    Raises:
        EnvironmentFault: it cannot be started.
    """
    try:
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            close_fds=False,
            preexec_fn=tied_to(os.getpid()),  # noqa: PLW1509 - only the child itself can ask for this signal
        )
    except OSError as error:
        raise EnvironmentFault(
            f"{command[0]} cannot be run: {error.strerror}",
            remedy="set tensorrt: trtexec to the program, or use --builder api",
        ) from error
    watch = memory.Watch(process.pid)
    deadline = time.monotonic() + deadline_seconds
    lines: list[str] = []
    try:
        for line in _lines(process, deadline):
            lines.append(line)
            on_line(line)
        in_time = _is_dead_by(process.pid, deadline)
    finally:
        peak = _end(process)
    status = process.returncode if in_time else None
    text = "\n".join(lines)
    if status == -signal.SIGKILL:
        return Ended(text, status, peak, *watch.verdict())
    return Ended(text, status, peak)


def _lines(process: subprocess.Popen[bytes], deadline: float) -> Iterator[str]:
    """Yield the output lines until the program ends, no process writes any more, or the deadline passes."""
    assert process.stdout is not None
    descriptor, rest = process.stdout.fileno(), b""
    while time.monotonic() < deadline:
        is_dead = _is_dead(process.pid)
        ready, _, _ = select.select([descriptor], [], [], 0 if is_dead else _POLL_SECONDS)
        if not ready and is_dead:
            break  # a process that it started may hold the pipe open for ever
        if ready:
            chunk = os.read(descriptor, _CHUNK_BYTES)
            if not chunk:
                break
            *whole, rest = (rest + chunk).split(b"\n")
            yield from (line.decode(errors="replace").rstrip("\r") for line in whole)
    if rest:
        yield rest.decode(errors="replace")


def _is_dead_by(process: int, deadline: float) -> bool:
    while not _is_dead(process):
        if time.monotonic() >= deadline:
            return False
        time.sleep(_POLL_SECONDS)
    return True


def _is_dead(process: int) -> bool:
    """Whether a child has exited; its status is left for `memory.wait_for`, which returns its peak memory."""
    return os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _end(process: subprocess.Popen[bytes]) -> int:
    """End a program and all processes it started; return its peak memory."""
    if not _is_dead(process.pid):
        signal_group(process.pid, signal.SIGTERM)
        if not _is_dead_by(process.pid, time.monotonic() + _TERMINATE_SECONDS):
            signal_group(process.pid, signal.SIGKILL)
    process.returncode, peak = memory.wait_for(process.pid)
    signal_group(process.pid, signal.SIGKILL)
    assert process.stdout is not None
    process.stdout.close()
    return peak


def plan_tensors(inspected: str, graph: Component, formats: Mapping[str, TensorFormat]) -> tuple[PlanTensor, ...]:
    """Return the inputs and outputs of a plan.

    TensorRT 11 tells all of it, 10 little of what varies. What is not told is the graph's: a strongly typed plan has
    the graph's types, the formats that it was told to have, and an input that nothing needs is one of its own too.

    Args:
        inspected: the inspector's JSON; empty where the plan keeps it to itself.
        graph: that the plan was built from.
        formats: that were asked for, by name.

    Raises:
        EngineError: it is no JSON of an inspector.
    """
    inspected_by_name = {tensor.name: tensor for tensor in (read_tensors(inspected) if inspected else ())}
    tensors = [(tensor, True) for tensor in graph.inputs] + [(tensor, False) for tensor in graph.outputs]
    return tuple(
        _tensor(tensor, formats.get(tensor.name, "chw"), inspected_by_name.get(tensor.name), is_input=is_input)
        for tensor, is_input in tensors
    )


def _tensor(
    tensor: Tensor, format_name: TensorFormat, inspected_tensor: PlanTensor | None, *, is_input: bool
) -> PlanTensor:
    """The graph's tensor, completed with the plan's facts on it."""
    of_graph = PlanTensor(
        name=tensor.name,
        is_input=is_input,
        dtype=tensor.dtype,
        dims=tuple(dim if isinstance(dim, int) else -1 for dim in tensor.dims),
        format="LINEAR" if format_name == "chw" else format_name.upper(),
    )
    if inspected_tensor is None:
        return of_graph
    return of_graph.model_copy(
        update={
            "dtype": inspected_tensor.dtype or of_graph.dtype,
            "dims": inspected_tensor.dims if len(inspected_tensor.dims) == len(of_graph.dims) else of_graph.dims,
            "format": inspected_tensor.format or of_graph.format,
            "is_shape": inspected_tensor.is_shape,
        }
    )


def build(request: BuildRequest, progress: Callable[[str], None]) -> Plan:
    """Build one plan into `request.out`; the program's output is copied to standard output as it arrives.

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
    command = request_command(request, graph, output.version(request.trtexec))
    began = time.monotonic()
    ended = run(
        command,
        {**os.environ, **gpu_environment(request.gpu)},
        deadline_seconds=request.deadline_seconds,
        on_line=_listener(progress),
    )
    seconds = time.monotonic() - began
    report = read_output(ended.text)
    try:
        refuse_failure(request, ended, report)
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
        tensorrt=report.version,
        builder="trtexec",
        seconds=seconds,
        peak_host_bytes=ended.peak_bytes,
        peak_device_bytes=report.peak_device_mib * _MIB if report.peak_device_mib is not None else None,
        timing_cache=describe_cache(report, _timing_cache(request)),
        tensors=tensors,
        profile_bytes=(),
        layers_file=LAYERS_FILE,
        log=LOG_FILE,
        reproduce=REPRODUCE_FILE,
        warnings=first_warnings(report.warnings),
    )


def request_command(request: BuildRequest, graph: Component, version: str) -> list[str]:
    """Return the command line of a request, for TensorRT of this version.

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
    """Return the variables that show CUDA only one GPU, or, without a UUID, number all as the driver does."""
    return {"CUDA_VISIBLE_DEVICES": gpu.uuid} if gpu.uuid else {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def describe_cache(output: TrtexecOutput, file: str) -> str:
    """Describe the use of the timing cache."""
    if not file:
        return "none"
    if any("invalid timing cache" in warning.lower() for warning in output.warnings):
        return "refused by TensorRT; begun anew"
    read = f"read ({output.cache_read_bytes} bytes)" if output.cache_read_bytes else "begun anew"
    return read if output.cache_written_bytes is None else f"{read}, written back ({output.cache_written_bytes} bytes)"


def _timing_cache(request: BuildRequest) -> str:
    return request.timing_cache if request.spec.timing_cache else ""


def _listener(progress: Callable[[str], None]) -> Callable[[str], None]:
    previous = ""

    def hear(line: str) -> None:
        nonlocal previous
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
        doing = next((phase for pattern, phase in _PHASES.items() if pattern.search(line)), previous)
        if doing != previous:
            previous = doing
            progress(doing)

    return hear


def first_warnings(warnings: Sequence[str]) -> tuple[str, ...]:
    """Return the first warnings, as some graphs have one for each weight."""
    more = len(warnings) - _WARNINGS_KEPT
    return (*warnings[:_WARNINGS_KEPT], *([f"{more} more warnings stand in the log"] if more > 0 else []))


def refuse_failure(request: BuildRequest, ended: Ended, output: TrtexecOutput) -> None:
    """Raise the error of a build without a plan, or with one that cannot be trusted."""
    activity = f"building a plan of {Path(request.graph).name}"
    if ended.status is None:
        raise EngineError(
            f"{activity}: trtexec did not end within {request.deadline_seconds / 60:.0f} minutes",
            remedy="give it more time (tensorrt: deadline_minutes), or less to do: fewer profiles, narrower shapes, a"
            " lower tensorrt: optimization_level",
        )
    if ended.status < 0:
        raise _death(ended, activity)
    if ended.status or output.ended == "failed":
        raise failure_of(ended.text, activity=activity)
    plan = Path(request.out, PLAN_FILE)
    if output.ended != "passed" or not plan.is_file() or not plan.stat().st_size:
        # A builder that streams the plan to its file may fail and still end well (networkToSerializedEngine).
        raise known_failure(ended.text, activity=activity) or EngineError(
            f"{activity}: trtexec ended as if all were well, but left no plan",
            remedy="see whether tensorrt: trtexec is NVIDIA's program; read the log",
        )
    if output.version.startswith("10.") and not output.strongly_typed:
        raise EngineError(
            f"{activity}: trtexec of TensorRT {output.version} did not say that the network is strongly typed",
            remedy="use the trtexec of TensorRT 10.12 or later, or --builder api",
        )
    if request.gpu.uuid and output.gpu_uuid and request.gpu.uuid != output.gpu_uuid:
        raise EngineError(
            f"{activity}: trtexec took the GPU {output.gpu_uuid} ({output.gpu_name}), not {request.gpu.uuid}",
            remedy="take CUDA_VISIBLE_DEVICES out of the environment of this machine's container or job",
        )


def _death(ended: Ended, activity: str) -> PlansmithError:
    """The error for a program that a signal ended."""
    assert ended.status is not None
    if ended.killer:
        return EnvironmentFault(f"{activity}: trtexec was killed, {ended.killer}", remedy=ended.killer_remedy)
    name = signal.Signals(-ended.status).name
    last = ended.text.strip().rpartition("\n")[2]
    return known_failure(ended.text, activity=activity) or EngineError(
        f"{activity}: trtexec crashed with {name}" + (f"; its last words were: {last}" if last else ""),
        remedy="run reproduce.sh to see whether it does so again; try --builder api or a newer target, and report it to"
        " NVIDIA with the log",
    )


def _inspected(request: BuildRequest) -> str:
    """The engine inspector's JSON, whose file is deleted; empty where the plan does not expose its layers."""
    file = Path(request.out, _INSPECTED_FILE)
    text = file.read_text() if file.is_file() else ""
    file.unlink(missing_ok=True)
    if text.strip() or request.spec.verbosity == "none":
        return text.strip()
    raise EngineError(
        "trtexec built a plan but wrote nothing of its layers",
        remedy="see whether there is room in the artifact folder; read the log",
    )
