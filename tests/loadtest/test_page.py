"""The page of a load test, as text and in Chromium."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from plansmith.loadtest.report.files import render_page
from plansmith.loadtest.report.plots import distribution_plot, failure_plot, stage_plots
from plansmith.loadtest.stages import Stage

from ..support.browser import Browser
from ..support.loadtest.reports import example_report


def test_plots_show_the_figures() -> None:
    """Throughput and latency have a line per figure, which ends where the client was saturated; failures are bars."""
    plots = {plot.title: plot for plot in stage_plots(example_report())}
    assert [(line.name, line.largest) for line in plots["Requests per second"].lines] == [("answered", "780")]
    assert [line.name for line in plots["Latency, closed loop"].lines] == ["p50", "p90", "p95", "p99"]
    assert {line.path.count("L") for line in plots["Latency, closed loop"].lines} == {2}
    bars = failure_plot(example_report())
    assert bars is not None
    assert [(entry.name, entry.total, len(entry.boxes)) for entry in bars.series] == [
        ("HTTP 503", "12", 1),
        ("timeout", "3", 1),
    ]
    below, above = (box for entry in bars.series for box in entry.boxes)
    assert above.y + above.height == pytest.approx(below.y)


def test_distribution_has_stage_lines() -> None:
    """Its last point is the p99.9, of a saturated stage there is none, and of many stages six are drawn."""
    report = example_report()
    plot = distribution_plot(report)
    assert plot is not None
    assert [line.name for line in plot.lines] == ["stage 1: 8 users", "stage 2: 16 users", "stage 3: 32 users"]
    assert [tick.label for tick in plot.notches] == ["min", "p50", "p90", "p99", "p99.9"]
    largest = [float(line.largest.removesuffix(" ms")) for line in plot.lines]
    assert largest == pytest.approx([2.84 * 15, 2.84 * 24, 2.84 * 64], rel=0.01)
    many = distribution_plot(report.model_copy(update={"stages": report.stages[:1] * 9}))
    assert many is not None
    assert [line.name.partition(":")[0] for line in many.lines] == [f"stage {n}" for n in (1, 3, 4, 6, 7, 9)]


def test_page_is_self_contained() -> None:
    """It loads nothing and runs no script, and text of servers and plans is text."""
    page = render_page(example_report(label="<script>alert(1)</script>"))
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert not re.search(r"""(?:src|href)=["'](?!data:|#)""", page)


def test_unbegun_test_page_says_so() -> None:
    """Page of an unbegun test says so."""
    report = example_report()
    update = {"stages": (), "timeline": (), "ending": "client-lost", "reason": "a client process ended"}
    page = render_page(report.model_copy(update=update))
    assert "It ended without its client: a client process ended; 4 of 4 stages did not begin." in page


@pytest.mark.services
@pytest.mark.parametrize("size", [(390, 844), (1280, 900)], ids=["phone", "desktop"])
def test_page_fits_its_screen(chromium: Browser, tmp_path: Path, size: tuple[int, int]) -> None:
    """Also with a long name, it is no wider than the screen, draws every plot, and has no errors."""
    report = example_report(label="evening-peak" * 12)
    page = tmp_path / "page.html"
    page.write_text(render_page(report), encoding="utf-8")
    chromium.open(page, width=size[0], height=size[1])
    assert chromium.evaluate("document.documentElement.scrollWidth") == size[0]
    plots = len(stage_plots(report)) + 1 + 1 + 3
    drawn = "[...document.querySelectorAll('figure > svg')].filter(svg => svg.querySelector('path, rect, circle'))"
    assert chromium.evaluate(f"{drawn}.length") == plots
    assert not chromium.happened("Runtime.exceptionThrown")
    assert not chromium.happened("Log.entryAdded")


def test_stages_stand_side_by_side() -> None:
    """Where loads do not compare, the lower axis is the order of the stages."""
    report = example_report()
    first = report.stages[0]
    opened = first.model_copy(update={"stage": Stage(rate=50), "loop": "open", "offered": 50.0})
    plots = stage_plots(report.model_copy(update={"stages": (first, opened)}))
    assert [tick.label for tick in plots[0].notches] == ["1", "2"]
    assert plots[1].title == "Latency, closed and open loop"
