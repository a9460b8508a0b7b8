"""Trial runner: runs each trial once and reuses trials of the history."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from plansmith.errors import EngineError, EnvironmentFault, PlansmithError, ServedCheckError, UsageError, in_one_line
from plansmith.loadtest.connect import prepare_target
from plansmith.loadtest.payloads.source import RequestOptions
from plansmith.loadtest.plan_file import ModelShare
from plansmith.loadtest.report.findings import statistics_of
from plansmith.loadtest.results import LoadReport
from plansmith.loadtest.runner.load_runner import run_load
from plansmith.loadtest.stages import LoadPlan, Stage
from plansmith.records.model import Record
from plansmith.system.files import abandoned_scratch, make_folder, remove_scratch, storage_errors
from plansmith.system.urls import Protocol
from plansmith.triton.client import Encoding
from plansmith.triton.repository.repository import ModelRepository
from plansmith.tuning.builds import CompiledBuild
from plansmith.tuning.configuration import Configuration
from plansmith.tuning.trials.history import (
    FOLDER_OPTION,
    Benchmark,
    Measurement,
    Phase,
    Trial,
    TrialContext,
    TrialFailed,
    TrialHistory,
    trial_key,
)
from plansmith.tuning.trials.trial_server import LOGS_FOLDER, ServedTrial, TrialServer

if TYPE_CHECKING:
    from plansmith.loadtest.runner.load_runner import Progress

_T = TypeVar("_T")
_WARM_UP_SECONDS = 2.0
_TIMEOUT_SECONDS = 30.0


@dataclass(frozen=True)
class TrialProgress:
    """Progress of a search.

    Attributes:
        phase: of the search.
        number: of the trial, from 1.
        total: trials of the search.
        configuration: that is run.
        seconds: of load.
        round_number: as in `Trial`.
        trial: the finished trial; None when it begins.
        reused: whether it was in the history.
    """

    phase: Phase
    number: int
    total: int
    configuration: Configuration
    seconds: float
    round_number: int = 0
    trial: Trial | None = None
    reused: bool = False


@dataclass
class TrialRunner:
    """Trial runner: runs trials, or reuses them from the history.

    Args:
        benchmark: measures a configuration.
        history: of finished trials; takes new ones.
        context: of the trials.
        session: of this process.
        total: trials that the search has.
        progress: called before and after each.
        limit_seconds: for all trials together; None for no limit.
        retry_failed: run again what failed in another session.

    Attributes:
        trials: of this search, in order, with those that were reused.
        measured: how many of them were not reused.
        used_seconds: that all of them took.
    """

    benchmark: Benchmark
    history: TrialHistory
    context: TrialContext
    session: str
    total: int
    progress: Callable[[TrialProgress], None] = lambda _: None
    limit_seconds: float | None = None
    retry_failed: bool = False
    trials: list[Trial] = field(default_factory=list)
    measured: int = 0
    used_seconds: float = 0.0

    def run(
        self,
        phase: Phase,
        configuration: Configuration,
        seconds: float,
        round_number: int = 0,
        candidate: Configuration | None = None,
    ) -> Trial:
        """Run a trial of a configuration, or reuse it from the history, and record it there.

        Args:
            phase: of the search.
            configuration: to serve.
            seconds: of load.
            round_number: of a confirmation.
            candidate: of that confirmation.
        """
        key = trial_key(self.context, configuration, seconds, round_number, candidate)
        trial = self.history.find(key)
        if trial is not None and trial.measurement is None and self.retry_failed and trial.session != self.session:
            trial = None
        progress = TrialProgress(phase, len(self.trials) + 1, self.total, configuration, seconds, round_number)
        is_reused = trial is not None
        if trial is None:
            self.progress(progress)
            trial = self._measure(key, configuration, seconds, round_number)
            self.history.add(trial)
            self.measured += 1
        self.trials.append(trial)
        self.used_seconds += trial.duration_seconds
        self.progress(replace(progress, trial=trial, reused=is_reused))
        return trial

    def has_time(self, share: float) -> bool:
        """Whether less than a fraction of the time limit is used."""
        return self.limit_seconds is None or self.used_seconds < share * self.limit_seconds

    def _measure(self, key: str, configuration: Configuration, seconds: float, round_number: int) -> Trial:
        began_at, began = datetime.now(UTC), time.monotonic()
        measurement, problem = None, ""
        try:
            measurement = self.benchmark(configuration, seconds)
        except TrialFailed as failure:
            problem = str(failure)
        return Trial(
            key=key,
            configuration=configuration,
            seconds=seconds,
            round_number=round_number,
            measurement=measurement,
            problem=problem,
            duration_seconds=round(time.monotonic() - began, 3),
            began_at=began_at.isoformat(timespec="milliseconds"),
            session=self.session,
        )


class TuningLoad(Record):
    """The load of every trial.

    Attributes:
        users: of a closed loop; None for a rate.
        rate: requests per second of an open loop.
        batch: samples per request.
        protocol: of the requests.
        encoding: of their bodies.
    """

    users: int | None = 8
    rate: float | None = None
    batch: int = 1
    protocol: Protocol = "http"
    encoding: Encoding = "binary"

    def plan(self, seconds: float) -> LoadPlan:
        """Return the load plan of a trial."""
        warm_up = min(_WARM_UP_SECONDS, max(seconds, 0.5))
        return LoadPlan(
            stages=(Stage(users=self.users, rate=self.rate, seconds=seconds),),
            warm_up=Stage(users=self.users, rate=self.rate, seconds=warm_up),
            timeout_seconds=_TIMEOUT_SECONDS,
        )

    def obstacle(self, configuration: Configuration) -> str:
        """Return why a configuration would refuse the requests; empty if it would not."""
        if not configuration.max_batch_size or self.batch <= configuration.max_batch_size:
            return ""
        return f"it takes batches of up to {configuration.max_batch_size}, and a request has {self.batch} samples"

    @property
    def label(self) -> str:
        """A label such as "8 users, 1 sample per request, http binary"."""
        stage = self.plan(1.0).stages[0]
        samples = f"{self.batch} sample{'' if self.batch == 1 else 's'} per request"
        return f"{stage.label}, {samples}, {self.protocol} {self.encoding}"


@dataclass(frozen=True)
class ServedBenchmark:
    """`Benchmark` on a Triton server.

    Args:
        builds: by label of the build.
        inputs: the build whose release keeps the inputs of the requests, the same for all.
        load: of the trials.
        folder: takes logs and temporary copies.
        server: serves the configurations.
        progress: called with the progress of the load, about once a second.
        announce: called with what else is done.
    """

    builds: Mapping[str, CompiledBuild]
    inputs: CompiledBuild
    load: TuningLoad
    folder: Path
    server: TrialServer
    progress: Callable[[Progress], None] = lambda _: None
    announce: Callable[[str], None] = lambda _: None

    def __call__(self, configuration: Configuration, seconds: float, /) -> Measurement:
        """Measure a configuration, with one retry after a fault of the machine.

        Raises:
            TrialFailed: Triton does not load it, dies or hangs, or the client limited the load.
            PlansmithError: the machine is at fault a second time.
            KeyboardInterrupt: the load was interrupted.
        """
        plan = self.load.plan(seconds)

        def measure() -> Measurement:
            report, trial = self._finished_report(configuration, plan)
            return measurement_of(report, trial.measured, uses_gpu=trial.uses_gpu)

        return self._twice(configuration, measure)

    def run_plan(self, configuration: Configuration, plan: LoadPlan) -> LoadReport:
        """Load-test a configuration with a plan, with one retry after a fault of the machine.

        Returns:
            The report; one that ended early tells why.

        Raises:
            TrialFailed, PlansmithError, KeyboardInterrupt: as for a call.
        """
        return self._twice(configuration, lambda: self._report(configuration, plan)[0])

    def _twice(self, configuration: Configuration, measure: Callable[[], _T]) -> _T:
        if obstacle := self.load.obstacle(configuration):
            raise TrialFailed(obstacle)
        try:
            return measure()
        except (PlansmithError, _ClientSaturated) as error:
            self.announce(f"once more: {in_one_line(str(error))}")
        try:
            return measure()
        except _ClientSaturated as error:
            raise TrialFailed(in_one_line(str(error))) from error
        except PlansmithError as error:
            if is_hanging(error):
                raise TrialFailed(in_one_line(error.message)) from error
            raise

    def _report(self, configuration: Configuration, plan: LoadPlan) -> tuple[LoadReport, ServedTrial]:
        """Run one load test; return its report and what was served.

        Raises:
            TrialFailed: the configuration is the reason why nothing was measured.
            PlansmithError: the machine is.
        """
        build = self.builds[configuration.build.label]
        try:
            with storage_errors(self.folder, alternative=FOLDER_OPTION):
                make_folder(self.folder / LOGS_FOLDER)
                report, trial = self._run_load(configuration, build, plan)
        except (ServedCheckError, EngineError, UsageError) as error:
            raise TrialFailed(in_one_line(error.message)) from error
        if report.ending == "interrupted":
            raise KeyboardInterrupt
        return report, trial

    def _finished_report(self, configuration: Configuration, plan: LoadPlan) -> tuple[LoadReport, ServedTrial]:
        """Run one load test to its end; returns and raises as `_report`."""
        report, trial = self._report(configuration, plan)
        if report.ending == "server-lost":
            raise TrialFailed(in_one_line(report.reason))
        if report.ending != "done":
            raise EnvironmentFault(
                f"the load test of a trial ended early: {in_one_line(report.reason) or report.ending}",
                remedy="run it again; finished trials are kept",
                log=self.folder / LOGS_FOLDER / "client.log",
            )
        return report, trial

    def _run_load(
        self, configuration: Configuration, build: CompiledBuild, plan: LoadPlan
    ) -> tuple[LoadReport, ServedTrial]:
        logs = self.folder / LOGS_FOLDER
        options = RequestOptions(
            protocol=self.load.protocol, encoding=self.load.encoding, timeout_seconds=_TIMEOUT_SECONDS
        )
        with self.server.serve(build, configuration) as trial:
            release = self.inputs.manifest.package.model
            place = replace(trial.place, repository=ModelRepository(self.inputs.repository), release=release)
            share = ModelShare(model=trial.model, batches=(self.load.batch,))
            with prepare_target([share], place, options, logs) as prepared:
                report = run_load(prepared.target, plan, folder=logs, monitor=prepared.monitor, progress=self.progress)
                return report.model_copy(update={"notes": (*prepared.notes, *report.notes)}), trial


def remove_abandoned(folder: Path) -> None:
    """Delete the temporary copies and requests that a killed search left in its folder."""
    for place in (folder, folder / LOGS_FOLDER):
        for path in abandoned_scratch(place):
            remove_scratch(path)


class _ClientSaturated(Exception):
    """Client saturation: the client, not the server, limited the load, so the figures are withheld."""


def is_hanging(error: PlansmithError) -> bool:
    """Whether a server did not respond to its first request, and is running or has exited since."""
    causes = (error, error.__cause__)
    return any(isinstance(cause, EnvironmentFault) and cause.transient and cause.step == "loadtest" for cause in causes)


def measurement_of(report: LoadReport, model: str, *, uses_gpu: bool = False) -> Measurement:
    """Return the measurement of a load test with one stage.

    Args:
        report: of the load test.
        model: whose batches count: of an ensemble, the model itself.
        uses_gpu: whether the memory is that of the GPUs, as Triton's metrics have it.
    """
    stage = report.stages[-1]
    if not stage.is_valid:
        raise _ClientSaturated(f"the client limited the load, and not the server: {stage.client.saturated}")
    stats, latency = stage.stats, stage.stats.latency
    statistics = next((entry for entry in stage.server_models if entry.model == model), statistics_of(stage, model))
    gpu_bytes = [gpu.memory_bytes for gpu in stage.server.gpus if gpu.memory_bytes is not None]
    return Measurement(
        seconds=stage.measured_seconds,
        requests=stats.requests,
        failed=stats.failed,
        throughput=stats.samples_per_second or 0.0,
        p50_ms=latency.p50_ms if latency else 0.0,
        p90_ms=latency.p90_ms if latency else 0.0,
        p95_ms=latency.p95_ms if latency else 0.0,
        p99_ms=latency.p99_ms if latency else 0.0,
        memory_bytes=(sum(gpu_bytes) if gpu_bytes else None) if uses_gpu else stage.server.memory_bytes,
        batch_size=statistics.batch_size if statistics is not None else None,
        queue_ms=statistics.queue_ms if statistics is not None else None,
        cores=stage.server.cores,
        notes=report.notes,
    )
