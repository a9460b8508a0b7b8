"""Load test findings in a few sentences: best throughput, latency knee, failures, and how it ended."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from plansmith.errors import EnvironmentFault, PlansmithError, ServedCheckError
from plansmith.loadtest.results import LoadReport, ModelStatistics, RequestStats, ServerUsage, StageResult

if TYPE_CHECKING:
    from rich.table import Table


_ENDINGS = {
    "done": "It ended as planned",
    "threshold": "It was ended early",
    "server-lost": "It ended without its server",
    "client-lost": "It ended without its client",
    "interrupted": "It was interrupted",
}
_MAX_ERROR_RATE = 0.01
_FEW_REQUESTS = 100
"""Of fewer answers, the slowest percent is not even one."""

HEADS = ("LOOP", "REQ/S", "p50", "p90", "p95", "p99", "FAILED", "BATCH", "QUEUE", "CPU", "MEMORY", "GPU", "GPU MEM")
"""Columns behind the load."""

_WITHHELD = "-"
_MIN_NAME = 8


def summary(report: LoadReport) -> tuple[str, ...]:
    """Return the findings, one sentence each, most important first."""
    ending = () if report.ending == "done" else (ending_sentence(report),)
    return (*ending, *saturation_sentences(report), *throughput_sentences(report), *failure_sentences(report))


def failure_of(report: LoadReport) -> PlansmithError | None:
    """Return the failure of a test; None if it completed, reached a threshold, or was interrupted."""
    if report.ending == "interrupted":
        return None
    if report.ending == "server-lost":
        return ServedCheckError(report.reason, remedy="read the log of the server")
    if report.ending == "client-lost":
        return EnvironmentFault(report.reason, remedy="read client.log beside the report")
    requests = sum(result.stats.requests for result in report.stages)
    if requests and requests == sum(result.stats.failed for result in report.stages):
        return ServedCheckError("no request was answered", remedy="correct what the first failure names")
    saturated = [result for result in report.stages if not result.is_valid]
    if saturated:
        return EnvironmentFault(
            f"the client was saturated in {len(saturated)} of {len(report.stages)} stages, whose figures are withheld:"
            f" {saturated[0].client.saturated.rpartition(': ')[0]}",
            remedy=saturated[0].client.saturated.rpartition(": ")[2],
        )
    return None


def best_stage(report: LoadReport) -> StageResult | None:
    """Return the stage with the highest throughput: of those with at most 1 % failures, else of all with figures."""
    answered = [result for result in report.stages if result.stats.throughput and result.stats.latency]
    good = [result for result in answered if result.stats.error_rate <= _MAX_ERROR_RATE]
    return max(good or answered, key=lambda result: result.stats.throughput or 0.0, default=None)


def knee(results: Sequence[StageResult]) -> StageResult | None:
    """Return the knee: the stage beyond which latency grows faster than throughput.

    There the power, throughput divided by mean latency, is highest (Kleinrock, Power and deterministic rules of thumb
    for probabilistic problems in computer communications, 1979).

    Returns:
        None where the load does not rise from stage to stage, or fewer than three have figures.
    """
    valid = [result for result in results if result.stats.throughput and result.stats.latency]
    if len(valid) < 3 or not is_rising(valid):
        return None

    def power(result: StageResult) -> float:
        latency = result.stats.latency
        return (result.stats.throughput or 0.0) / latency.mean_ms if latency else 0.0

    return max(valid, key=power)


def load_of(result: StageResult) -> float | None:
    """Return the load of a stage: users, or requests per second; None if unknown."""
    stage = result.stage
    return stage.users if stage.users is not None else stage.rate if stage.rate is not None else result.offered


def is_rising(results: Sequence[StageResult]) -> bool:
    """Whether all stages have the same loop type and ascending load."""
    loads = [load_of(result) for result in results]
    numbers = [load for load in loads if load is not None]
    is_one_loop = len({result.loop for result in results}) == 1
    return is_one_loop and len(numbers) == len(loads) and all(before < after for before, after in pairwise(numbers))


def statistics_of(result: StageResult, model: str) -> ModelStatistics | None:
    """Return Triton's statistics of a model; for an ensemble, which has no queue, those of its slowest member."""
    members = [served for served in result.server_models if model in served.member_of]
    if members:
        return max(members, key=lambda served: served.queue_ms + served.compute_ms)
    return next((served for served in result.server_models if served.model == model), None)


