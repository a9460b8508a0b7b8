"""What is planned for a fleet, and what came of it, in words."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from plansmith.errors import UsageError
from plansmith.fleet.build import outcome_without_work
from plansmith.fleet.records import (
    ENDS,
    PLAN_COLUMNS,
    STATES,
    SUMMARY_COLUMNS,
    Ended,
    FleetSummary,
    ModelOutcome,
    PlannedModel,
    State,
    cells,
    failure_of,
    in_table,
    plan_counts,
    plan_rows,
    summary_counts,
    summary_rows,
)
from plansmith.records.release import Reason
from plansmith.steps.provenance.history import Failure

REASONS = (
    Reason(cause="tools", words="torch 2.9.1 -> 2.10.0"),
    Reason(cause="spec", words="spec: precision fp32 -> int8"),
)
REFUSED = Failure(step="", error="UsageError", message="no spec:\n'sources' is unknown", exit_code=2)
GATE = Failure(step="validate", error="GateError", message="the engine differs\nby much", exit_code=5)
PLANNED = [
    PlannedModel(model="a", target="local-cpu", file="a.yaml", state="fresh", version=3),
    PlannedModel(model="b", target="triton-26.03", file="b.yaml", state="stale", reasons=REASONS),
    PlannedModel(model="c", target="local-cpu", file="c.yaml", state="refused", failure=REFUSED),
]
SUMMARY = FleetSummary(
    outcomes=(
        ModelOutcome(model="a", target="local-cpu", file="a.yaml", ended="fresh", version=3),
        ModelOutcome(
            model="b", target="t", file="b.yaml", ended="published", reasons=REASONS, version=4, seconds=61, run="u"
        ),
        ModelOutcome(model="c", target="t", file="c.yaml", ended="failed", failure=GATE, version=1, seconds=0.44),
        ModelOutcome(model="d", target="t", file="d.yaml", ended="interrupted", reasons=REASONS[:1]),
        ModelOutcome(model="e", target="t", file="e.yaml", ended="unchanged", reasons=REASONS[1:], version=2),
    ),
    seconds=250,
)


def test_states_and_ends_are_counted() -> None:
    """Every state and every end is counted."""
    assert set(STATES) == set(get_args(State))
    assert set(ENDS) == set(get_args(Ended))


def test_plan_counts_and_reasons() -> None:
    """A plan is counted and every reason stands in one line."""
    assert plan_counts(PLANNED) == "3 models: 1 stale, 1 fresh, 1 refused"
    assert plan_counts(PLANNED[:1]) == "1 model: 1 fresh"
    assert plan_counts([]) == "0 models"
    assert [row["why"] for row in plan_rows(PLANNED)] == [
        "nothing changed",
        "torch 2.9.1 -> 2.10.0; spec: precision fp32 -> int8",
        "no spec: 'sources' is unknown",
    ]
    assert cells(plan_rows(PLANNED[:1]), PLAN_COLUMNS) == [
        ("MODEL", "TARGET", "STATE", "WHY"),
        ("a", "local-cpu", "fresh", "nothing changed"),
    ]


def test_summary_says_ends_and_reasons() -> None:
    """A summary says how each ended what stands now and why."""
    assert summary_counts(SUMMARY) == (
        "5 models: 1 published, 1 unchanged, 1 fresh, 1 failed, 1 interrupted; 4 min 10 s"
    )
    rows = summary_rows(SUMMARY)
    assert [(row["outcome"], row["took"], row["run"]) for row in rows] == [
        ("fresh, version 3", "-", ""),
        ("published version 4", "1 min 01 s", "u"),
        ("failed at validate, exit code 5", "0.4 s", ""),
        ("interrupted", "-", ""),
        ("unchanged, version 2", "-", ""),
    ]
    assert [row["why"] for row in rows][1:4] == [
        "torch 2.9.1 -> 2.10.0; spec: precision fp32 -> int8",
        "the engine differs",
        "torch 2.9.1 -> 2.10.0",
    ]


def test_rows_leave_out_remedy() -> None:
    """Rows leave the remedy to the messages and name the files of one model."""
    failure = failure_of(UsageError("it is torn:\nhere", remedy="mend the file"))
    assert failure.message.endswith("; next: mend the file")
    files = [Path.cwd() / "specs" / name for name in ("a.yaml", "b.yaml")]
    planned = [
        PlannedModel(model="a", target="t", file=str(file), state="refused", failure=failure) for file in files
    ] + [PlannedModel(model="a", target="u", file=str(files[0]), state="fresh")]
    named = ["a (specs/a.yaml)", "a (specs/b.yaml)", "a"]
    assert [row["model"] for row in plan_rows(planned)] == named
    assert [row["why"] for row in plan_rows(planned)] == ["it is torn: here"] * 2 + ["nothing changed"]
    rows = summary_rows(FleetSummary(outcomes=tuple(map(outcome_without_work, planned)), seconds=0))
    assert [row["model"] for row in rows] == named
    assert [row["why"] for row in rows] == ["it is torn: here"] * 2 + ["nothing changed"]


def test_table_names_relative_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table names files as from here and leaves those elsewhere."""
    folder = Path.cwd()
    text = f"{folder}/a.yaml and ('{folder}/b/c' or /x{folder}/d) are not {folder} or {folder}s/e; next: see {folder}/f"
    assert in_table(text) == f"a.yaml and ('b/c' or /x{folder}/d) are not {folder} or {folder}s/e"
    monkeypatch.chdir("/")
    assert in_table("/a/b is not /c") == "/a/b is not /c"


def test_summary_without_runs_lacks_column() -> None:
    """A summary without flow runs has no column for them."""
    alone = FleetSummary(outcomes=SUMMARY.outcomes[:1], seconds=0)
    assert set(summary_rows(alone)[0]) == set(SUMMARY_COLUMNS)
