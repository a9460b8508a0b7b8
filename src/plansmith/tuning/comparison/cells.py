"""Comparison cells: models x engines x dynamic batching x instances, measured in rounds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Annotated, Protocol

from pydantic import Field

from plansmith.config.source_reference import parse_reference
from plansmith.config.targets import load_target
from plansmith.errors import PlansmithError, in_one_line
from plansmith.loadtest.results import LoadReport, StageResult
from plansmith.loadtest.stages import LoadPlan
from plansmith.records.model import EngineKind, Precision, Record
from plansmith.system.digest import digest_of
from plansmith.tuning.builds import BuildCompiler, CompiledBuild, TunedModel
from plansmith.tuning.configuration import Build, Configuration
from plansmith.tuning.trials.history import History, KeyedRecord, TrialFailed

CELLS_FILE = "cells.jsonl"
DEFAULT_DELAY_MICROSECONDS = 500
"""How long requests wait for a batch in a cell with dynamic batching, where the model's spec does not say."""

ENGINE_NAMES = {
    EngineKind.PYTHON: "PyTorch",
    EngineKind.ONNXRUNTIME: "ONNX Runtime",
    EngineKind.TENSORRT: "TensorRT",
}
_VERSION = 1
"""Of the meaning of a measured cell: raised when earlier ones must not be used again."""


class Grid(Record):
    """Comparison grid: the cells of every model; the first cell is the baseline.

    Attributes:
        engines: that run the models.
        batching: with and without dynamic batching.
        instances: of each model: on a CPU in all, otherwise on each GPU.
    """

    engines: Annotated[tuple[EngineKind, ...], Field(min_length=1)]
    batching: Annotated[tuple[bool, ...], Field(min_length=1)] = (False, True)
    instances: Annotated[tuple[Annotated[int, Field(ge=1)], ...], Field(min_length=1)] = (1, 2)


class Cell(Record):
    """Comparison cell: one way to serve one model.

    Attributes:
        model: its name.
        engine: that runs it.
        batching: whether it has a dynamic batcher.
        instances: as in `Grid`.
    """

    model: str
    engine: EngineKind
    batching: bool
    instances: int

    @property
    def label(self) -> str:
        """The cell without its model."""
        batching = "dynamic batching" if self.batching else "no batching"
        instances = f"{self.instances} instance{'' if self.instances == 1 else 's'}"
        return f"{ENGINE_NAMES[self.engine]}, {batching}, {instances}"


class Level(Record):
    """Load level: measurements of a cell at one number of users.

    Attributes:
        users: of the closed loop.
        requests: answered or failed.
        failed: of these.
        samples_per_second: in the answers; None where the client was saturated.
        p50_ms: latency of the answers; None where there is none, or the client was saturated. Likewise the others.
        batch_size: mean achieved batch; None where unknown.
    """

    users: int
    requests: int
    failed: int
    samples_per_second: float | None = None
    p50_ms: float | None = None
    p95_ms: float | None = None
    p99_ms: float | None = None
    batch_size: float | None = None


class CellRun(KeyedRecord):
    """Measurements of a cell in one round.

    Attributes:
        round_number: from 1.
        session: of the process that measured it: rounds of one session were measured in turn.
        levels: by users, ascending.
        memory_bytes: largest memory of the server's processes; None where unknown.
        gpu_memory_bytes: largest memory in use of all GPUs; None without GPUs.
        ended_by: why it ended before the last level; empty where it did not.
        notes: what a reader has to know.
    """

    round_number: int
    session: str
    levels: tuple[Level, ...]
    memory_bytes: int | None = None
    gpu_memory_bytes: int | None = None
    ended_by: str = ""
    notes: tuple[str, ...] = ()


class PlanRunner(Protocol):
    """Plan runner: serves configurations and load-tests them, as `ServedBenchmark` does."""

    def run_plan(self, configuration: Configuration, plan: LoadPlan) -> LoadReport:
        """Load-test a configuration; raises TrialFailed if it cannot be served."""
        ...


class ComparisonObserver:
    """Comparison observer; this base class ignores all events."""

    def measuring(self, cell: Cell, round_number: int) -> None:
        """Called when the measurement of a cell starts."""

    def measured(self, cell: Cell, run: CellRun | None, problem: str, *, reused: bool) -> None:
        """Called when a cell was measured or failed; `reused`: the result is of an earlier run."""