def ending_sentence(report: LoadReport) -> str:
    """Describe how and why the test ended, and which part of the plan was not run."""
    reason = "" if report.ending == "interrupted" else report.reason.rstrip(".")
    ending = f"{_ENDINGS[report.ending]}: {reason}" if reason else _ENDINGS[report.ending]
    done, planned = len(report.stages), len(report.plan.stages)
    rest = f"; {planned - done} of {planned} stages did not begin" if done < planned else ""
    return f"{ending}{rest}."


def throughput_sentences(report: LoadReport) -> Iterator[str]:
    """Describe the best throughput, and the load beyond which latency grows faster."""
    best = best_stage(report)
    if best is None or best.stats.latency is None:
        if report.stages and all(result.is_valid for result in report.stages):
            yield "No request was answered."
        return
    label = "Throughput was" if len(report.stages) == 1 else "The best throughput was"
    samples = ""
    if best.stats.samples != best.stats.answered:
        samples = f" ({format_number(best.stats.samples_per_second or 0.0)} samples/s)"
    latency = f"p95 {format_number(best.stats.latency.p95_ms)} ms ({best.loop} loop)"
    yield f"{label} {format_number(best.stats.throughput or 0.0)} requests/s{samples} at {best.stage.label}, {latency}."
    bend = knee(report.stages)
    last = [result for result in report.stages if result.stats.latency][-1]
    if bend is not None and bend is not last and bend.stats.latency and last.stats.latency:
        before, after = format_number(bend.stats.latency.p95_ms), format_number(last.stats.latency.p95_ms)
        yield (
            f"Beyond {bend.stage.label} latency grows faster than throughput: p95 {before} ms there, {after} ms at"
            f" {last.stage.label}."
        )
    few = [result.stage.label for result in report.stages if 0 < result.stats.answered < _FEW_REQUESTS]
    if few:
        yield f"p99 says little at {format_list(few)}: fewer than {_FEW_REQUESTS} requests were answered."


def failure_sentences(report: LoadReport) -> Iterator[str]:
    """Describe how many requests failed, and how."""
    failed = sum(result.stats.failed for result in report.stages)
    requests = sum(result.stats.requests for result in report.stages)
    if not failed:
        return
    first = next(result for result in report.stages if result.stats.failed)
    kinds: dict[str, int] = {}
    for failure in (failure for result in report.stages for failure in result.failures):
        kinds[failure.kind] = kinds.get(failure.kind, 0) + failure.count
    counts = ", ".join(f"{kind} {count:,}" for kind, count in sorted(kinds.items(), key=lambda item: -item[1]))
    share = format_percent(failed / requests)
    yield f"{failed:,} of {requests:,} requests failed ({share}), first at {first.stage.label}: {counts}."


def saturation_sentences(report: LoadReport) -> Iterator[str]:
    """Describe the stages in which the client, not the server, was the limit."""
    saturated = [result for result in report.stages if not result.is_valid]
    if saturated:
        stages = format_list([result.stage.label for result in saturated])
        yield f"The client was saturated at {stages}, so that there are no figures: {saturated[0].client.saturated}."


def format_number(value: float) -> str:
    """Format a figure with three significant digits: 0.042, 1.23, 12.3, 1,234."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def format_percent(share: float) -> str:
    """Format a share: 0.02 %, 3.1 %, 100 %; never rounds to 0 % or 100 % unless exact."""
    if 0 < share < 0.0001:
        return "< 0.01 %"
    if 0.999 < share < 1:
        return "> 99.9 %"
    return f"{100 * share:.2g} %" if share < 0.0995 else f"{100 * share:.3g} %"


def format_list(names: Sequence[str], limit: int = 3) -> str:
    """Format a list: A, B and C; A, B and 7 more."""
    parts = list(names[:limit]) if len(names) <= limit else [*names[: limit - 1], f"{len(names) - limit + 1} more"]
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


@dataclass(frozen=True)
class TableLine:
    """Table row.

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
    """Return the table rows."""
    return [row for result in report.stages for row in _rows(result)]


def shown_columns(rows: list[TableLine]) -> list[int]:
    """Return the indexes of the columns that are not empty."""
    return [place for place in range(len(HEADS)) if any(row.cells[place] for row in rows)]


def terminal_table(report: LoadReport) -> Table:
    """Format the table for a terminal."""
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
    """Describe the columns in a sentence."""
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
    """Format a size in binary units: 412M, 1.3G."""
    return f"{count / 2**20:.0f}M" if count < 1000 * 2**20 else f"{count / 2**30:.1f}G"


def _plain(text: str) -> str:
    """Return text without terminal control characters."""
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)
