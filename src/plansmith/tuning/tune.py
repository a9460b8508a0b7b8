"""A search from a model to its stored result: compile the builds, measure, confirm."""

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
from plansmith.config.target.targets import load_target
from plansmith.errors import UsageError
from plansmith.loadtest.runner.run import describe_machine
from plansmith.steps.runner import Listener
from plansmith.system.digest import digest_of
from plansmith.system.files import make_folder, storage_errors, write_file
from plansmith.system.gpus import visible_gpus
from plansmith.system.urls import read_address
from plansmith.triton.client.connection import Connection
from plansmith.triton.server.installation import find_installation
from plansmith.tuning.apply import spec_changes
from plansmith.tuning.budget import Budget, Schedule, default_schedule, schedule_runs, schedule_within
from plansmith.tuning.builds import BuildCompiler, CompiledBuild, requested_builds, require_any, require_servable
from plansmith.tuning.configuration import Build, Configuration
from plansmith.tuning.objective import Goal
from plansmith.tuning.result import TuningPlan, TuningResult
from plansmith.tuning.sampler import ConfigurationSampler, SamplerFactory, gaussian_process
from plansmith.tuning.search import search
from plansmith.tuning.search_space import SearchSpace, SpaceOptions, make_space
from plansmith.tuning.trials.history import FOLDER_OPTION, TrialContext, TrialHistory
from plansmith.tuning.trials.measurement import Benchmark
from plansmith.tuning.trials.runner import TrialProgress, TrialRunner
from plansmith.tuning.trials.served_benchmark import ServedBenchmark, TuningLoad, remove_abandoned
from plansmith.tuning.trials.trial_server import make_server
from plansmith.tuning.tuned_model import TunedModel

if TYPE_CHECKING:
    from plansmith.loadtest.runner.load_runner import Progress

RESULT_FILE = "result.json"
_ANSWER_SECONDS = 10.0


class TuningObserver:
    """Told how a search goes; does nothing by itself.

    Attributes:
        listener: told of the steps of compiles.
    """

    listener: Listener | None = None

    def compiling(self, build: Build | None) -> None:
        """A build is compiled; None for the model as its spec has it."""

    def begin(self, plan: TuningPlan) -> None:
        """The trials begin."""

    def trial(self, progress: TrialProgress) -> None:
        """A trial begins or has ended."""

    def load(self, progress: Progress) -> None:
        """Progress of the load of a trial."""

    def activity(self, text: str) -> None:
        """What else is done for a trial."""


@dataclass(frozen=True)
class TuningRequest:
    """A search as it was requested.

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
        """The trials: no more than the space has a use for."""
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
    """A search whose builds are compiled.

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
        """Search, and store the result.

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
        found = search(plan.space, plan.current, plan.goal, plan.schedule, runner, sampler=sampler)
        changes = spec_changes(request.model.spec, found.best.configuration, plan.current) if found.is_better else {}
        result = TuningResult(
            plan=plan,
            plansmith=__version__,
            ended_at=datetime.now(UTC).isoformat(timespec="seconds"),
            search=found,
            changes=changes,
        )
        store_result(result, request.model.folder)
        return result

    def benchmark(self) -> ServedBenchmark:
        """Measures configurations on the Triton of the model."""
        request = self.request
        activity = self.observer.activity
        server = make_server(request.model, request.load.protocol, activity)
        return ServedBenchmark(
            self.builds, self.inputs, request.load, request.model.folder, server, self.observer.load, activity
        )

    def context(self) -> TrialContext:
        """What has to be the same for a trial to be used again."""
        inputs = sorted(
            (file.path, file.sha256) for file in self.inputs.manifest.files if file.path.startswith("reference/")
        )
        return TrialContext(
            builds={label: build.digest for label, build in self.builds.items()},
            load=digest_of([self.request.load.model_dump(mode="json"), inputs]),
            host=self.plan.host,
        )


def store_result(result: TuningResult, folder: Path) -> None:
    """Write a result beside the history.

    Raises:
        RepositoryError: the disk is full or cannot be written.
    """
    with storage_errors(folder, other=FOLDER_OPTION):
        make_folder(folder)
        write_file(folder / RESULT_FILE, result.model_dump_json(indent=1) + "\n", replace=True)


@contextmanager
def prepare_search(request: TuningRequest, observer: TuningObserver | None = None) -> Iterator[PreparedSearch]:
    """Compile what is to be tried; other searches of the model have to wait until the block ends.

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
    """Check the requests and the largest batches against what spec and options allow, before anything is compiled.

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
    """Machine and server of a model's trials in words: those of another host are not used again.

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
