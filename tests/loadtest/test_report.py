"""How the results of a load test are told: sentences, the table, CSV and JSON."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from plansmith.loadtest.report.files import REPORT_FILE, STAGES_FILE, TIMELINE_FILE, store_report
from plansmith.loadtest.report.findings import HEADS, failure_of, summary, table_rows
from plansmith.loadtest.results import LoadReport

from ..support.loadtest.reports import SATURATED, example_report


def test_findings_are_sentences() -> None:
    """The best stage, the knee, the failures by kind, and the stage of the saturated client."""
    assert summary(example_report()) == (
        f"The client was saturated at 64 users, so that there are no figures: {SATURATED}.",
        "The best throughput was 780 requests/s (1,560 samples/s) at 32 users, p95 64 ms (closed loop).",
        "Beyond 8 users latency grows faster than throughput: p95 15 ms there, 64 ms at 32 users.",
        "15 of 29,715 requests failed (0.05 %), first at 32 users: HTTP 503 12, timeout 3.",
    )


def test_saturated_client_fails_test() -> None:
    """The exit code is 9, and the remedy is the one of the stage."""
    error = failure_of(example_report())
    assert error is not None
    assert error.exit_code == 9
    assert error.message.startswith("the client was saturated in 1 of 4 stages, whose figures are withheld")
    assert error.remedy == "use more client processes (--processes)"


def test_table_says_loop_beside_latencies() -> None:
    """Table says the loop beside the latencies."""
    rows = [dict(zip(("LOAD", *HEADS), (row.name, *row.cells), strict=True)) for row in table_rows(example_report())]
    assert rows[1]["LOAD"] == "16 users"
    assert {name: rows[1][name] for name in ("LOOP", "REQ/S", "p95", "BATCH", "QUEUE", "CPU", "MEMORY", "GPU")} == {
        "LOOP": "closed",
        "REQ/S": "760",
        "p95": "24",
        "BATCH": "7.5",
        "QUEUE": "4.5",
        "CPU": "1.90",
        "MEMORY": "412M",
        "GPU": "61%",
    }
    assert (rows[3]["LOOP"], rows[3]["REQ/S"], rows[3]["p95"]) == ("closed", "-", "-")


def test_files_hold_the_whole_report(tmp_path: Path) -> None:
    """JSON is the record; the CSV files have a line per stage and per second, and nothing where nothing is known."""
    report = example_report()
    store_report(report, tmp_path)
    assert LoadReport.model_validate_json((tmp_path / REPORT_FILE).read_text()) == report
    with (tmp_path / STAGES_FILE).open() as file:
        stages = list(csv.DictReader(file))
    assert [row["loop"] for row in stages] == ["closed"] * 4
    assert (stages[1]["throughput"], stages[1]["p95_ms"], stages[1]["queue_ms"]) == ("760", "24", "4.5")
    assert (stages[3]["throughput"], stages[3]["p95_ms"], stages[3]["client_saturated"]) == ("", "", SATURATED)
    assert stages[2]["failures"] == "HTTP 503 12; timeout 3"
    with (tmp_path / TIMELINE_FILE).open() as file:
        assert len(list(csv.DictReader(file))) == len(report.timeline)


@pytest.mark.parametrize("text", ["=1+1", "@SUM(A1)", "-2"])
def test_spreadsheet_calculates_nothing(tmp_path: Path, text: str) -> None:
    """Text from a plan is no formula."""
    report = example_report(label=text)
    store_report(report, tmp_path)
    with (tmp_path / STAGES_FILE).open() as file:
        assert next(csv.DictReader(file))["load"] == f"'{text}"
