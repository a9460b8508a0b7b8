"""Measures a configuration on a Triton that is started for it and put under load."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from plansmith.config.target.targets import load_target
from plansmith.errors import (
    EngineError,
    EnvironmentFault,
    PlansmithError,
    ServedCheckError,
    UsageError,
    in_one_line,
)
from plansmith.loadtest.payloads.source import RequestOptions
from plansmith.loadtest.plan.plan_file import ModelShare
from plansmith.loadtest.plan.stages import LoadPlan, Stage
from plansmith.loadtest.report.findings import statistics_of
from plansmith.loadtest.results import LoadReport
from plansmith.loadtest.runner.run import run_load
from plansmith.loadtest.server.connect import ServerPlace, prepare_target
from plansmith.records.model import Record
from plansmith.records.pipeline import MODEL_PART
from plansmith.records.release import CONFIG_FILE, MODEL_FOLDER, Member, Package
from plansmith.system.files import link_or_copy, make_folder, storage_errors
from plansmith.system.temporary import abandoned_scratch, remove_scratch, scratch_folder
from plansmith.system.urls import Address, Protocol
from plansmith.triton.client import Encoding
from plansmith.triton.config.model_config import parse_config, text_of, with_cpu_instances
from plansmith.triton.repository.repository import ModelRepository
from plansmith.triton.server.runtime import ServingRuntime, find_serving_runtime
from plansmith.triton.server.server import TritonServer
from plansmith.tuning.builds import CompiledBuild
from plansmith.tuning.configuration import Configuration
from plansmith.tuning.trials.history import FOLDER_OPTION
from plansmith.tuning.trials.measurement import Measurement, TrialFailed

if TYPE_CHECKING:
    from tritonclient.grpc import model_config_pb2 as pb

    from plansmith.loadtest.runner.load_runner import Progress

LOGS_FOLDER = "logs"
_T = TypeVar("_T")
_WARM_UP_SECONDS = 2.0
_TIMEOUT_SECONDS = 30.0
_LOAD_SECONDS = 300.0
"""How long a model may take to load: the machine may be busy."""


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
        """The load test of a trial."""
        warm_up = min(_WARM_UP_SECONDS, max(seconds, 0.5))
        return LoadPlan(
            stages=(Stage(users=self.users, rate=self.rate, seconds=seconds),),
            warm_up=Stage(users=self.users, rate=self.rate, seconds=warm_up),
            timeout_seconds=_TIMEOUT_SECONDS,
        )

    def obstacle(self, configuration: Configuration) -> str:
        """Why a configuration refuses the requests; empty where it does not."""
        if not configuration.max_batch_size or self.batch <= configuration.max_batch_size:
            return ""
        return f"it takes batches of up to {configuration.max_batch_size}, and a request has {self.batch} samples"

    @property
    def label(self) -> str:
        """In words: "8 users, 1 sample per request, http binary"."""
        stage = self.plan(1.0).stages[0]
        samples = f"{self.batch} sample{'' if self.batch == 1 else 's'} per request"
        return f"{stage.label}, {samples}, {self.protocol} {self.encoding}"


@dataclass(frozen=True)
class ServedBenchmark:
    """A `Benchmark` on a Triton of this machine, which ends with the trial.

    Args:
        builds: by label of the build.
        inputs: the build whose release keeps the inputs of the requests, the same for all.
        load: of the trials.
        folder: takes logs and temporary copies.
        tritonserver: program or folder of the server; empty for that of this machine.
        progress: called with the progress of the load, about once a second.
        announce: called with what else is done.
    """

    builds: Mapping[str, CompiledBuild]
    inputs: CompiledBuild
    load: TuningLoad
    folder: Path
    tritonserver: str = ""
    progress: Callable[[Progress], None] = lambda _: None
    announce: Callable[[str], None] = lambda _: None

    def __call__(self, configuration: Configuration, seconds: float, /) -> Measurement:
        """Measure a configuration; a fault of the machine is tried once more.

        Raises:
            TrialFailed: Triton does not load it, dies or hangs, or the client limited the load.
            PlansmithError: the machine is at fault a second time.
            KeyboardInterrupt: the load was interrupted.
        """
        manifest = self.builds[configuration.build.label].manifest
        model, uses_gpu = _measured_model(manifest.package), load_target(manifest.target).device == "gpu"
        plan = self.load.plan(seconds)

        def measure() -> Measurement:
            return measurement_of(self._finished_report(configuration, plan), model, uses_gpu=uses_gpu)

        return self._twice(configuration, measure)

    def run_plan(self, configuration: Configuration, plan: LoadPlan) -> LoadReport:
        """Put a configuration under the load of a plan; a fault of the machine is tried once more.

        Returns:
            The report; one that ended early tells why.

        Raises:
            TrialFailed, PlansmithError, KeyboardInterrupt: as for a call.
        """
        return self._twice(configuration, lambda: self._report(configuration, plan))

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

    def _report(self, configuration: Configuration, plan: LoadPlan) -> LoadReport:
        """One load test.

        Raises:
            TrialFailed: the configuration is the reason why nothing was measured.
            PlansmithError: the machine is.
        """
        build = self.builds[configuration.build.label]
        try:
            with storage_errors(self.folder, other=FOLDER_OPTION):
                make_folder(self.folder / LOGS_FOLDER)
                report = self._run_load(configuration, build, plan)
        except (ServedCheckError, EngineError, UsageError) as error:
            raise TrialFailed(in_one_line(error.message)) from error
        if report.ending == "interrupted":
            raise KeyboardInterrupt
        return report

    def _finished_report(self, configuration: Configuration, plan: LoadPlan) -> LoadReport:
        """One load test that came to its end; raises as `_report`."""
        report = self._report(configuration, plan)
        if report.ending == "server-lost":
            raise TrialFailed(in_one_line(report.reason))
        if report.ending != "done":
            raise EnvironmentFault(
                f"the load test of a trial ended early: {in_one_line(report.reason) or report.ending}",
                remedy="run it again; finished trials are kept",
                log=self.folder / LOGS_FOLDER / "client.log",
            )
        return report

    def _run_load(self, configuration: Configuration, build: CompiledBuild, plan: LoadPlan) -> LoadReport:
        logs = self.folder / LOGS_FOLDER
        options = RequestOptions(
            protocol=self.load.protocol, encoding=self.load.encoding, timeout_seconds=_TIMEOUT_SECONDS
        )
        model = build.manifest.package.model
        with self._serve(configuration, build) as server:
            url = server.http_url if self.load.protocol == "http" else server.grpc_url
            place = ServerPlace(
                Address(url, secure=False, protocol=self.load.protocol),
                metrics=server.metrics_url,
                group=server.group,
                repository=ModelRepository(self.inputs.repository),
            )
            share = ModelShare(model=model, batches=(self.load.batch,))
            with prepare_target([share], place, options, logs) as prepared:
                report = run_load(prepared.target, plan, folder=logs, monitor=prepared.monitor, progress=self.progress)
                return report.model_copy(update={"notes": (*prepared.notes, *report.notes)})

    @contextmanager
    def _serve(self, configuration: Configuration, build: CompiledBuild) -> Iterator[TritonServer]:
        """A Triton with the release of a build in a configuration; it ends with the block."""
        manifest = build.manifest
        package, logs = manifest.package, self.folder / LOGS_FOLDER
        runtime = find_serving_runtime(
            self.tritonserver,
            load_target(manifest.target),
            manifest.engine.kind,
            dali=package.has_dali,
            parts=bool(package.members),
        )
        self.announce("starting Triton")
        with scratch_folder("served", self.folder) as scratch:
            stage_release(build, configuration, Path(scratch), runtime)
            descriptor, log = tempfile.mkstemp(prefix=f"{package.model}-", suffix=".triton.log", dir=logs)
            os.close(descriptor)
            parts: list[Package | Member] = [package, *package.members]
            environments = [part.environment for part in parts if part.environment is not None]
            server = TritonServer(
                Path(scratch),
                runtime.installation,
                Path(log),
                site=runtime.site,
                dali_site=runtime.dali_site,
                models=[package.model],
                arguments=package.server_arguments,
                library_folders=runtime.library_folders,
                deadline_seconds=max(runtime.load_seconds, _LOAD_SECONDS),
                pythons=[environment.python for environment in environments],
            )
            with server:
                yield server
            Path(log).unlink()  # of a trial that failed, the log stays


def remove_abandoned(folder: Path) -> None:
    """Remove the temporary copies and requests that a killed search left in its folder."""
    for place in (folder, folder / LOGS_FOLDER):
        for path in abandoned_scratch(place):
            remove_scratch(path)


class _ClientSaturated(Exception):
    """The client, and not the server, limited the load: the figures are withheld."""


def is_hanging(error: PlansmithError) -> bool:
    """Whether a server did not answer its first request, and is running or has ended since."""
    causes = (error, error.__cause__)
    return any(isinstance(one, EnvironmentFault) and one.transient and one.step == "loadtest" for one in causes)


def measurement_of(report: LoadReport, model: str, *, uses_gpu: bool = False) -> Measurement:
    """The measurement of a load test with one stage.

    Args:
        report: of the load test.
        model: whose batches count: of an ensemble, the model itself.
        uses_gpu: whether the memory is that of the GPUs, as Triton's metrics have it.
    """
    stage = report.stages[-1]
    if not stage.is_valid:
        raise _ClientSaturated(f"the client limited the load, and not the server: {stage.client.saturated}")
    stats, latency = stage.stats, stage.stats.latency
    statistics = next((one for one in stage.server_models if one.model == model), statistics_of(stage, model))
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


def stage_release(build: CompiledBuild, configuration: Configuration, root: Path, runtime: ServingRuntime) -> None:
    """Lay out a release in a repository of its own, as links, in another configuration.

    What asks the model in an ensemble takes no larger batches than the model does.

    Raises:
        UsageError: the model does not take the batch size.
    """
    package = build.manifest.package
    own = _read_config(build.release, runtime)
    members = {member.model: _read_config(build.release / member.folder, runtime) for member in package.members}
    model = next((members[one.model] for one in package.members if one.part == MODEL_PART), own)
    largest = model.max_batch_size
    if configuration.max_batch_size > largest or (largest and not configuration.max_batch_size):
        raise UsageError(
            f"{build.manifest.name} was compiled for batches of up to {largest}, and cannot be served with"
            f" {configuration.max_batch_size}",
            remedy="compile it with larger shapes",
        )
    configuration.apply_to(model)
    drop_larger_batches(model)
    if model is not own and 0 < model.max_batch_size < own.max_batch_size:
        own.max_batch_size = model.max_batch_size
        drop_larger_batches(own)
    own.version_policy.latest.num_versions = 1
    _place(root, own, build.manifest.version, package, build.release)
    for member in package.members:
        _place(root, members[member.model], member.version, member, build.release / member.folder)


def drop_larger_batches(config: pb.ModelConfig) -> None:
    """Drop preferred batches and warm-up samples above the largest batch, which Triton refuses.

    Rule: ValidateModelConfig in core/src/model_config_utils.cc of Triton.
    """
    largest = config.max_batch_size
    if config.HasField("dynamic_batching"):
        preferred = [size for size in config.dynamic_batching.preferred_batch_size if size <= largest]
        config.dynamic_batching.preferred_batch_size[:] = preferred
    samples = [sample for sample in config.model_warmup if sample.batch_size <= max(largest, 1)]
    del config.model_warmup[:]
    config.model_warmup.extend(samples)


def _read_config(folder: Path, runtime: ServingRuntime) -> pb.ModelConfig:
    text = (folder / CONFIG_FILE).read_text(encoding="utf-8")
    config: pb.ModelConfig = parse_config(with_cpu_instances(text) if runtime.device == "cpu" else text)
    return config


def _place(root: Path, config: pb.ModelConfig, version: int, files: Package | Member, source: Path) -> None:
    """Lay out one model; its configuration is written, and its files are linked."""
    folder = root / files.model
    folder.mkdir()
    (folder / CONFIG_FILE).write_text(text_of(config), encoding="utf-8")
    for file in files.support_files:
        link_or_copy(source / file, folder / file)
    for file in files.model_files:
        link_or_copy(source / MODEL_FOLDER / file, folder / str(version) / file)


def _measured_model(package: Package) -> str:
    return next((member.model for member in package.members if member.part == MODEL_PART), package.model)