def default_engines(models: Sequence[TunedModel]) -> tuple[EngineKind, ...]:
    """Return the default engines: PyTorch, and the target's best: TensorRT on GPUs, ONNX Runtime on a CPU.

    Without PyTorch where none of the models is one that the Python backend serves.
    """
    is_gpu = load_target(models[0].spec.target).device == "gpu"
    compiled = EngineKind.TENSORRT if is_gpu else EngineKind.ONNXRUNTIME
    return (EngineKind.PYTHON, compiled) if any(map(is_pytorch_model, models)) else (compiled,)


def is_pytorch_model(model: TunedModel) -> bool:
    """Whether the Python backend can serve a model: one of transformers or timm."""
    return parse_reference(model.spec.source, relative_to=model.base).scheme not in {"onnx", "torch"}


def cells_of(model: str, grid: Grid) -> list[Cell]:
    """Return the cells of a model; the first is the baseline."""
    return [
        Cell(model=model, engine=engine, batching=batching, instances=instances)
        for engine, batching, instances in product(grid.engines, grid.batching, grid.instances)
    ]


@dataclass
class ComparedModel:
    """A model of a comparison, with its compiled builds.

    Attributes:
        name: of the model.
        configurations: of its cells that can be served.
        builds: by label of the build.
        inputs: the build whose release keeps the inputs of the requests.
        problems: of cells that cannot be compiled, the reason.
        precisions: of the engines that were compiled.
    """

    name: str
    configurations: dict[Cell, Configuration]
    builds: dict[str, CompiledBuild]
    inputs: CompiledBuild
    problems: dict[Cell, str] = field(default_factory=dict)
    precisions: dict[EngineKind, Precision] = field(default_factory=dict)


def compile_cells(model: TunedModel, grid: Grid, compiler: BuildCompiler) -> ComparedModel:
    """Compile the builds of a model's cells; if an engine fails, its cells have the reason.

    Args:
        model: the model.
        grid: the cells.
        compiler: of its builds.

    Raises:
        PlansmithError: the model cannot be compiled as its spec has it.
    """
    inputs, current = compiler.compile_current()
    builds = {engine: _build(engine, inputs, current) for engine in grid.engines}
    compiler.compile(list(builds.values()))
    compared = ComparedModel(model.name, {}, compiler.compiled, inputs)
    for cell in cells_of(model.name, grid):
        build = builds[cell.engine]
        compiled = compiler.compiled.get(build.label)
        if compiled is None:
            compared.problems[cell] = compiler.left_out[build.label]
        elif cell.batching and compiled.largest_batch < 1:
            compared.problems[cell] = "it takes no batches: compare it with --batching off"
        else:
            compared.precisions[cell.engine] = build.precision
            compared.configurations[cell] = _configuration(cell, compiled, current)
    return compared


def _build(engine: EngineKind, inputs: CompiledBuild, current: Configuration) -> Build:
    """The build of an engine: in the precision of the spec, or FP32 for PyTorch, which has no INT8."""
    if engine is current.build.engine:
        return inputs.build
    precision = inputs.build.precision
    is_baseline = engine is EngineKind.PYTHON and precision is Precision.INT8
    return Build(engine=engine, precision=Precision.FP32 if is_baseline else precision)


def _configuration(cell: Cell, compiled: CompiledBuild, current: Configuration) -> Configuration:
    delay = current.queue_delay_microseconds
    return Configuration(
        build=compiled.build,
        max_batch_size=min(current.max_batch_size or compiled.largest_batch, compiled.largest_batch),
        queue_delay_microseconds=(DEFAULT_DELAY_MICROSECONDS if delay is None else delay) if cell.batching else None,
        instances=cell.instances,
        threads=current.threads if compiled.build.engine is EngineKind.ONNXRUNTIME else 0,
    )


