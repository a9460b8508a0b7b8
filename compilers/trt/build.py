"""Plan builds on the parent's side: one child with exclusive GPU access, a deadline, and the kept results.

What a child, or the program that it runs, does to itself or its memory cannot reach this process, and neither outlives
it. A build that fails or is interrupted leaves nothing in its folder.
"""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from plansmith.compilers.trt import build_tasks
from plansmith.compilers.trt.build_tasks import CombineRequest, HoldRequest, Program, RefitRequest
from plansmith.compilers.trt.timing_cache import Key, Loan, TimingCaches, key_of
from plansmith.errors import EngineError, PlansmithError, RepositoryError
from plansmith.formatting import format_bytes, format_seconds
from plansmith.records.engine import BuildMachine, BuildRequest, BuildSpec, Gpu, Plan
from plansmith.system import gpus
from plansmith.system.files import Waiting, storage_errors
from plansmith.system.process import Worker
from plansmith.system.tasks import Nothing, Progress

REQUEST_FILE = "request.json"
SCRIPT_FILE = "reproduce.sh"

_SCRIPT = """\
#!/bin/sh
# Builds the plan beside this file again: with TensorRT {tensorrt}, on a GPU of the same kind ({gpu}).
#
#   sh {name} [graph.onnx] [folder] [timing cache]
#
# graph.onnx: the lowered graph, with its weights beside it; where it was at the build when left out.
# folder: takes the new model.plan; ./rebuilt when left out.
# timing cache: a file to start from and to write back to; a new one in the folder when left out.
# {needs}
set -eu
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
graph=${{1:-{graph}}}
out=${{2:-./rebuilt}}
cache=${{3:-$out/timing.cache}}
if [ ! -f "$graph" ]; then
  echo "there is no graph $graph; give its path: $0 graph.onnx" >&2
  exit 2
fi
mkdir -p -- "$out"
{command}
"""

WORKER_MODULE = "plansmith.compilers.trt.build_worker"
LOG_FILE = "build.log"
# The builders keep the deadline themselves, and say what they were at; this much later the child is killed.
_GRACE_SECONDS = 60.0


def write_reproduction(
    folder: Path, request: BuildRequest, plan: Plan, command: Sequence[str], *, timing_cache: str
) -> None:
    """Write `request.json` and `reproduce.sh` next to a plan.

    Args:
        folder: takes them.
        request: what was asked for; its folder and timing cache, which others take the place of, are left out.
        plan: what was built.
        command: of the program that built it; empty for TensorRT's Python API.
        timing_cache: the file that the build used; empty for none.
    """
    plain_request = request.model_copy(update={"out": "", "timing_cache": ""})
    (folder / REQUEST_FILE).write_text(f"{plain_request.model_dump_json(indent=1)}\n")
    if command:
        needs = (
            f"Set TRTEXEC where the program is not {command[0]}, CUDA_VISIBLE_DEVICES where not the first GPU is meant."
        )
        places = {request.out: "$out", request.graph: "$graph", timing_cache: "$cache"}
        lines = _lines_by_program(command, {path: name for path, name in places.items() if path})
    else:
        needs = (
            "Set PYTHON to one that has plansmith and TensorRT, CUDA_VISIBLE_DEVICES where not all GPUs may be used."
        )
        lines = _lines_by_api(with_cache=bool(timing_cache))
    script = folder / SCRIPT_FILE
    script.write_text(
        _SCRIPT.format(
            tensorrt=plan.tensorrt,
            gpu=_in_one_line(f"{request.gpu.name}, compute capability {request.gpu.compute_capability}"),
            name=SCRIPT_FILE,
            needs=_in_one_line(needs),
            graph=shlex.quote(request.graph),
            command=lines,
        )
    )
    script.chmod(0o755)


def _lines_by_api(*, with_cache: bool) -> str:
    options = ['--request "$here/request.json"', '--graph "$graph"', '--out "$out"']
    if with_cache:
        options.append('--timing-cache "$cache"')
    return " \\\n  ".join(['exec "${PYTHON:-python3}" -m plansmith.compilers.trt.build_worker', *options])


def _lines_by_program(command: Sequence[str], places: Mapping[str, str]) -> str:
    options = [_quoted(option, places) for option in command[1:]]
    return f"trtexec=${{TRTEXEC:-{shlex.quote(command[0])}}}\n" + " \\\n  ".join(['exec "$trtexec"', *options])


