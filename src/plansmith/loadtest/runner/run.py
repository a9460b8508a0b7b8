"""Runs a load test, and makes a report of whatever happens."""

from __future__ import annotations

import importlib.util
import os
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from plansmith.errors import EnvironmentFault
from plansmith.formatting import format_bytes
from plansmith.loadtest.plan.schedule import ScheduledStage, schedule_stages
from plansmith.loadtest.plan.stages import LoadPlan
from plansmith.loadtest.results import Ending, LoadReport
from plansmith.loadtest.runner.load_runner import INTERRUPTED, LoadEnd, LoadRunner, Progress
from plansmith.loadtest.runner.processes import ClientLost, ClientProcesses
from plansmith.loadtest.runner.workers import RemoteWorkers
from plansmith.loadtest.server.monitor import ServerMonitor
from plansmith.loadtest.server.preflight import check_target
from plansmith.loadtest.target import LoadTarget
from plansmith.system.cpu import CPU_INFO

_HIDDEN = "…"
"""Stands in reports for the values of headers, which may be secrets."""


def require_locust() -> None:
    """Check that load can be generated here, before anything is started for it.

    Raises:
        EnvironmentFault: Locust is not installed.
    """
    if importlib.util.find_spec("locust") is None:
        raise EnvironmentFault("Locust is not installed", remedy="pip install 'plansmith[loadtest]'")


def run_load(
    target: LoadTarget,
    plan: LoadPlan,
    *,
    folder: Path,
    monitor: ServerMonitor | None = None,
    workers: RemoteWorkers | None = None,
    progress: Callable[[Progress], None] = lambda _: None,
) -> LoadReport:
    """Run a load test, and report the results: also where the server or a client dies, or the test is interrupted.

    Args:
        target: server and models.
        plan: the stages.
        folder: takes logs.
        monitor: monitors the server.
        workers: client processes on other machines that generate the load; None where those of this machine do.
        progress: called about once a second.

    Raises:
        UsageError: stages that cannot be.
        ServedCheckError: a model is not ready, or refuses its request.
        EnvironmentFault: the server is not reached, or Locust is not installed.
    """
    plan = plan.with_warm_up()
    stages = schedule_stages(plan)
    require_locust()
    configuration = check_target(target, plan.timeout_seconds)
    runner = LoadRunner(target, plan, monitor, progress)
    began, began_at = time.monotonic(), datetime.now(UTC).isoformat(timespec="seconds")
    clients = ClientProcesses(target, plan, folder, workers)
    ending, reason = _run(runner, clients, stages)
    return LoadReport(
        target=_reported(target),
        plan=plan,
        configuration=configuration,
        machine=describe_machine(),
        began_at=began_at,
        seconds=time.monotonic() - began,
        stages=tuple(runner.results()),
        timeline=runner.totals.timeline(),
        ending=ending,
        reason=reason,
        notes=(*_machine_notes(clients.machines), *runner.notes()),
    )


def _run(runner: LoadRunner, clients: ClientProcesses, stages: tuple[ScheduledStage, ...]) -> tuple[Ending, str]:
    """Start the clients, and run all stages: how that ended, and why.

    Raises:
        KeyboardInterrupt: no stage had begun.
    """
    try:
        with clients:
            return _run_stages(runner, clients, stages)
    except KeyboardInterrupt:
        if not runner.has_begun:
            raise
        return "interrupted", INTERRUPTED


def _run_stages(runner: LoadRunner, clients: ClientProcesses, stages: tuple[ScheduledStage, ...]) -> tuple[Ending, str]:
    """Run all stages, and receive the last reports."""
    ending: Ending = "done"
    reason = ""
    try:
        runner.run_stages(clients, stages)
    except LoadEnd as end:
        ending, reason = end.ending, end.reason
    except ClientLost as lost:
        ending, reason = "client-lost", str(lost)
    except KeyboardInterrupt:
        ending, reason = "interrupted", INTERRUPTED
    if ending != "client-lost":
        runner.wind_down(clients, drains=ending in {"done", "threshold"})
    return ending, reason


def _machine_notes(machines: Sequence[str]) -> Iterator[str]:
    if machines:
        counts = (f"{machines.count(machine)} on {machine}" for machine in dict.fromkeys(machines))
        yield f"the load came from client processes on other machines: {', '.join(counts)}"


def _reported(target: LoadTarget) -> LoadTarget:
    """The target without values of headers, and without the folders of payloads, which go with the test."""
    models = tuple(model.model_copy(update={"payloads": ""}) for model in target.models)
    return target.model_copy(update={"headers": dict.fromkeys(target.headers, _HIDDEN), "models": models})


def describe_machine() -> str:
    """CPU, cores that this process may use, and memory."""
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    cores = len(os.sched_getaffinity(0))
    lines = CPU_INFO.read_text(errors="replace").splitlines() if CPU_INFO.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    name = next(names, platform.machine())
    return f"{name}, {cores} core{'' if cores == 1 else 's'}, {format_bytes(memory_bytes)}"
