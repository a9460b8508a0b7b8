"""A load test as a table: a line per stage, and one per model below it where several were tested."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from plansmith.loadtest.report.findings import format_number, format_percent, statistics_of
from plansmith.loadtest.results import LoadReport, RequestStats, ServerUsage, StageResult

if TYPE_CHECKING:
    from rich.table import Table

HEADS = ("LOOP", "REQ/S", "p50", "p90", "p95", "p99", "FAILED", "BATCH", "QUEUE", "CPU", "MEMORY", "GPU", "GPU MEM")
"""Columns behind the load."""

_WITHHELD = "-"
_MIN_NAME = 8


@dataclass(frozen=True)
class TableLine:
    """One line.

    Attributes:
        name: of the stage or model.
        cells: one for each of `HEADS`; empty where something is unknown.
        is_model: it is a line of one model.
        has_failures: requests failed.
        note: why there are no figures; empty where there are.
    """

    name: str
    cells: tuple[str, ...]
    is_model: bool
    has_failures: bool
    note: str


def table_rows(report: LoadReport) -> list[TableLine]:
    """The lines."""
    return [row for result in report.stages for row in _rows(result)]


def shown_columns(rows: list[TableLine]) -> list[int]:
    """The places of the columns that are not empty."""
    return [place for place in range(len(HEADS)) if any(row.cells[place] for row in rows)]


def terminal_table(report: LoadReport) -> Table:
    """The table for a terminal."""
    from rich.table import Table
    from rich.text import Text

    rows = table_rows(report)
    places = shown_columns(rows)
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="", collapse_padding=True)
    table.add_column("LOAD", no_wrap=True, overflow="ellipsis", min_width=_MIN_NAME)
    for place in places:
        table.add_column(HEADS[place], justify="left" if HEADS[place] == "LOOP" else "right", no_wrap=True)
    for row in rows:
        style = "yellow" if row.note else "red" if row.has_failures else ""
        name = f"  {_plain(row.name)}" if row.is_model else _plain(row.name)
        table.add_row(*(Text(cell, style=style) for cell in (name, *(row.cells[place] for place in places))))
    return table


def legend(report: LoadReport) -> str:
    """What the columns mean, in a sentence."""
    parts = ["latencies and queue in ms, in a closed loop from sending, in an open loop from the due time"]
    if any(result.server.cores is not None for result in report.stages):
        parts.append("CPU in cores of the server")
    elif any(result.server.host_cpu is not None for result in report.stages):
        parts.append("CPU is the busy share of the server's host")
    if any(not result.is_valid for result in report.stages):
        parts.append("- where the client was saturated")
    text = "; ".join(parts)
    return f"{text[0].upper()}{text[1:]}."


def _rows(result: StageResult) -> Iterator[TableLine]:
    is_mix = len(result.models) > 1
    only = "" if is_mix else next(iter(result.models), "")
    batches = ("", "") if is_mix else _batches(result, only)
    cells = (result.loop, *_figures(result.stats), *batches, *_usage(result.server))
    yield TableLine(
        result.stage.label, cells, is_model=False, has_failures=bool(result.stats.failed), note=result.client.saturated
    )
    for model, stats in result.models.items() if is_mix else ():
        cells = (result.loop, *_figures(stats), *_batches(result, model), *[""] * 4)
        yield TableLine(model, cells, is_model=True, has_failures=bool(stats.failed), note=result.client.saturated)


def _figures(stats: RequestStats) -> tuple[str, ...]:
    latency = stats.latency
    latencies = (latency.p50_ms, latency.p90_ms, latency.p95_ms, latency.p99_ms) if latency else (None,) * 4
    failed = format_percent(stats.error_rate).replace(" ", "") if stats.failed else "0"
    return (*(_WITHHELD if value is None else format_number(value) for value in (stats.throughput, *latencies)), failed)


def _batches(result: StageResult, model: str) -> tuple[str, str]:
    statistics = statistics_of(result, model)
    return (format_number(statistics.batch_size), format_number(statistics.queue_ms)) if statistics else ("", "")


def _usage(usage: ServerUsage) -> Iterator[str]:
    if usage.cores is not None:
        yield f"{usage.cores:.2f}"
    else:
        yield "" if usage.host_cpu is None else f"{100 * usage.host_cpu:.0f}%"
    yield "" if usage.memory_bytes is None else _size(usage.memory_bytes)
    utilizations = [gpu.utilization for gpu in usage.gpus if gpu.utilization is not None]
    memory = [gpu.memory_bytes for gpu in usage.gpus if gpu.memory_bytes is not None]
    yield f"{100 * max(utilizations):.0f}%" if utilizations else ""
    yield _size(sum(memory)) if memory else ""


def _size(count: int) -> str:
    """412M, 1.3G: binary units."""
    return f"{count / 2**20:.0f}M" if count < 1000 * 2**20 else f"{count / 2**30:.1f}G"


def _plain(text: str) -> str:
    """Text without characters that a terminal would obey."""
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)
