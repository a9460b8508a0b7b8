"""Tuning run, from a model to its stored result: compile the builds, measure, confirm."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from plansmith import __version__
from plansmith.config.targets import load_target
from plansmith.errors import UsageError
from plansmith.loadtest.runner.load_runner import describe_machine
from plansmith.steps.runner import Listener
from plansmith.system.digest import digest_of
from plansmith.system.files import make_folder, storage_errors, write_file
from plansmith.system.gpus import visible_gpus
from plansmith.system.urls import read_address
from plansmith.triton.client.connection import Connection
from plansmith.triton.server.installation import find_installation
from plansmith.tuning.budget import Budget, Schedule, default_schedule, schedule_runs, schedule_within
from plansmith.tuning.builds import (
    BuildCompiler,
    CompiledBuild,
    TunedModel,
    requested_builds,
    require_any,
    require_servable,
    spec_changes,
)
from plansmith.tuning.configuration import Build, Configuration, SearchSpace, SpaceOptions, make_space
from plansmith.tuning.objective import Goal
from plansmith.tuning.result import TuningPlan, TuningResult
from plansmith.tuning.sampler import ConfigurationSampler, SamplerFactory, gaussian_process
from plansmith.tuning.search import search
from plansmith.tuning.trials.history import FOLDER_OPTION, Benchmark, TrialContext, TrialHistory
from plansmith.tuning.trials.runner import ServedBenchmark, TrialProgress, TrialRunner, TuningLoad, remove_abandoned
from plansmith.tuning.trials.trial_server import make_server

if TYPE_CHECKING:
    from plansmith.loadtest.runner.load_runner import Progress

RESULT_FILE = "result.json"
_ANSWER_SECONDS = 10.0


class TuningObserver:
    """Tuning observer; this base class ignores all events.

    Attributes:
        listener: told of the steps of compiles.
    """

    listener: Listener | None = None

    def compiling(self, build: Build | None) -> None:
        """Called when a build is compiled; None for the model as its spec defines it."""

    def begin(self, plan: TuningPlan) -> None:
        """Called when the trials start."""

    def trial(self, progress: TrialProgress) -> None:
        """Called when a trial starts or ends."""

    def load(self, progress: Progress) -> None:
        """Called with the progress of a trial's load test."""

    def activity(self, text: str) -> None:
        """Called for other activities of a trial."""


@dataclass(frozen=True)
class TuningRequest:
    """A search as requested.

    Attributes:
        model: to tune.
        goal: objective and constraints.
        load: of the trials.
        options: restrictions of the space.
        engines: to try; all when empty.
        precisions: to try; by engine when empty.
        budget: runs or time; by the size of the space when None.
        seconds: of load of the longest trials.
        seed: of the proposals.
        retry_failed: run again what failed in earlier searches.
    """

    model: TunedModel
    goal: Goal = field(default_factory=Goal)
    load: TuningLoad = field(default_factory=TuningLoad)
    options: SpaceOptions = field(default_factory=SpaceOptions)
    engines: tuple[str, ...] = ()
    precisions: tuple[str, ...] = ()
    budget: Budget | None = None
    seconds: float = 12.0
    seed: int = 0
    retry_failed: bool = False

    def schedule(self, space: SearchSpace, current: Configuration) -> Schedule:
        """Return the schedule of trials, limited to what the space can use."""
        configurations = len({*space.points, current})
        if self.budget is None:
            schedule = default_schedule(space.size, seconds=self.seconds)
        elif self.budget.runs is not None:
            schedule = schedule_runs(self.budget.runs, seconds=self.seconds)
        else:
            limit = self.budget.seconds or 0.0
            schedule = schedule_within(limit, max_runs=4 * configurations, seconds=self.seconds)
        return schedule.limited_to(configurations)


@dataclass
class PreparedSearch:
    """A search with its compiled builds.

    Attributes:
        request: what was requested.
        plan: what is looked for.
        builds: by label of the build.
        inputs: the build whose release keeps the inputs of the requests.
        history: of trials.
        observer: told how it goes.
    """

    request: TuningRequest
    plan: TuningPlan
    builds: dict[str, CompiledBuild]
    inputs: CompiledBuild
    history: TrialHistory
    observer: TuningObserver

    def run(self, benchmark: Benchmark | None = None, make_sampler: SamplerFactory = gaussian_process) -> TuningResult:
        """Run the search, and store the result.

        Args:
            benchmark: measures configurations; on the Triton of the model when None.
            make_sampler: of Optuna.

        Raises:
            PlansmithError: the folder cannot be written, or this machine cannot measure.
        """
        request, plan = self.request, self.plan
        runner = TrialRunner(
            benchmark or self.benchmark(),
            self.history,
            self.context(),
            secrets.token_hex(4),
            plan.schedule.runs,
            self.observer.trial,
            request.budget.seconds if request.budget is not None else None,
            request.retry_failed,
        )
        self.observer.begin(plan)
        sampler = ConfigurationSampler(plan.space, seed=request.seed, make_sampler=make_sampler)
        outcome = search(plan.space, plan.current, plan.goal, plan.schedule, runner, sampler=sampler)
        changes = (
            spec_changes(request.model.spec, outcome.best.configuration, plan.current) if outcome.is_better else {}
        )
        result = TuningResult(
            plan=plan,
            plansmith=__version__,
            ended_at=datetime.now(UTC).isoformat(timespec="seconds"),
            search=outcome,
            changes=changes,
        )
        store_result(result, request.model.folder)
        return result

    def benchmark(self) -> ServedBenchmark:
        """Return the benchmark on the model's Triton."""
        request = self.request
        activity = self.observer.activity
        server = make_server(request.model, request.load.protocol, activity)
        return ServedBenchmark(
            self.builds, self.inputs, request.load, request.model.folder, server, self.observer.load, activity
        )

    def context(self) -> TrialContext:
        """Return the trial context: what must be equal for a cached trial to be reused."""
        inputs = sorted(
            (file.path, file.sha256) for file in self.inputs.manifest.files if file.path.startswith("reference/")
        )
        return TrialContext(
            builds={label: build.digest for label, build in self.builds.items()},
            load=digest_of([self.request.load.model_dump(mode="json"), inputs]),
            host=self.plan.host,
        )


