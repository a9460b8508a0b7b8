"""Load runner: drives client processes through the stages of a load test and aggregates their reports."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from plansmith.errors import PlansmithError
from plansmith.formatting import format_bytes
from plansmith.loadtest.client.recorder import WARM_UP, RequestCounts
from plansmith.loadtest.connect import check_target
from plansmith.loadtest.monitor import ServerMonitor
from plansmith.loadtest.results import Ending, LoadReport, ModelStatistics, ServerUsage, StageResult
from plansmith.loadtest.runner.processes import ClientLost, ClientProcesses, RemoteWorkers
from plansmith.loadtest.runner.stage_results import (
    Liveness,
    StageTimes,
    Totals,
    exceeded_limit,
    flat_throughput,
    stage_notes,
    stage_result,
)
from plansmith.loadtest.stages import LoadPlan, ScheduledStage, schedule_stage, schedule_stages
from plansmith.loadtest.target import LoadTarget
from plansmith.system.gpus import CPU_INFO
from plansmith.system.libraries import require_library

_TICK_SECONDS = 1.0
_MIN_RATE_SECONDS = 0.25
_SILENT_CLIENT_SECONDS = 30.0
_FLUSH_SECONDS = 5.0
_GAP_SECONDS = 0.1
_LAST_CHECK_SECONDS = 10.0

INTERRUPTED = "it was interrupted"

_HIDDEN = "…"
"""Stands in reports for the values of headers, which may be secrets."""


@dataclass(frozen=True)
class Progress:
    """Load test progress: reported at the start of a stage, about once a second, and while awaiting the last answers.

    Attributes:
        stage: its number, from 0; -1 in the warm-up.
        label: of the stage.
        seconds: since the stage began.
        planned_seconds: its duration.
        users: that are there (closed loop).
        throughput: answers per second, lately.
        requests: measured requests of the stage until now.
        failures: those of them that failed.
        p50_ms: of the stage until now; 0 where none was answered.
        p95_ms: likewise.
    """

    stage: int
    label: str
    seconds: float
    planned_seconds: float
    users: int
    throughput: float
    requests: int
    failures: int
    p50_ms: float
    p95_ms: float


class LoadEnd(Exception):
    """End of a load test before its last stage.

    Args:
        ending: how it ends.
        reason: in words.
    """

    def __init__(self, ending: Ending, reason: str) -> None:
        super().__init__(reason)
        self.ending = ending
        self.reason = reason


@dataclass
class _StageRun:
    """Stage run: the state of a stage that has begun."""

    scheduled: ScheduledStage
    began: float
    measured_from: float | None = None
    seconds: float = 0.0
    measured_seconds: float = 0.0
    silent_seconds: float = 0.0
    users: int = 0
    models: tuple[ModelStatistics, ...] = ()
    usage: ServerUsage = field(default_factory=ServerUsage)
    stopped: str = ""


class LoadRunner:
    """Load test runner of one running test.

    Args:
        target: server and models.
        plan: with its warm-up.
        monitor: monitors the server; None where nothing can.
        progress: called about once a second.

    Attributes:
        totals: what was counted.
    """

    def __init__(
        self, target: LoadTarget, plan: LoadPlan, monitor: ServerMonitor | None, progress: Callable[[Progress], None]
    ) -> None:
        self.totals = Totals()
        self._target = target
        self._plan = plan
        self._monitor = monitor
        self._progress = progress
        self._liveness = Liveness(plan.timeout_seconds)
        self._zero: float | None = None
        self._stages: list[_StageRun] = []
        self._current: _StageRun | None = None
        self._number = WARM_UP
        self._users = 0
        self._answers = 0
        self._throughput = 0.0
        self._is_over = False
        self._is_precise = False
        self._slowest_ms = 0.0
        self._ticked = self._received = time.monotonic()

    @property
    def has_begun(self) -> bool:
        """Whether any stage began."""
        return bool(self._stages)

    def run_stages(self, clients: ClientProcesses, stages: tuple[ScheduledStage, ...]) -> None:
        """Run the warm-up, then one stage after another.

        Raises:
            LoadEnd: a stop condition is met, or the server is lost.
            ClientLost: a client process has ended.
        """
        assert self._plan.warm_up is not None
        self._ticked = self._received = time.monotonic()
        self._liveness.begin()
        self._run_stage(clients, WARM_UP, schedule_stage(self._plan.warm_up, 0.0))
        for number, scheduled in enumerate(stages):
            self._await_start(clients, scheduled)
            self._run_stage(clients, number, scheduled)
            self._require_rising_throughput()
        if self._liveness.is_refusing:
            self._require_server()

    def results(self) -> list[StageResult]:
        """Return the results of the stages that began."""
        return [self._result(number) for number in range(len(self._stages))]

    def notes(self) -> list[str]:
        """Return notes for interpreting the results correctly."""
        return [
            note
            for number, run in enumerate(self._stages)
            for note in stage_notes(number + 1, run.scheduled.stage, self.totals.stages[number], self._times(run))
        ]

    def wind_down(self, clients: ClientProcesses, *, drains: bool) -> None:
        """Stop the load and receive the last reports.

        Args:
            clients: the client processes.
            drains: wait for the answers of requests in flight.
        """
        self._is_over = True
        self._ticked = time.monotonic()
        with suppress(LoadEnd, ClientLost):
            self._stop_load(clients)
            if drains:
                clients.send("drain", seconds=self._plan.timeout_seconds)
                self._receive(clients, time.monotonic() + self._plan.timeout_seconds + _FLUSH_SECONDS, until="drain")
            else:
                clients.send("settle")
                self._receive(clients, time.monotonic() + _FLUSH_SECONDS, until="settle")

    def _result(self, number: int) -> StageResult:
        run = self._stages[number]
        stage = run.scheduled.stage
        result = stage_result(self._target, stage, self.totals.stages[number], self._times(run), run.users)
        return result.model_copy(update={"server_models": run.models, "server": run.usage, "stopped": run.stopped})

    def _times(self, run: _StageRun) -> StageTimes:
        began = run.began - (self._zero or 0.0)
        return StageTimes(began, run.seconds, run.measured_seconds, run.scheduled.seconds, run.silent_seconds)

    def _await_start(self, clients: ClientProcesses, scheduled: ScheduledStage) -> None:
        """Wait without load for a stage with its own start time."""
        if self._zero is None or scheduled.stage.at_seconds is None:
            return
        if self._zero + scheduled.at - time.monotonic() > _GAP_SECONDS:
            self._stop_load(clients)
            self._current = None
            self._receive(clients, self._zero + scheduled.at)

    def _run_stage(self, clients: ClientProcesses, number: int, scheduled: ScheduledStage) -> None:
        """Run a stage; its counts are kept if it ends early."""
        self._number = number
        self._is_precise = False
        run = self._current = _StageRun(scheduled, time.monotonic())
        if number == 0:
            self._zero = run.began
        if number != WARM_UP:
            self._stages.append(run)
        self._report_progress(begins=True)
        try:
            self._start_load(clients, scheduled)
            end = run.began + scheduled.seconds
            if scheduled.stage.is_open or self._receive(clients, end, until="loaded"):
                self._measure(clients, run, end)
        except (LoadEnd, ClientLost) as end_of_test:
            run.stopped = str(end_of_test)
            raise
        except KeyboardInterrupt:
            run.stopped = INTERRUPTED
            raise
        finally:
            run.seconds = time.monotonic() - run.began
            run.users = self._users

    def _start_load(self, clients: ClientProcesses, scheduled: ScheduledStage) -> None:
        stage = scheduled.stage
        clients.send(
            "load",
            stage=self._number,
            is_first=self._number == 0,
            users=stage.users or 0,
            spawn_rate=stage.spawn_rate,
            arrivals=("trace" if stage.trace else stage.arrivals) if stage.is_open else "",
            rate=stage.rate or 0.0,
            trace=list(scheduled.trace),
            seconds=scheduled.seconds,
        )

    def _stop_load(self, clients: ClientProcesses) -> None:
        clients.send("load", stage=self._number, is_first=False, users=0, spawn_rate=None, arrivals="")

    def _measure(self, clients: ClientProcesses, run: _StageRun, end: float) -> None:
        """Run the measured part of a stage, in which all users are active."""
        monitor = None if self._number == WARM_UP else self._monitor
        if monitor is not None:
            monitor.begin()
        run.measured_from = time.monotonic()  # before the command, so that no stage counts as shorter than it was
        clients.send("measure")
        try:
            if run.scheduled.stage.is_open:
                self._receive(clients, end + _SILENT_CLIENT_SECONDS, until="spent")
            else:
                self._receive(clients, end)
            clients.send("settle")
            run.measured_seconds = time.monotonic() - run.measured_from
            self._is_precise = False
            self._receive(clients, time.monotonic() + _SILENT_CLIENT_SECONDS, until="settle")
            run.silent_seconds = self._liveness.silent_seconds
            self._report_progress()
            self._require_limits()
        finally:
            if not run.measured_seconds:  # it ends early, and answers from now on are not measured
                with suppress(ClientLost):
                    clients.send("settle")
                run.measured_seconds = time.monotonic() - run.measured_from
            if monitor is not None:
                run.models, run.usage = monitor.end()

    def _receive(self, clients: ClientProcesses, deadline: float, until: str = "") -> bool:
        """Receive events until a deadline, an event, or sufficient precision; return whether the event arrived.

        Raises:
            LoadEnd: a limit is exceeded, or the server is lost.
            ClientLost: a client is lost.
        """
        while (remaining := deadline - time.monotonic()) > 0 and not self._is_precise:
            next_tick = max(0.0, self._ticked + _TICK_SECONDS - time.monotonic())
            for message in clients.events(min(remaining, next_tick)):
                self._received = time.monotonic()
                event = message["event"]
                if event == "report":
                    self._add(message)
                if event == "loaded" and message["stage"] != self._number:
                    continue
                if event == "loaded":
                    self._users = message["users"]
                if event == "lost":
                    count, machines = message["clients"], ", ".join(message["machines"])
                    subject = "a client process does" if count == 1 else f"{count} client processes do"
                    raise ClientLost(f"{subject} not answer, on {machines}")
                if until and event == until:
                    return True
            if time.monotonic() - self._received > _SILENT_CLIENT_SECONDS:
                raise ClientLost(f"a client process has reported nothing for {_SILENT_CLIENT_SECONDS:g} s")
            if time.monotonic() - self._ticked >= _TICK_SECONDS:
                self._tick()
        return False

    def _add(self, message: dict[str, Any]) -> None:
        report = message["report"]
        self._users = message["users"]
        self.totals.add(message["client"], report)
        self._answers += report["answers"]
        for _, _, counts in report["stages"]:
            self._slowest_ms = max(self._slowest_ms, counts[-1][3])
        self._liveness.add(report, self._slowest_ms, sum(self.totals.in_flight.values()))
        if self._zero is not None:
            self.totals.note_users(int(time.monotonic() - self._zero), self._users)

    def _report_progress(self, *, begins: bool = False) -> None:
        """Report progress; a beginning stage has no figures yet, as incoming ones belong to the previous stage."""
        now, run = time.monotonic(), self._current
        if (elapsed := now - self._ticked) >= _MIN_RATE_SECONDS:  # a shorter time would exaggerate a single report
            self._throughput = self._answers / elapsed
            self._ticked, self._answers = now, 0
        if run is None or self._is_over:
            return
        counts = self.totals.stages[self._number].all if self._number != WARM_UP else RequestCounts()
        self._progress(
            Progress(
                stage=self._number,
                label=run.scheduled.stage.label,
                seconds=now - run.began,
                planned_seconds=run.scheduled.seconds,
                users=self._users,
                throughput=0.0 if begins else self._throughput,
                requests=counts.answered + counts.failed,
                failures=counts.failed,
                p50_ms=counts.latency.percentile(50),
                p95_ms=counts.latency.percentile(95),
            )
        )

    def _tick(self) -> None:
        """Run periodic checks, about once a second."""
        self._report_progress()
        if loss := self._liveness.loss():
            kind, message = self.totals.last_failure
            detail = f" ({message})" * bool(kind)
            raise LoadEnd("server-lost", f"{self._target.label} is lost: {loss}{detail}")
        self._require_limits()
        self._check_precision()

    def _require_limits(self) -> None:
        """Raise LoadEnd if a limit is exceeded in the measured time of the stage."""
        run = self._current
        if run is None or run.measured_from is None or self._number == WARM_UP or self._is_over:
            return
        seconds = run.measured_seconds or time.monotonic() - run.measured_from
        if reason := exceeded_limit(self._plan.stop_when, self.totals.stages[self._number].all, seconds):
            raise LoadEnd("threshold", reason)

    def _check_precision(self) -> None:
        """Record whether the mean latency of the stage is precise enough."""
        run, width = self._current, self._plan.stop_when.confidence
        if width is None or run is None or run.measured_from is None or run.measured_seconds or self._zero is None:
            return
        if self._number == WARM_UP or self._is_over:
            return
        first, last = int(run.measured_from - self._zero) + 1, int(time.monotonic() - self._zero) - 1
        interval = self.totals.relative_interval(self._number, first, last)
        if interval is not None and interval <= width:
            self._is_precise = True
            run.stopped = f"its mean latency is known to ± {interval:.1%}"

    def _require_rising_throughput(self) -> None:
        """Raise LoadEnd if the throughput of the last stage is flat."""
        number = len(self._stages) - 1
        if number < 1 or self._plan.stop_when.flat_throughput is None:
            return
        if reason := flat_throughput(self._plan.stop_when, self._result(number - 1), self._result(number)):
            self._stages[number].stopped = reason
            raise LoadEnd("threshold", reason)

    def _require_server(self) -> None:
        """Check a server that refused connections until the end.

        Raises:
            LoadEnd: it does not answer.
        """
        try:
            check_target(self._target, min(self._plan.timeout_seconds, _LAST_CHECK_SECONDS))
        except PlansmithError as error:
            reason = f"{self._target.label} is lost: {error.message}"
            self._stages[-1].stopped = reason
            raise LoadEnd("server-lost", reason) from error


def require_locust() -> None:
    """Check that this machine can generate load, before anything is started for it.

    Raises:
        EnvironmentFault: Locust is not installed.
    """
    require_library("locust", "loadtest")


def run_load(
    target: LoadTarget,
    plan: LoadPlan,
    *,
    folder: Path,
    monitor: ServerMonitor | None = None,
    workers: RemoteWorkers | None = None,
    progress: Callable[[Progress], None] = lambda _: None,
) -> LoadReport:
    """Run a load test and report the results, even if the server or a client dies or the test is interrupted.

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
    """Start the clients and run all stages; return how the test ended, and why.

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
    """Run all stages and receive the final reports."""
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
    """Return the target without header values and payload folders, which are deleted with the test."""
    models = tuple(model.model_copy(update={"payloads": ""}) for model in target.models)
    return target.model_copy(update={"headers": dict.fromkeys(target.headers, _HIDDEN), "models": models})


def describe_machine() -> str:
    """Describe the CPU, the cores available to this process, and the memory."""
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    cores = len(os.sched_getaffinity(0))
    lines = CPU_INFO.read_text(errors="replace").splitlines() if CPU_INFO.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    name = next(names, platform.machine())
    return f"{name}, {cores} core{'' if cores == 1 else 's'}, {format_bytes(memory_bytes)}"
