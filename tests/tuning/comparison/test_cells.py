"""Cells in rounds: kept, resumed, and left out where they fail."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from plansmith.errors import EnvironmentFault
from plansmith.loadtest.results import LoadReport
from plansmith.loadtest.stages import LoadPlan
from plansmith.records.model import EngineKind, Precision
from plansmith.tuning.comparison.cells import Cell, CellRunner, ComparedModel, Grid, cells_of
from plansmith.tuning.configuration import Build, Configuration
from plansmith.tuning.trials.history import TrialFailed

from ...support.loadtest.reports import example_report

BUILD = Build(engine=EngineKind.ONNXRUNTIME, precision=Precision.FP32)
GRID = Grid(engines=(EngineKind.ONNXRUNTIME,), batching=(False, True), instances=(1,))
REPORT = example_report()


def compared(name: str = "net") -> ComparedModel:
    """A model whose build is compiled."""
    release = cast(Any, SimpleNamespace(build=BUILD, digest="digest", manifest=SimpleNamespace(files=())))
    configurations = {
        cell: Configuration(build=BUILD, max_batch_size=4, queue_delay_microseconds=500 if cell.batching else None)
        for cell in cells_of(name, GRID)
    }
    return ComparedModel(name, configurations, {BUILD.label: release}, release)


@dataclass
class Runner:
    """Answers with an example; some load tests fail."""

    failures: dict[int, Exception] = field(default_factory=dict)
    ending: str = "done"
    configurations: list[Configuration] = field(default_factory=list)

    def run_plan(self, configuration: Configuration, plan: LoadPlan) -> LoadReport:
        assert plan == REPORT.plan
        self.configurations.append(configuration)
        if len(self.configurations) in self.failures:
            raise self.failures[len(self.configurations)]
        reason = "" if self.ending == "done" else "the server was lost"
        return REPORT.model_copy(update={"ending": self.ending, "reason": reason})


def measure(folder: Path, runner: Runner, *, rounds: int = 2, force: bool = False) -> CellRunner:
    """Run the cells of a model."""
    model = compared()
    cells = CellRunner(REPORT.plan, "host", "session", force=force)
    cells.run([model], {model.name: runner}, {model.name: folder}, rounds)
    return cells


def test_cells_take_turns(tmp_path: Path) -> None:
    """Every second round runs backwards; the levels are those of the load test."""
    runner = Runner()
    cells = measure(tmp_path, runner)
    delays = [configuration.queue_delay_microseconds for configuration in runner.configurations]
    assert delays == [None, 500, 500, None]
    first, second = (cells.runs[cell] for cell in cells_of("net", GRID))
    assert [run.round_number for run in first] == [run.round_number for run in second] == [1, 2]
    assert [level.users for level in first[0].levels] == [8, 16, 32, 64]
    assert first[0].levels[3].samples_per_second is None, "the client was saturated"
    assert (first[0].memory_bytes, first[0].gpu_memory_bytes) == (412 * 2**20, 2**31)


def test_interrupted_comparison_is_resumed(tmp_path: Path) -> None:
    """What was finished before an interrupt is not measured again; --force measures all."""
    with pytest.raises(KeyboardInterrupt):
        measure(tmp_path, Runner({3: KeyboardInterrupt()}))  # type: ignore[dict-item]
    again = Runner()
    cells = measure(tmp_path, again)
    assert len(again.configurations) == 2
    assert {cell: len(runs) for cell, runs in cells.runs.items()} == dict.fromkeys(cells_of("net", GRID), 2)
    forced = Runner()
    measure(tmp_path, forced, force=True)
    assert len(forced.configurations) == 4


@pytest.mark.parametrize(
    ("failure", "message"),
    [
        (TrialFailed("Triton does not load it"), "Triton does not load it"),
        (EnvironmentFault("the disk is full", remedy="free some space"), "the disk is full"),
    ],
)
def test_failing_cell_stops_no_other(tmp_path: Path, failure: Exception, message: str) -> None:
    """A cell that fails is left out of later rounds with its reason, and tried again by the next comparison."""
    runner = Runner({1: failure})
    cells = measure(tmp_path, runner)
    first, second = cells_of("net", GRID)
    assert cells.problems == {first: message}
    assert len(runner.configurations) == 3
    assert len(cells.runs[second]) == 2
    assert measure(tmp_path, Runner()).problems == {}


def test_lost_server_has_reason_and_levels(tmp_path: Path) -> None:
    """A server that dies under load leaves what was measured until then, and is not kept."""
    cells = measure(tmp_path, Runner(ending="server-lost"))
    first, _ = cells_of("net", GRID)
    assert cells.problems[first] == "the server was lost"
    assert cells.runs[first][0].ended_by == "the server was lost"
    again = Runner()
    measure(tmp_path, again)
    assert len(again.configurations) == 4


def test_compile_problem_skips_load_test(tmp_path: Path) -> None:
    """Cells whose engine cannot be compiled have the reason."""
    model, runner = compared(), Runner()
    lost = Cell(model="net", engine=EngineKind.TENSORRT, batching=False, instances=1)
    model.problems[lost] = "this machine has no GPU"
    cells = CellRunner(REPORT.plan, "host", "session")
    cells.run([model], {"net": runner}, {"net": tmp_path}, 1)
    assert cells.problems == {lost: "this machine has no GPU"}
    assert len(runner.configurations) == 2