def store_result(result: TuningResult, folder: Path) -> None:
    """Write a result next to the history.

    Raises:
        RepositoryError: the disk is full or cannot be written.
    """
    with storage_errors(folder, alternative=FOLDER_OPTION):
        make_folder(folder)
        write_file(folder / RESULT_FILE, result.model_dump_json(indent=1) + "\n", replace=True)


@contextmanager
def prepare_search(request: TuningRequest, observer: TuningObserver | None = None) -> Iterator[PreparedSearch]:
    """Compile the builds to try; locks out other searches of the model for the block.

    Raises:
        PlansmithError: the model cannot be compiled as its spec has it, this machine cannot serve it, it refuses the
            requests, or another search of it is running.
    """
    require_servable(request.model, request.model.spec.engine)
    require_batches(request)
    history = TrialHistory(request.model.folder)
    with history.exclusive():
        remove_abandoned(request.model.folder)
        yield _prepare(request, history, observer or TuningObserver())


def require_batches(request: TuningRequest) -> None:
    """Check the requested and largest batches against the spec and options, before anything is compiled.

    Raises:
        UsageError: they are larger.
    """
    batch, sizes = request.load.batch, request.options.max_batch_sizes
    if sizes and max(sizes) < batch:
        raise UsageError(
            f"--max-batch-sizes {','.join(map(str, sizes))}: none takes requests of {batch} samples",
            remedy=f"add {batch} or more, or send fewer samples (--batch)",
        )
    largest = max((shape.max[0] for shape in request.model.spec.shapes.values() if len(shape.max) > 1), default=None)
    if largest is None:
        return
    request.options.require_sizes(largest)
    if batch > largest:
        raise UsageError(
            f"{request.model.name} takes batches of up to {largest}, and --batch is {batch}",
            remedy=f"give --batch {largest} or less, or larger shapes in the spec",
        )


def _prepare(request: TuningRequest, history: TrialHistory, observer: TuningObserver) -> PreparedSearch:
    target = load_target(request.model.spec.target)
    compiler = BuildCompiler(request.model, observer.listener, observer.compiling)
    inputs, current = compiler.compile_current()
    request.options.require_sizes(inputs.largest_batch)
    builds = requested_builds(target, request.engines, request.precisions)
    compiler.compile(builds)
    if request.engines or request.precisions:
        require_any(builds, compiler.left_out)
    space = make_space(
        {compiled.build: compiled.largest_batch for compiled in compiler.compiled.values()},
        current,
        request.options,
        cpu_cores=len(os.sched_getaffinity(0)) if target.device == "cpu" else None,
        min_batch_size=request.load.batch,
    )
    obstacle = request.load.obstacle(current)
    plan = TuningPlan(
        model=request.model.name,
        goal=request.goal,
        space=space,
        schedule=request.schedule(space, current),
        current=current,
        load=request.load.label,
        host=describe_host(request.model),
        seed=request.seed,
        left_out=compiler.left_out,
        obstacle=f"the current configuration cannot answer: {obstacle}" if obstacle else "",
    )
    return PreparedSearch(request, plan, compiler.compiled, inputs, history, observer)


def describe_host(model: TunedModel) -> str:
    """Describe the machine and server of a model's trials: those of another host are not reused.

    Raises:
        EnvironmentFault: there is no Triton, or none answers.
    """
    if model.url:
        address = read_address(model.url)
        with Connection(address, timeout_seconds=_ANSWER_SECONDS, headers={}) as connection:
            return f"Triton {connection.server_version()} at {address}; the load from {describe_machine()}"
    tritonserver = model.spec.tritonserver
    installation = find_installation(Path(tritonserver) if tritonserver else None)
    backend = "" if installation.real_onnxruntime else ", stand-in for the ONNX Runtime backend"
    gpus = [gpu.name for gpu in visible_gpus()]
    return ", ".join([describe_machine(), *gpus, f"Triton {installation.version}{backend}"])
