"""A comparison in the terminal, and as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from plansmith.cli.text import count, table, without_empty_columns
from plansmith.formatting import format_bytes

if TYPE_CHECKING:
    from plansmith.tuning.comparison.cells import CellRun
    from plansmith.tuning.comparison.figures import CellFigures, Comparison, Row
    from plansmith.tuning.comparison.published import PublishedFigures

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
    """A table for each model, what others published of it, and what a reader has to know."""
    from plansmith.tuning.comparison.published import source_of

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
    """A round of a cell in a few words."""
    rates = [level.samples_per_second for level in run.levels if level.samples_per_second]
    answered = f"up to {max(rates):.1f} samples/s" if rates else "no figures"
    return f"{answered}, up to {count(run.levels[-1].users, 'user') if run.levels else 'no users'}"


def comparison_csv(comparison: Comparison) -> str:
    """A line for each cell; what is unknown is empty, and differences are percentages."""
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
    """The difference from the first row in brackets; ~ before one that may be chance."""
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
