"""The page of a search, as text and in Chromium."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from plansmith.errors import GateError
from plansmith.tuning.budget import schedule_runs
from plansmith.tuning.objective import Goal, parse_constraints
from plansmith.tuning.report.page import pareto_front, render_page, require_acceptable, verdict
from plansmith.tuning.result import TuningPlan, TuningResult

from ..support.browser import Browser
from ..support.tuning.searches import make_runner, run_search
from ..support.tuning.surface import CURRENT, PYTHON, SPACE, Surface


def make_result(folder: Path, goal: Goal | None = None, name: str = "net") -> TuningResult:
    """A search of computed answers, in which the Python engine fails."""
    goal = goal or Goal()
    schedule = schedule_runs(40, seconds=8)
    surface = Surface(
        fails=lambda configuration: "Triton did not load it: <b>no memory</b>" if configuration.build == PYTHON else ""
    )
    search = run_search(make_runner(surface, folder), goal, schedule=schedule)
    plan = TuningPlan(
        model=name,
        goal=goal,
        space=SPACE,
        schedule=schedule,
        current=CURRENT,
        load="12 users, 1 sample per request, http binary",
        host="a machine, 4 cores",
        left_out={"tensorrt fp16": "this machine has no NVIDIA GPU"},
    )
    changes = {"precision": "int8", "triton": {"max_batch_size": 16}} if search.is_better else {}
    return TuningResult(plan=plan, plansmith="0", ended_at="2026-11-20T13:05:00+00:00", search=search, changes=changes)


def test_page_shows_verdict_and_failures(tmp_path: Path) -> None:
    """It has the gain with its interval, the lines of the spec, and why builds and configurations were left out."""
    result = make_result(tmp_path)
    page = render_page(result)
    assert result.is_better
    assert re.search(r"times the throughput \(95 %: \d\.\d\d to \d\.\d\d\)", page)
    assert "max_batch_size: 16" in page
    assert "Nothing was published" in page
    assert "Left out: tensorrt fp16" in page
    assert "&lt;b&gt;no memory&lt;/b&gt;" in page
    applied = render_page(result.model_copy(update={"applied": "net@3"}))
    assert "Published as net@3." in applied


def test_unmet_constraint_told_everywhere(tmp_path: Path) -> None:
    """Where nothing meets the constraints, the nearest configuration is named with what it reached."""
    result = make_result(tmp_path, Goal(constraints=parse_constraints(["p95<1ms"])))
    assert "No configuration meets the constraints." in render_page(result)
    assert not result.is_met
    with pytest.raises(GateError, match=r"the nearest, .* reached p95 [\d.]+ ms where p95<1ms is required"):
        require_acceptable(result)


def test_verdict_without_a_gain(tmp_path: Path) -> None:
    """A search in which the current configuration wins says so, and changes nothing."""
    result = make_result(tmp_path)
    ranking = tuple(trial for trial in result.search.ranking if trial.configuration == CURRENT)
    search = result.search.model_copy(update={"confirmations": (), "ranking": ranking})
    alone = result.model_copy(update={"search": search})
    assert verdict(alone).startswith("only the current configuration was tried")


def test_pareto_front_is_unbeaten() -> None:
    """A point is on the front if no other has less latency and at least as much throughput."""
    assert pareto_front([(3, 5), (1, 2), (2, 2), (2, 4), (4, 5)]) == [(1, 2), (2, 4), (3, 5)]


@pytest.mark.services
@pytest.mark.parametrize("size", [(390, 844), (1280, 900)], ids=["phone", "desktop"])
def test_page_fits_its_screen(chromium: Browser, tmp_path: Path, size: tuple[int, int]) -> None:
    """Also with a long name, it is no wider than the screen, draws every plot, and has no errors."""
    page = tmp_path / "page.html"
    page.write_text(render_page(make_result(tmp_path, name="evening-model" * 12)), encoding="utf-8")
    chromium.open(page, width=size[0], height=size[1])
    assert chromium.evaluate("document.documentElement.scrollWidth") == size[0]
    drawn = "[...document.querySelectorAll('figure > svg')].filter(svg => svg.querySelector('path, circle'))"
    assert chromium.evaluate(f"{drawn}.length") == 3
    assert not chromium.happened("Runtime.exceptionThrown")
    assert not chromium.happened("Log.entryAdded")
