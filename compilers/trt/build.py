"""Building a plan, on the parent's side: one child that has the GPU alone, a deadline, and all that is kept of it.

What a child, or the program that it runs, does to itself or its memory cannot reach this process, and neither outlives
it. A build that fails or is interrupted leaves nothing in its folder.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from plansmith.compilers.trt.reproduce import SCRIPT_FILE, write_reproduction
from plansmith.compilers.trt.timing_cache import Key, Loan, TimingCaches, key_of
from plansmith.errors import EngineError, PlansmithError, RepositoryError
from plansmith.formatting import format_bytes, format_seconds
from plansmith.records.engine import BuildMachine, BuildRequest, BuildSpec, Gpu, Plan
from plansmith.system import gpus
from plansmith.system.files import Waiting, storage_errors
from plansmith.system.process import Worker

WORKER_MODULE = "plansmith.compilers.trt.build_worker"
LOG_FILE = "build.log"

Progress = Callable[[str], None]

# The builders keep the deadline themselves, and say what they were at; this much later the child is killed.
_GRACE_SECONDS = 60.0


def probe(log: Path, *, trtexec: str = "") -> BuildMachine:
    """What this machine could build a plan with: its GPUs, TensorRT's Python package, and trtexec.

    Args:
        log: takes what TensorRT says when it is imported.
        trtexec: the program to use; found when empty.

    Raises:
        EnvironmentFault: the driver does not answer.
    """
    with Worker(WORKER_MODULE, log) as worker:
        program = trtexec or worker.call("find_trtexec")["program"]
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
            version = worker.call("tensorrt_version", trtexec=request.trtexec)["version"]
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
    """Put the weights of the graph that it was built from back into a stripped plan.

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
        worker.call("refit", plan=str(plan), graph=str(graph), out=str(out), spec=spec.model_dump(mode="json"))


def _child(gpu: Gpu, log: Path, progress: Progress) -> Worker:
    return Worker(WORKER_MODULE, log, progress, environment=gpus.environment_of(gpu))


def _version(worker: Worker, program: str) -> tuple[str, str]:
    """The version of a TensorRT, or why there is none: a library that crashes is an answer too."""
    try:
        return worker.call("tensorrt_version", trtexec=program)["version"], ""
    except PlansmithError as error:
        return "", error.message


def _take(worker: Worker, gpu: Gpu, waiting: Waiting) -> None:
    """Have the child hold the GPU until it ends."""
    told = gpu.model_dump(mode="json")
    answer = worker.call("hold", gpu=told, wait=False)
    if not answer["held"]:
        waiting(answer["holder"])
        worker.call("hold", gpu=told, wait=True)


@contextmanager
def _lent(cache: TimingCaches, key: Key, request: BuildRequest, worker: Worker) -> Iterator[Loan | None]:
    """What earlier builds measured, where it is wanted; what this one adds is kept, also if it ran out of time."""
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
            told = worker.call("combine", files=[str(file) for file in (loan.file, *loan.more)], out=str(loan.file))
            loan.combined = told["combined"]
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


def _built(worker: Worker, request: BuildRequest, loan: Loan | None) -> tuple[Plan, list[str]]:
    """The plan, and the command line of the program that built it, if one did."""
    told = request.model_copy(
        update={
            "gpu": request.gpu.model_copy(update={"index": 0}),  # the only one that the child sees
            "timing_cache": str(loan.file) if loan is not None else "",
        }
    )
    most = request.deadline_seconds + _GRACE_SECONDS
    try:
        with gpus.MemoryWatch(request.gpu) as device, worker.limited(most):
            answer = worker.call("build", request=told.model_dump(mode="json"))
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
    plan = Plan.model_validate(answer["plan"])
    seen = {"peak_host_bytes": answer["peak_host_bytes"]}
    if device.peak_bytes is not None:
        seen["peak_device_bytes"] = device.peak_bytes
    return plan.model_copy(update=seen), answer["command"]


def _require_room(request: BuildRequest) -> None:
    """See that a plan fits on the disk: its weights are those of the graph, unless it has none.

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
    """The log of this build alone: others may stand before it in the same file."""
    with log.open("rb") as source, target.open("wb") as copy:
        source.seek(begins)
        shutil.copyfileobj(source, copy)
