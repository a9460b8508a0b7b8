"""Load test output files: report.json, report.html, and stages.csv and timeline.csv for spreadsheets."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from plansmith import __version__
from plansmith.formatting import format_bytes, format_seconds, minute
from plansmith.loadtest.report import findings
from plansmith.loadtest.report.findings import (
    HEADS,
    format_list,
    format_number,
    format_percent,
    legend,
    shown_columns,
    statistics_of,
    table_rows,
)
from plansmith.loadtest.report.plots import axis_label, distribution_plot, failure_plot, stage_plots, timeline_plots
from plansmith.loadtest.results import LoadReport, RequestStats, StageResult
from plansmith.report.plots import BOTTOM, HEIGHT, LEFT, RIGHT, WIDTH
from plansmith.report.templating import template_environment
from plansmith.report.verdict import Tile
from plansmith.system.files import make_folder, storage_errors, write_file

_PACKAGE = "plansmith.loadtest.report"
_TEMPLATE = "loadtest.html"

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


def render_page(report: LoadReport) -> str:
    """Render the HTML page."""
    rows = table_rows(report)
    is_fault = report.ending not in {"done", "threshold"}
    ending = findings.ending_sentence(report)
    lede = [*findings.throughput_sentences(report), *([ending] if report.ending == "threshold" else [])]
    faults = [*([ending] if is_fault else []), *findings.failure_sentences(report)]
    template = template_environment(_PACKAGE).get_template(_TEMPLATE)
    return template.render(
        plansmith=__version__,
        report=report,
        name=format_list(report.target.names),
        began=minute(report.began_at),
        duration=format_seconds(report.seconds),
        lede=lede,
        faults=faults,
        cautions=[*findings.saturation_sentences(report), *map(_sentence, report.notes)],
        tiles=list(_tiles(report)),
        plots=stage_plots(report),
        axis=axis_label(report.stages),
        failure_plot=failure_plot(report),
        distribution=distribution_plot(report),
        timeline=timeline_plots(report),
        heads=HEADS,
        places=shown_columns(rows),
        rows=rows,
        legend=legend(report),
        failures=[failure for result in report.stages for failure in result.failures],
        facts=list(_facts(report)),
        frame=(WIDTH, HEIGHT, LEFT, RIGHT, BOTTOM),
    )


def _sentence(note: str) -> str:
    return f"{note[:1].upper()}{note[1:]}."


def _tiles(report: LoadReport) -> Iterator[Tile]:
    best = findings.best_stage(report)
    if best is not None and best.stats.throughput is not None and best.stats.latency is not None:
        latency = best.stats.latency
        yield Tile("Best throughput", f"{format_number(best.stats.throughput)}/s", f"requests, {best.stage.label}")
        note = f"p50 {format_number(latency.p50_ms)} ms, p99 {format_number(latency.p99_ms)} ms, {best.loop} loop"
        yield Tile("p95 latency there", f"{format_number(latency.p95_ms)} ms", note)
    requests = sum(result.stats.requests for result in report.stages)
    failed = sum(result.stats.failed for result in report.stages)
    yield Tile("Failed", format_percent(failed / requests) if failed else "0", f"{failed:,} of {requests:,} requests")
    served = statistics_of(best, next(iter(best.models), "")) if best is not None and len(best.models) == 1 else None
    if served is not None and served.executions:
        yield Tile(
            "Achieved batch", format_number(served.batch_size), f"{format_number(served.queue_ms)} ms in the queue"
        )
    if best is not None and best.server.cores is not None:
        memory = best.server.memory_bytes
        yield Tile("Server", f"{best.server.cores:.1f} cores", f"{format_bytes(memory)} of memory" if memory else "")


def _facts(report: LoadReport) -> Iterator[tuple[str, str]]:
    """Return the facts of the test: what was tested, how and from where."""
    target, plan = report.target, report.plan
    yield "Server", f"{report.server} at {target.address}"
    for name in target.names:
        yield name, ", ".join(filter(None, [report.releases.get(name, ""), report.inputs.get(name, "")]))
    yield "Requests", f"{'gRPC' if target.protocol == 'grpc' else 'HTTP'}, {target.encoding}"
    if plan.warm_up is not None:
        yield "Warm-up", f"{plan.warm_up.label}, {format_seconds(plan.warm_up.seconds or 0)}"
    yield "Stops at", "; ".join(plan.stop_when.describe()) or "the end of the last stage"
    yield "Client", f"{report.machine}; {plan.processes} process{'' if plan.processes == 1 else 'es'}, seed {plan.seed}"


REPORT_FILE, PAGE_FILE = "report.json", "report.html"
STAGES_FILE, TIMELINE_FILE = "stages.csv", "timeline.csv"


def store_report(report: LoadReport, folder: Path) -> None:
    """Write all report files atomically; replaces earlier ones.

    Raises:
        RepositoryError: the folder cannot be made or written.
    """
    with storage_errors(folder, alternative="--output folder"):
        make_folder(folder)
        write_file(folder / REPORT_FILE, report.model_dump_json(indent=1) + "\n", replace=True)
        write_file(folder / STAGES_FILE, stages_csv(report), replace=True)
        write_file(folder / TIMELINE_FILE, timeline_csv(report), replace=True)
        write_file(folder / PAGE_FILE, render_page(report), replace=True)


def stages_csv(report: LoadReport) -> str:
    """Return a CSV line per stage and model; unknown cells, and those of a saturated client, are empty."""
    lines = (line for number, result in enumerate(report.stages, 1) for line in _lines(number, result))
    return _csv(STAGE_COLUMNS, lines)


def timeline_csv(report: LoadReport) -> str:
    """Return a CSV line per second."""
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