def _quoted(option: str, places: Mapping[str, str]) -> str:
    """Quote an argument for the shell, with variables for its paths."""
    paths = "|".join(re.escape(path) for path in sorted(places, key=len, reverse=True))
    parts = re.split(f"({paths})", option)
    return "".join(f'"{places[part]}"' if part in places else shlex.quote(part) for part in parts if part)


def _in_one_line(text: str) -> str:
    return " ".join(text.split())


def probe(log: Path, *, trtexec: str = "") -> BuildMachine:
    """Detect what this machine could build a plan with: its GPUs, TensorRT's Python package, and trtexec.

    Args:
        log: takes what TensorRT says when it is imported.
        trtexec: the program to use; found when empty.

    Raises:
        EnvironmentFault: the driver does not answer.
    """
    with Worker(WORKER_MODULE, log) as worker:
        program = trtexec or build_tasks.FIND_TRTEXEC.run(worker, Nothing()).trtexec
        version, problem = _version(worker, program) if program else ("", "")
        api, api_problem = _version(worker, "")
    return BuildMachine(
        gpus=gpus.visible_gpus(),
        api=api,
        api_problem=api_problem,
        trtexec=program,
        trtexec_version=version,
        trtexec_problem=problem,
    )


def build_plan(
    request: BuildRequest,
    *,
    log: Path,
    progress: Progress = lambda _: None,
    waiting: Waiting = lambda _: None,
    cache: TimingCaches,
) -> Plan:
    """Build one plan; `request.out` then holds it with its layers, `build.log`, `request.json` and `reproduce.sh`.

    Args:
        request: what to build, for a GPU of this machine; its timing cache is chosen here.
        log: takes everything that the builder says, also where it fails.
        progress: told what is being done, in a few words.
        waiting: told before this waits for another process that has the GPU; what it raises ends the attempt.
        cache: what earlier builds measured.

    Raises:
        EngineError: the graph, the spec or the deadline is the reason that there is no plan.
        EnvironmentFault: TensorRT, the GPU, its driver or memory is missing, or the child was killed.
        RepositoryError: the disk is full.
    """
    out = Path(request.out)
    with storage_errors(out), _left_empty_by_failure(out):
        _require_room(request)
        with _child(request.gpu, log, progress) as worker:
            begins = log.stat().st_size
            version = build_tasks.TENSORRT_VERSION.run(worker, Program(trtexec=request.trtexec)).version
            _take(worker, request.gpu, waiting)
            key = key_of(version, request.gpu, request.spec)
            with _lent(cache, key, request, worker) as loan:
                plan, command = _built(worker, request, loan)
        used = str(loan.file) if loan is not None else ""
        write_reproduction(out, request, plan, command, timing_cache=used)
        _copy_log(log, begins, out / LOG_FILE)
    warnings = (*(loan.warnings if loan is not None else ()), *plan.warnings)
    return plan.model_copy(update={"log": LOG_FILE, "reproduce": SCRIPT_FILE, "gpu": request.gpu, "warnings": warnings})


def refit_plan(
    plan: Path,
    graph: Path,
    out: Path,
    *,
    spec: BuildSpec,
    gpu: Gpu,
    log: Path,
    progress: Progress = lambda _: None,
    waiting: Waiting = lambda _: None,
) -> None:
    """Refit a stripped plan with the weights of the graph it was built from.

    Args:
        plan: the stripped plan.
        graph: the ONNX file, its weights beside it.
        out: the file to write.
        spec: what the plan was built with.
        gpu: one of this machine, of the plan's kind.
        log: takes what TensorRT says.
        progress: as for `build_plan`.
        waiting: as for `build_plan`.

    Raises:
        PlansmithError: as for `build_plan`.
    """
    with storage_errors(out.parent), _child(gpu, log, progress) as worker:
        _take(worker, gpu, waiting)
        build_tasks.REFIT.run(worker, RefitRequest(plan=plan, graph=graph, out=out, spec=spec))


def _child(gpu: Gpu, log: Path, progress: Progress) -> Worker:
    return Worker(WORKER_MODULE, log, progress, environment=gpus.environment_of(gpu))


