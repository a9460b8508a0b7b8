"""Layer-wise error after each node, in graph order, as a chart and a table."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from plansmith.records.model import HighPrecisionNode, LayerError
from plansmith.report import numbers

WORST = 5

# Places in the chart's own units; it is stretched to the width of the page, its words stand beside it.
WIDTH, HEIGHT = 1000, 200
_STEPS_DB = (5, 10, 20, 50)
_MOST_TICKS = 5


@dataclass(frozen=True)
class LayerRow:
    """Node with its signal-to-noise ratio; the worst ones have a `rank` from 1."""

    node: str
    op_type: str
    state: str
    sqnr: str
    rank: int | None


@dataclass(frozen=True)
class Tick:
    """Chart grid line and its position from the top, in percent."""

    label: str
    top: str


@dataclass(frozen=True)
class Mark:
    """Position of one of the worst nodes, in percent of the chart."""

    rank: int
    left: str
    top: str


@dataclass(frozen=True)
class LayerChart:
    """Layer chart: dots of lowered and of kept nodes as SVG paths, the connecting line, and the legend."""

    lowered: str
    kept: str
    line: str
    ticks: tuple[Tick, ...]
    marks: tuple[Mark, ...]
    worst: tuple[LayerRow, ...]
    rows: tuple[LayerRow, ...]
    lowered_count: str
    kept_count: str


@dataclass(frozen=True)
class HighPrecisionGroup:
    """Nodes kept in high precision for the same reason."""

    reason: str
    count: str
    operators: str
    nodes: tuple[HighPrecisionNode, ...]


def layer_chart(layers: Sequence[LayerError]) -> LayerChart | None:
    """Return the chart and its table; None if no layers were compared."""
    if not layers:
        return None
    levels = [_bounded(layer.sqnr_db) for layer in layers]
    bottom, top, step = _scale(levels)
    across = [WIDTH * (place + 0.5) / len(layers) for place in range(len(layers))]
    down = [HEIGHT * (top - level) / (top - bottom) for level in levels]
    order = sorted(range(len(layers)), key=levels.__getitem__)[:WORST]
    ranks = {place: rank for rank, place in enumerate(order, 1)}
    rows = tuple(_row(layer, ranks.get(place)) for place, layer in enumerate(layers))
    points = list(zip(across, down, strict=True))
    return LayerChart(
        lowered=_dots([p for p, layer in zip(points, layers, strict=True) if layer.lowered]),
        kept=_dots([p for p, layer in zip(points, layers, strict=True) if not layer.lowered]),
        line="M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points),
        ticks=tuple(
            Tick(f"{level:g}".replace("-", "−"), f"{100 * (top - level) / (top - bottom):.2f}%")
            for level in range(bottom, top + 1, step)
        ),
        marks=tuple(
            Mark(rank, f"{100 * across[place] / WIDTH:.2f}%", f"{100 * down[place] / HEIGHT:.2f}%")
            for place, rank in ranks.items()
        ),
        worst=tuple(rows[place] for place in order),
        rows=rows,
        lowered_count=f"{sum(layer.lowered for layer in layers):,}",
        kept_count=f"{sum(not layer.lowered for layer in layers):,}",
    )


def high_precision_groups(entries: Sequence[HighPrecisionNode]) -> tuple[HighPrecisionGroup, ...]:
    """Group the nodes by the reason they were kept, most frequent first."""
    by_reason: dict[str, list[HighPrecisionNode]] = {}
    for node in entries:
        by_reason.setdefault(node.reason, []).append(node)
    groups = sorted(by_reason.items(), key=lambda item: (-len(item[1]), item[0]))
    return tuple(
        HighPrecisionGroup(reason, f"{len(nodes):,}", ", ".join(sorted({n.op_type for n in nodes})), tuple(nodes))
        for reason, nodes in groups
    )


def _row(layer: LayerError, rank: int | None) -> LayerRow:
    state = "lowered" if layer.lowered else "kept"
    return LayerRow(layer.node, layer.op_type, state, numbers.decibels(layer.sqnr_db), rank)


def _bounded(sqnr_db: float) -> float:
    return 0.0 if math.isnan(sqnr_db) else min(max(sqnr_db, -50.0), numbers.EXACT_DB)


def _scale(levels: Sequence[float]) -> tuple[int, int, int]:
    """Return bottom, top and step of the scale, rounded around all levels; 0 dB is always shown."""
    low, high = min(0.0, *levels), max(10.0, *levels)
    step = next((s for s in _STEPS_DB if (high - low) / s <= _MOST_TICKS), _STEPS_DB[-1])
    return step * math.floor(low / step), step * math.ceil(high / step), step


def _dots(points: Sequence[tuple[float, float]]) -> str:
    """Return zero-length lines, which round caps render as dots of one size, however the chart is stretched."""
    return "".join(f"M{x:.1f} {y:.1f}h0" for x, y in points)
