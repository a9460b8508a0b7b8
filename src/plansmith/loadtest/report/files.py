"""Files of a load test: report.json, report.html, and stages.csv and timeline.csv for spreadsheets."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from plansmith.loadtest.report.findings import statistics_of
from plansmith.loadtest.report.page import render_page
from plansmith.loadtest.results import LoadReport, RequestStats, StageResult
from plansmith.system.files import make_folder, storage_errors, write_file

REPORT_FILE, PAGE_FILE = "report.json", "report.html"
STAGES_FILE, TIMELINE_FILE = "stages.csv", "timeline.csv"

ALL_MODELS = "(all)"
"""Stands for the model in the line of a whole stage where several models were tested."""

_FORMULA = ("=", "+", "-", "@", "\t", "\r")

STAGE_COLUMNS = (
    *("stage", "load", "loop", "users", "rate", "offered", "began_s", "seconds", "measured_s", "model"),
    *("requests", "answered", "failed", "samples", "throughput", "samples_per_s"),
    *("mean_ms", "min_ms", "p50_ms", "p90_ms", "p95_ms", "p99_ms", "max_ms"),
    *("batch_size", "executions", "queue_ms", "compute_input_ms", "compute_ms", "compute_output_ms", "cache_hits"),
    *("server_cores", "server_memory_bytes", "host_cpu", "gpu_utilization", "gpu_memory_bytes"),
    *("client_cores", "client_late_ms", "client_sent_share", "client_saturated", "stopped", "failures"),
)
TIMELINE_COLUMNS = ("second", "stage", "users", "answered", "failed", "p50_ms", "p95_ms")

_Cell = str | int | float | None


def store_report(report: LoadReport, folder: Path) -> None:
    """Write all files, each whole or not at all; earlier ones are replaced.

    Raises:
        RepositoryError: the folder cannot be made or written.
    """
    with storage_errors(folder, other="--output folder"):
        make_folder(folder)
        write_file(folder / REPORT_FILE, report.model_dump_json(indent=1) + "\n", replace=True)
        write_file(folder / STAGES_FILE, stages_csv(report), replace=True)
        write_file(folder / TIMELINE_FILE, timeline_csv(report), replace=True)
        write_file(folder / PAGE_FILE, render_page(report), replace=True)


def stages_csv(report: LoadReport) -> str:
    """A line for each stage and model; a cell is empty where something is unknown, or the client was saturated."""
    lines = (line for number, result in enumerate(report.stages, 1) for line in _lines(number, result))
    return _csv(STAGE_COLUMNS, lines)


def timeline_csv(report: LoadReport) -> str:
    """A line for each second."""
    lines = (
        (row.at, row.stage + 1, row.users, row.answered, row.failed, row.p50_ms, row.p95_ms) for row in report.timeline
    )
    return _csv(TIMELINE_COLUMNS, lines)


def _lines(number: int, result: StageResult) -> Iterator[Sequence[_Cell]]:
    if len(result.models) != 1:
        yield _line(number, result, ALL_MODELS, result.stats)
    for model, stats in result.models.items():
        yield _line(number, result, model, stats)


def _line(number: int, result: StageResult, model: str, stats: RequestStats) -> Sequence[_Cell]:
    stage, server, client, latency = result.stage, result.server, result.client, stats.latency
    served = statistics_of(result, model)
    utilizations = [gpu.utilization for gpu in server.gpus if gpu.utilization is not None]
    memory = [gpu.memory_bytes for gpu in server.gpus if gpu.memory_bytes is not None]
    latencies: Sequence[_Cell] = [None] * 7 if latency is None else [*latency.model_dump().values()]
    model_cells: Sequence[_Cell] = [None] * 7
    if served is not None:
        times = (served.queue_ms, served.compute_input_ms, served.compute_ms, served.compute_output_ms)
        model_cells = [served.batch_size, served.executions, *times, served.cache_hits]
    return (
        *(number, stage.label, result.loop, stage.users, stage.rate, result.offered),
        *(result.began_seconds, result.seconds, result.measured_seconds, model),
        *(stats.requests, stats.answered, stats.failed, stats.samples, stats.throughput, stats.samples_per_second),
        *latencies,
        *model_cells,
        *(server.cores, server.memory_bytes, server.host_cpu),
        *(max(utilizations, default=None), sum(memory) if memory else None),
        *(client.cores, client.late_ms, client.sent_share if stage.is_open else None, client.saturated),
        *(result.stopped, "; ".join(f"{failure.kind} {failure.count}" for failure in result.failures)),
    )


def _csv(head: Sequence[str], lines: Iterable[Sequence[_Cell]]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(head)
    for line in lines:
        assert len(line) == len(head)
        writer.writerow(map(_cell, line))
    return out.getvalue()


def _cell(value: _Cell) -> str:
    if value is None:
        return ""
    if isinstance(value, str):  # an apostrophe before what a spreadsheet would calculate (OWASP, CSV Injection)
        return f"'{value}" if value.startswith(_FORMULA) else value
    return f"{value:.6g}" if isinstance(value, float) else str(value)
