"""Progress display of a comparison on standard error.

A line per measured cell, and a moving line for the current one.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from rich.text import Text

from plansmith.cli.output import table, without_empty_columns
from plansmith.cli.tune.progress import CompileSteps, WithActivity
from plansmith.formatting import count, format_bytes, format_seconds
from plansmith.tuning.comparison.compare import CompareObserver

if TYPE_CHECKING:
    from plansmith.loadtest.runner.load_runner import Progress
    from plansmith.tuning.comparison.cells import Cell, CellRun
    from plansmith.tuning.comparison.compare import ComparisonRequest
    from plansmith.tuning.comparison.figures import CellFigures, Comparison, PublishedFigures, Row
    from plansmith.tuning.configuration import Build


_COLUMNS = ("cell", "p50", "p95", "samples/s", "users", "p95 there", "max users", "memory", "GPU memory")
_PUBLISHED_COLUMNS = ("published", "on", "latency", "p50", "p95", "requests/s", "users", "copies", "load")
_LEGEND = (
    "p50, p95: with the fewest users; samples/s: the most without failures; max users: before the first failure or the"
    " latency limit; in brackets the difference from the first row, ~ where it may be chance"
)
_DIFFERENCES = ("p50_ms", "p95_ms", "samples_per_second", "max_users", "memory_bytes", "usd_per_million")
_CERTAIN = {"max_users", "memory_bytes", "gpu_memory_bytes"}
"""Figures whose differences have no interval."""


def comparison_lines(comparison: Comparison) -> Iterator[str]:
    """Return a table per model, with published results of others and notes for the reader."""
    from plansmith.tuning.comparison.figures import source_of

    for model in comparison.models:
        rows = comparison.rows_of(model)
        yield model
        head = [*_COLUMNS, *_cost_columns(comparison)]
        measured = [_cells(comparison, row) for row in rows if row.figures]
        if measured:
            yield from _indented(without_empty_columns([head, *measured]))
        for row in rows:
            if row.problem:
                yield f"  ! {row.cell.label} failed: {row.problem}"
            elif row.figures and row.figures.ended_by:
                yield f"  ! {row.cell.label} held up to {count(row.figures.max_users, 'user')}; {row.figures.ended_by}"
        published = [figures for figures in comparison.published if figures.model == model]
        if published:
            yield from _indented(without_empty_columns([_PUBLISHED_COLUMNS, *map(_published_cells, published)]))
            sources = {source_of(figures) for figures in published}
            yield from (f"  {source.where} ({source.date}): {source.how}" for source in sorted(sources, key=str))
        yield ""
    yield _LEGEND
    yield f"measured on {comparison.host}, in {count(comparison.rounds, 'round')}"
    if comparison.price is not None:
        price = comparison.price
        instance = f"{price.instance_type}, " if price.instance_type else ""
        yield f"costs: {instance}${price.usd_per_hour:g} an hour ({price.source})"
    yield from (f"! {note}" for note in comparison.notes)


def format_run(run: CellRun) -> str:
    """Format one round of a cell briefly."""
    rates = [level.samples_per_second for level in run.levels if level.samples_per_second]
    answered = f"up to {max(rates):.1f} samples/s" if rates else "no figures"
    return f"{answered}, up to {count(run.levels[-1].users, 'user') if run.levels else 'no users'}"


def comparison_csv(comparison: Comparison) -> str:
    """Return CSV with a line per cell; unknown values are empty, differences are percentages."""
    from plansmith.tuning.comparison.figures import CellFigures

    figures = list(CellFigures.model_fields)
    differences = [f"{name}_percent" for name in _DIFFERENCES]
    costs = ("usd_per_million", "target_rate", "needed_instances", "usd_per_hour")
    cell = ("model", "engine", "precision", "dynamic_batching", "instances")
    columns = (*cell, *figures, *differences, *costs, "problem")
    stream = io.StringIO()
    writer = csv.DictWriter(stream, columns, lineterminator="\n")
    writer.writeheader()
    for row in comparison.rows:
        writer.writerow(_record(row))
    return stream.getvalue()


def _record(row: Row) -> dict[str, Any]:
    cost = row.cost
    return {
        "model": row.cell.model,
        "engine": str(row.cell.engine),
        "precision": row.precision,
        "dynamic_batching": "on" if row.cell.batching else "off",
        "instances": row.cell.instances,
        **(row.figures.model_dump() if row.figures else {}),
        **{
            f"{name}_percent": round(difference.percent, 3)
            for name, difference in row.differences.items()
            if name in _DIFFERENCES
        },
        "usd_per_million": cost.usd_per_million if cost else None,
        "target_rate": cost.target_rate if cost else None,
        "needed_instances": cost.instances if cost else None,
        "usd_per_hour": cost.usd_per_hour if cost else None,
        "problem": row.problem,
    }


def _cost_columns(comparison: Comparison) -> list[str]:
    if comparison.price is None:
        return []
    rates = [row.cost.target_rate for row in comparison.rows if row.cost and row.cost.target_rate]
    return ["$/million", *(f"for {rate:g}/s" for rate in rates[:1])]


def _cells(comparison: Comparison, row: Row) -> list[str]:
    label = row.cell.label
    if row.precision:
        engine, _, rest = label.partition(", ")
        label = f"{engine} {row.precision.upper()}, {rest}"
    width = len(_COLUMNS) + len(_cost_columns(comparison))
    figures = row.figures
    assert figures is not None
    cells = [
        label,
        _figure(row, "p50_ms", _milliseconds),
        _figure(row, "p95_ms", _milliseconds),
        _figure(row, "samples_per_second", _rate),
        str(figures.at_users or ""),
        _milliseconds(figures.loaded_p95_ms) if figures.loaded_p95_ms is not None else "",
        _users(row, figures),
        _figure(row, "memory_bytes", format_bytes),
        _figure(row, "gpu_memory_bytes", format_bytes),
    ]
    if row.cost is not None:
        cells.append(_dollars(row.cost.usd_per_million) + _difference(row, "usd_per_million"))
        if row.cost.instances is not None:
            cells.append(f"{row.cost.instances} for {_dollars(row.cost.usd_per_hour or 0)}/h")
    return cells + [""] * (width - len(cells))


def _figure(row: Row, name: str, form: Callable[[Any], str]) -> str:
    value = getattr(row.figures, name)
    return "" if value is None else form(value) + _difference(row, name)


def _users(row: Row, figures: CellFigures) -> str:
    whole = "" if figures.ended_by else " (all)"
    return f"{figures.max_users}{whole}" + (_difference(row, "max_users") if figures.ended_by else "")


def _difference(row: Row, name: str) -> str:
    """Format the difference from the first row in brackets, with ~ if it may be due to chance."""
    difference = row.differences.get(name)
    if difference is None:
        return ""
    chance = "" if name in _CERTAIN or difference.is_significant else "~"
    digits = 1 if abs(difference.percent) < 10 else 0
    return f" ({chance}{difference.percent:+,.{digits}f} %)"


def _published_cells(figures: PublishedFigures) -> list[str]:
    hardware = f"{figures.instance_type} ({figures.hardware})" if figures.instance_type else figures.hardware
    latencies = (figures.latency_ms, figures.p50_ms, figures.p95_ms)
    return [
        figures.engine,
        hardware,
        *("" if value is None else _milliseconds(value) for value in latencies),
        "" if figures.requests_per_second is None else _rate(figures.requests_per_second),
        "" if figures.users is None else f"{figures.max_users} of {figures.users}",
        str(figures.models_loaded or ""),
        figures.load,
    ]


def _indented(rows: list[Any]) -> Iterator[str]:
    return (f"  {line}" for line in table(rows))


def _milliseconds(value: float) -> str:
    digits = 0 if value >= 100 else 2 if value < 1 else 1
    return f"{value:,.{digits}f} ms"


def _rate(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"


def _dollars(value: float) -> str:
    digits = 4 if value < 0.1 else 3 if value < 1 else 2
    return f"${value:,.{digits}f}"


class CompareProgress(WithActivity, CompareObserver):
    """Progress display of a comparison; a context manager.

    Args:
        request: the comparison.
        quiet: show nothing.
    """

    def __init__(self, request: ComparisonRequest, *, quiet: bool) -> None:
        super().__init__(quiet=quiet)
        self.listener = CompileSteps(self)
        self._total = len(request.cells) * request.rounds
        self._number = 0
        self._rounds = request.rounds
        self._counts: dict[Cell, int] = {}
        self._load_seconds = request.load_seconds

    def compiling(self, model: str, build: Build | None) -> None:
        """Report that a build is being compiled."""
        self.label = f"{model}: compiling {build.label if build is not None else 'as its spec has it'}"
        self.activity("")

    def measuring(self, cell: Cell, round_number: int) -> None:
        """Report that a cell is being measured."""
        if not self._number:
            self.print(f"  {self._total} load tests, {format_seconds(self._load_seconds)} of load at most")
        self.label = f"{self._number + 1} of {self._total}: {cell.model}, {cell.label}, round {round_number}"
        self.activity("")

    def measured(self, cell: Cell, run: CellRun | None, problem: str, *, reused: bool) -> None:
        """Print a line for a cell that was measured or failed."""
        self._number += 1
        if problem:  # no further round of it
            self._total -= self._rounds - self._counts.get(cell, 0) - 1
        self._counts[cell] = self._counts.get(cell, 0) + 1
        state, style = ("failed", "red") if problem else ("done", "green")
        line = Text.assemble((f"  {self._number:>3}/{self._total} {state:<6} ", style), f"{cell.model}, {cell.label}")
        if problem or run is not None:
            line.append(f"; {problem or (format_run(run) if run else '')}", "dim")
        if reused:
            line.append(", measured before", "dim")
        self.print(line)

    def load(self, progress: Progress) -> None:
        """Report progress of the load."""
        self.activity(f"{progress.throughput:.0f} answers/s, p95 {progress.p95_ms:.0f} ms")
