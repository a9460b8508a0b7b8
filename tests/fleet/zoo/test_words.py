"""What a zoo says of its rows: why they are not right, which axes are fixed, and how it fits into a terminal."""

from __future__ import annotations

import pytest

from plansmith.cli.runs.zoo_progress import ZooProgress, table_lines
from plansmith.fleet.zoo.html import render
from plansmith.fleet.zoo.records import AxisFinding, Zoo, ZooRow, summarise

REFUSED = "exporting: no exporter gave a graph:\n  torchscript: differs\n  dynamo: ValueError: x is 3"


def axis(name: str, fixed_at: int = 0) -> AxisFinding:
    problem = f"fixed at {fixed_at} in the graph: dynamo: x.shape[1] is {fixed_at}" if fixed_at else ""
    return AxisFinding(
        name=name, dims=("x:0",), base=4, sizes=(2, 5), moves=not problem, fixed_at=fixed_at, problem=problem
    )


RIGHT = ZooRow(name="a", scheme="timm", outcome="right", exporter="dynamo", axes=(axis("batch"),), shapes=4, seconds=2)
FIXED = RIGHT.model_copy(update={"name": "b", "axes": (axis("batch"), axis("frames", 4))})
FAILED = ZooRow(name="c" * 70, scheme="hf", outcome="failed", problem=REFUSED, log="logs/c.log")
SILENT = FAILED.model_copy(update={"name": "d", "problem": "", "log": ""})


def zoo(*rows: ZooRow) -> Zoo:
    return Zoo(versions={}, summary=summarise(rows, 1), rows=rows)


def test_fixed_axis_said_below_row() -> None:
    """A row with a fixed axis says so below it."""
    lines = table_lines(zoo(RIGHT, FIXED))
    assert lines[1].split() == ["a", "right", "dynamo", "1", "of", "1", "4", "2.0", "s", "-"]
    assert lines[2].split()[:6] == ["b", "right", "dynamo", "1", "of", "2"]
    assert lines[3] == "    frames is fixed at 4 in the graph: dynamo: x.shape[1] is 4"


def test_failure_told_in_one_line() -> None:
    """A failure is told with its cause in one line."""
    lines = table_lines(zoo(FAILED, SILENT))
    assert lines[2] == "    failed: exporting: no exporter gave a graph: dynamo: ValueError: x is 3"
    assert lines[3] == "    log: logs/c.log"
    assert lines[5] == "    failed: nothing says why"


def test_missing_axes_have_no_share() -> None:
    """No share of axes is told where there are none."""
    (line,) = [line for line in table_lines(zoo(FAILED)) if line.startswith("transformers: ")]
    assert line == "transformers: 0 of 1 right (0.0%); 0 of 0 axes move"
    assert "0 axes that PyTorch takes" not in render(zoo(FAILED), "ours.yaml")
    assert "100.0%" not in render(zoo(FAILED), "ours.yaml")


def test_fixed_batch_told_once() -> None:
    """A fixed batch that makes a row wrong is told once."""
    batch = axis("batch", 4)
    wrong = FIXED.model_copy(update={"outcome": "wrong", "axes": (batch,), "problem": f"the batch is {batch.problem}"})
    assert sum("fixed at 4" in line for line in table_lines(zoo(wrong))) == 1


@pytest.mark.parametrize(
    ("width", "head"),
    [(160, "entry answers exporter axes move shapes time size"), (110, "entry answers exporter axes move time")],
)
def test_unfitting_columns_left_out(width: int, head: str) -> None:
    """Columns that do not fit are left out."""
    first, *lines = table_lines(zoo(RIGHT, FAILED), width)
    assert first.split() == head.split()
    assert max(len(line) for line in (first, *lines[:2])) <= width
    assert lines[1].startswith(FAILED.name)


def test_long_names_are_cut() -> None:
    """Long names are cut where few columns are too many."""
    first, _, long, *_ = table_lines(zoo(RIGHT, FAILED), 60)
    assert first.split() == ["entry", "answers", "axes", "move"]
    assert long.startswith("ccc")
    assert "…" in long
    assert max(len(first), len(long)) <= 60


def test_finished_row_leaves_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Every row leaves a line when it is finished."""
    with ZooProgress(4, quiet=False) as progress:
        progress.finished(RIGHT, kept=False)
        for row in (FIXED, FAILED, SILENT):
            progress.finished(row, kept=True)
    assert capsys.readouterr().err.splitlines() == [
        "  right  a  dynamo, 1 of 1 axes move, 2.0 s",
        "  right  b  dynamo, 1 of 2 axes move, kept; frames is fixed at 4",
        f"  failed {FAILED.name}  kept; exporting: no exporter gave a graph: dynamo: ValueError: x is 3",
        "  failed d  kept; nothing says why",
    ]


def test_page_marks_fixed_axes() -> None:
    """The page marks fixed axes and holds all that was said."""
    page = render(zoo(FIXED, FAILED), "ours.yaml")
    assert "<title>1 of 2 right: ours.yaml</title>" in page
    assert '<small class="fixed">frames (4; 2, 5): fixed at 4 in the graph: dynamo: x.shape[1] is 4</small>' in page
    assert "<span>failed: exporting: no exporter gave a graph: dynamo: ValueError: x is 3</span>" in page
    assert "torchscript: differs" in page
    assert "log: logs/c.log" in page