def _version(worker: Worker, program: str) -> tuple[str, str]:
    """The version of a TensorRT, or why there is none; a crashing library is a valid result."""
    try:
        return build_tasks.TENSORRT_VERSION.run(worker, Program(trtexec=program)).version, ""
    except PlansmithError as error:
        return "", error.message


def _take(worker: Worker, gpu: Gpu, waiting: Waiting) -> None:
    """Have the child lock the GPU until it exits."""
    response = build_tasks.HOLD.run(worker, HoldRequest(gpu=gpu, wait=False))
    if not response.held:
        waiting(response.holder)
        build_tasks.HOLD.run(worker, HoldRequest(gpu=gpu, wait=True))


@contextmanager
def _lent(cache: TimingCaches, key: Key, request: BuildRequest, worker: Worker) -> Iterator[Loan | None]:
    """Lend the timing cache, where enabled; new measurements are kept even if the build timed out."""
    if not request.spec.timing_cache:
        yield None
        return
    with cache.lent(key, request.spec) as loan:
        if request.spec.error_on_timing_cache_miss and not loan.is_known:
            raise EngineError(
                f"nothing was measured yet for TensorRT {key.facts['tensorrt']} on {request.gpu.name} with these flags,"
                " so that error_on_timing_cache_miss refuses every build",
                remedy="compile once without tensorrt: error_on_timing_cache_miss",
            )
        by_api = not request.trtexec
        if loan.more and by_api:
            request_to_combine = CombineRequest(files=(loan.file, *loan.more), out=loan.file)
            loan.combined = build_tasks.COMBINE.run(worker, request_to_combine).combined
            if not loan.combined:
                loan.warnings += (
                    "TensorRT could not combine the timing caches of earlier builds; the largest was used",
                )
        try:
            yield loan
        except PlansmithError:
            if by_api and not worker.is_dead:  # a program that was stopped may have left half of a file
                cache.take_back(key, loan)
            raise
        cache.take_back(key, loan)


def _built(worker: Worker, request: BuildRequest, loan: Loan | None) -> tuple[Plan, Sequence[str]]:
    """Build the plan; also return the command line of the program that built it, if any."""
    worker_request = request.model_copy(
        update={
            "gpu": request.gpu.model_copy(update={"index": 0}),  # the only one that the child sees
            "timing_cache": str(loan.file) if loan is not None else "",
        }
    )
    most = request.deadline_seconds + _GRACE_SECONDS
    try:
        with gpus.MemoryWatch(request.gpu) as device, worker.limited(most):
            response = build_tasks.BUILD.run(worker, worker_request)
    except PlansmithError as error:
        if not worker.is_out_of_time:
            raise
        raise EngineError(
            f"the build was ended after {format_seconds(most)}, while it did not end by itself"
            + (f" ({worker.doing})" if worker.doing else ""),
            remedy="give it more time (tensorrt: deadline_minutes), or less to do: fewer profiles, narrower shapes, a"
            " lower tensorrt: optimization_level",
            log=error.log,
        ) from error
    peaks = {"peak_host_bytes": response.peak_host_bytes}
    if device.peak_bytes is not None:
        peaks["peak_device_bytes"] = device.peak_bytes
    return response.plan.model_copy(update=peaks), response.command


def _require_room(request: BuildRequest) -> None:
    """Require enough disk space for a plan: about the size of the graph's files, unless weights are stripped.

    Raises:
        RepositoryError: there is less room than the graph's files take.
    """
    if request.spec.strip_weights:
        return
    needed = sum(path.stat().st_size for path in Path(request.graph).parent.iterdir() if path.is_file())
    free = shutil.disk_usage(request.out).free
    if free < needed:
        raise RepositoryError(
            f"no space left on the file system of {request.out}: the plan takes about {format_bytes(needed)}, and"
            f" {format_bytes(free)} are free",
            remedy="free some space, or choose another --artifacts folder",
        )


@contextmanager
def _left_empty_by_failure(folder: Path) -> Iterator[None]:
    try:
        yield
    except BaseException:
        for path in folder.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
        raise


def _copy_log(log: Path, begins: int, target: Path) -> None:
    """Copy the log of this build only: earlier builds may have written to the same file."""
    with log.open("rb") as source, target.open("wb") as copy:
        source.seek(begins)
        shutil.copyfileobj(source, copy)