@dataclass
class CellRunner:
    """Cell runner: measures the cells of all models in rounds, so that other load on the machine affects all alike.

    Args:
        plan: of the load.
        host: machine and server in words.
        session: of this process.
        observer: told how it goes.
        force: whether to measure again what was measured before.

    Attributes:
        runs: of each cell.
        problems: of cells that failed, the reason.
    """

    plan: LoadPlan
    host: str
    session: str
    observer: ComparisonObserver = field(default_factory=ComparisonObserver)
    force: bool = False
    runs: dict[Cell, list[CellRun]] = field(default_factory=dict)
    problems: dict[Cell, str] = field(default_factory=dict)

    def run(
        self,
        models: Sequence[ComparedModel],
        runners: Mapping[str, PlanRunner],
        folders: Mapping[str, Path],
        rounds: int,
    ) -> None:
        """Measure each cell once per round; every second round runs in reverse order.

        A cell that fails is left out of later rounds, and stops no other; the next run tries it again. What is finished
        is kept.

        Args:
            models: whose cells are measured.
            runners: by model.
            folders: by model, which take what is finished.
            rounds: how often.

        Raises:
            PlansmithError: the machine is at fault, twice.
        """
        histories = {name: History(folder, CELLS_FILE, CellRun) for name, folder in folders.items()}
        order = [(model, cell) for model in models for cell in model.configurations]
        for model in models:
            self.problems |= model.problems
            for cell, problem in model.problems.items():
                self.observer.measured(cell, None, problem, reused=False)
        for number in range(1, rounds + 1):
            for model, cell in order if number % 2 else reversed(order):
                if cell not in self.problems:
                    self._run_cell(model, cell, number, runners[model.name], histories[model.name])

    def _run_cell(
        self, model: ComparedModel, cell: Cell, number: int, runner: PlanRunner, history: History[CellRun]
    ) -> None:
        configuration = model.configurations[cell]
        key = self._key(model, configuration, number)
        run = None if self.force else history.find(key)
        if run is not None:
            self.runs.setdefault(cell, []).append(run)
            self.observer.measured(cell, run, "", reused=True)
            return
        self.observer.measuring(cell, number)
        problem = ""
        try:
            report = runner.run_plan(configuration, self.plan)
        except TrialFailed as failure:
            problem = str(failure)
        except PlansmithError as error:
            problem = f"{error.step + ': ' if error.step else ''}{in_one_line(error.message)}"
        else:
            run = _cell_run(report, key, number, self.session)
            self.runs.setdefault(cell, []).append(run)
            if report.ending in {"server-lost", "client-lost"}:
                problem = in_one_line(report.reason) or report.ending
        if problem:
            self.problems[cell] = problem
        elif run is not None:
            history.add(run)
        self.observer.measured(cell, run, problem, reused=False)

    def _key(self, model: ComparedModel, configuration: Configuration, number: int) -> str:
        """The cache key of a cell: model, configuration, load, host and round."""
        inputs = sorted(
            (file.path, file.sha256) for file in model.inputs.manifest.files if file.path.startswith("reference/")
        )
        identity = {
            "version": _VERSION,
            "build": model.builds[configuration.build.label].digest,
            "configuration": configuration.model_dump(mode="json"),
            "plan": self.plan.model_dump(mode="json"),
            "inputs": inputs,
            "host": self.host,
            "round": number,
        }
        return digest_of(identity)


def _cell_run(report: LoadReport, key: str, number: int, session: str) -> CellRun:
    """The record of a cell's load test."""
    stages = [stage for stage in report.stages if stage.stats.requests]
    gpus = [[gpu.memory_bytes or 0 for gpu in stage.server.gpus] for stage in stages]
    return CellRun(
        key=key,
        round_number=number,
        session=session,
        levels=tuple(_level(stage) for stage in stages),
        memory_bytes=_largest(stage.server.memory_bytes for stage in stages),
        gpu_memory_bytes=_largest(sum(memory) for memory in gpus if memory),
        ended_by="" if report.ending == "done" else in_one_line(report.reason),
        notes=report.notes,
    )


def _level(stage: StageResult) -> Level:
    latency = stage.stats.latency
    busiest = max(stage.server_models, key=lambda model: model.inferences, default=None)
    return Level(
        users=stage.stage.users or 0,
        requests=stage.stats.requests,
        failed=stage.stats.failed,
        samples_per_second=stage.stats.samples_per_second,
        p50_ms=latency.p50_ms if latency else None,
        p95_ms=latency.p95_ms if latency else None,
        p99_ms=latency.p99_ms if latency else None,
        batch_size=busiest.batch_size if busiest else None,
    )


def _largest(values: Iterable[int | None]) -> int | None:
    return max((value for value in values if value is not None), default=None)


def levels_of(runs: Sequence[CellRun], users: int) -> Iterator[Level]:
    """Yield the levels of some runs with so many users."""
    return (level for run in runs for level in run.levels if level.users == users)
