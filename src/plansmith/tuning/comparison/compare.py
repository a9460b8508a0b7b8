"""Comparison run, from models to result rows: compile, measure in rounds, compute."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from plansmith import __version__
from plansmith.errors import PlansmithError, ServedCheckError, in_one_line
from plansmith.loadtest.stages import LoadPlan
from plansmith.records.model import EngineKind
from plansmith.steps.runner import Listener
from plansmith.tuning.builds import BuildCompiler, TunedModel, require_servable
from plansmith.tuning.comparison.cells import (
    Cell,
    CellRunner,
    ComparedModel,
    ComparisonObserver,
    Grid,
    PlanRunner,
    cells_of,
    compile_cells,
    is_pytorch_model,
)
from plansmith.tuning.comparison.figures import Comparison, Pricing, Row, comparison_notes, make_rows, published_figures
from plansmith.tuning.configuration import Build
from plansmith.tuning.trials.history import TrialHistory
from plansmith.tuning.trials.runner import ServedBenchmark, TuningLoad
from plansmith.tuning.trials.trial_server import make_server
from plansmith.tuning.tune import describe_host

if TYPE_CHECKING:
    from plansmith.loadtest.runner.load_runner import Progress


class CompareObserver(ComparisonObserver):
    """Observer of a comparison's compiles and load tests too; this base class ignores all events.

    Attributes:
        listener: told of the steps of compiles.
    """

    listener: Listener | None = None

    def compiling(self, model: str, build: Build | None) -> None:
        """Called when a build of a model is compiled; None for the model as its spec defines it."""

    def load(self, progress: Progress) -> None:
        """Called with the progress of the load test."""

    def activity(self, text: str) -> None:
        """Called for other activities of a cell."""


@dataclass(frozen=True)
class ComparisonRequest:
    """A comparison as requested.

    Attributes:
        models: to compare, of one target.
        grid: the cells of each.
        plan: the load of each cell.
        load: protocol and form of the requests.
        rounds: how often each cell is measured.
        pricing: of the samples.
        force: measure again what was measured before.
    """

    models: tuple[TunedModel, ...]
    grid: Grid
    plan: LoadPlan
    load: TuningLoad = field(default_factory=TuningLoad)
    rounds: int = 3
    pricing: Pricing = field(default_factory=Pricing)
    force: bool = False

    @property
    def cells(self) -> list[Cell]:
        """All cells, grouped by model."""
        return [cell for model in self.models for cell in cells_of(model.name, self.grid)]

    @property
    def load_seconds(self) -> float:
        """The maximum total load time of all cells and rounds."""
        warm_up = self.plan.warm_up.seconds or 0.0 if self.plan.warm_up else 0.0
        stages = sum(stage.seconds or 0.0 for stage in self.plan.stages)
        return (stages + warm_up) * self.rounds * len(self.cells)


def find_obstacles(request: ComparisonRequest) -> dict[Cell, str]:
    """Return the cells that this machine cannot serve, with reasons, as far as known before the compile."""
    obstacles: dict[tuple[str, EngineKind], str] = {}
    for model in request.models:
        for engine in request.grid.engines:
            if engine is EngineKind.PYTHON and not is_pytorch_model(model):
                obstacles[model.name, engine] = f"{model.spec.source} is no model of transformers or timm"
                continue
            try:
                require_servable(model, engine)
            except PlansmithError as error:
                obstacles[model.name, engine] = in_one_line(error.message)
    return {
        cell: obstacles[cell.model, cell.engine] for cell in request.cells if (cell.model, cell.engine) in obstacles
    }


def run_comparison(
    request: ComparisonRequest, observer: CompareObserver, runners: Mapping[str, PlanRunner] | None = None
) -> Comparison:
    """Compile, measure and compare; holds off other searches and comparisons of the models until it ends.

    Args:
        request: the comparison.
        observer: told how it goes.
        runners: of the load tests, by model; on the Triton of each when None.

    Raises:
        ServedCheckError: no cell could be measured.
        PlansmithError: a model cannot be compiled as its spec has it, or this machine cannot measure.
    """
    with ExitStack() as stack:
        for model in request.models:
            stack.enter_context(TrialHistory(model.folder).exclusive())
        compared = [_compile(model, request.grid, observer) for model in request.models]
        hosts = set(map(describe_host, request.models))
        runner = CellRunner(request.plan, "; ".join(sorted(hosts)), secrets.token_hex(4), observer, force=request.force)
        runner.run(
            compared,
            runners or _benchmarks(request, compared, observer),
            {model.name: model.folder for model in request.models},
            request.rounds,
        )
    precisions = {cell: str(model.precisions[cell.engine]) for model in compared for cell in model.configurations}
    rows = make_rows(request.cells, runner, precisions, request.pricing)
    _require_any(rows)
    return Comparison(
        plansmith=__version__,
        host=runner.host,
        grid=request.grid,
        plan=request.plan,
        rounds=request.rounds,
        rows=rows,
        price=request.pricing.price,
        published=published_figures(model.name for model in request.models),
        notes=tuple(comparison_notes(rows, runner, request.rounds, request.pricing)),
    )


def _compile(model: TunedModel, grid: Grid, observer: CompareObserver) -> ComparedModel:
    require_servable(model, model.spec.engine)
    compiler = BuildCompiler(model, observer.listener, lambda build: observer.compiling(model.name, build))
    return compile_cells(model, grid, compiler)


def _benchmarks(
    request: ComparisonRequest, compared: Sequence[ComparedModel], observer: CompareObserver
) -> dict[str, PlanRunner]:
    return {
        model.name: ServedBenchmark(
            own.builds,
            own.inputs,
            request.load,
            model.folder,
            make_server(model, request.load.protocol, observer.activity),
            observer.load,
            observer.activity,
        )
        for model, own in zip(request.models, compared, strict=True)
    }


def _require_any(rows: Sequence[Row]) -> None:
    if all(row.figures is None for row in rows):
        raise ServedCheckError(
            f"none of {len(rows)} cells could be measured; the first, {rows[0].cell.label}: {rows[0].problem}",
            remedy="correct that, and run the same command again",
        )
