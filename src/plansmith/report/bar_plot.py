"""Plots of stacked bars, as places in an SVG: `plots.html` draws them, and `plots.css` colours them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from plansmith.report.line_plot import BOTTOM, LEFT, RIGHT, STYLES, TOP, Format, Tick, axis_from_zero

_BAR_PART = 0.7
"""The part of its place that a bar takes."""
_MAX_BAR = 40.0
_MAX_LABELS = 10


@dataclass(frozen=True)
class Bars:
    """The values of one kind, one for each place."""

    name: str
    values: Sequence[float]


@dataclass(frozen=True)
class Box:
    """A part of a bar."""

    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True)
class BarSeries:
    """Bars of one kind as they are drawn.

    Attributes:
        name: of the kind.
        total: the sum of its values, formatted.
        boxes: those that are not empty.
        style: its class in plots.css.
    """

    name: str
    total: str
    boxes: tuple[Box, ...]
    style: str

    @property
    def legend(self) -> str:
        """Its name and its total."""
        return f"{self.name}, {self.total}"


@dataclass(frozen=True)
class BarPlot:
    """A plot.

    Attributes:
        title: above it.
        description: what it shows, for those who do not see it.
        rules: horizontal lines, with the labels of the upright axis.
        notches: labels of the places.
        series: the kinds, from the bottom of a bar up.
    """

    title: str
    description: str
    rules: tuple[Tick, ...]
    notches: tuple[Tick, ...]
    series: tuple[BarSeries, ...]


def bar_plot(title: str, places: Sequence[str], bars: Sequence[Bars], format_value: Format) -> BarPlot:
    """A plot of counts, a bar for each place.

    Args:
        title: above the plot.
        places: their labels.
        bars: by kind; those of a place are stacked.
        format_value: for the axis, the legend and the description.
    """
    sums = [sum(kind.values[place] for kind in bars) for place in range(len(places))]
    up = axis_from_zero(sums, format_value, whole=True)
    step = (RIGHT - LEFT) / max(len(places), 1)
    width = min(step * _BAR_PART, _MAX_BAR)
    bases = [0.0] * len(places)
    series = []
    for number, kind in enumerate(bars):
        boxes = []
        for place, value in enumerate(kind.values):
            if value:
                low, high = (BOTTOM - (BOTTOM - TOP) * up.part(bases[place] + end) for end in (0.0, value))
                left = LEFT + step * (place + 0.5) - width / 2
                boxes.append(Box(round(left, 1), round(high, 1), round(width, 1), round(low - high, 1)))
                bases[place] += value
        series.append(BarSeries(kind.name, format_value(sum(kind.values)), tuple(boxes), f"line{number % STYLES + 1}"))
    every = -(-len(places) // _MAX_LABELS)
    return BarPlot(
        title=title,
        description=f"{title}: {', '.join(f'{kind.name} {kind.total}' for kind in series)}",
        rules=tuple(Tick(label, round(BOTTOM - (BOTTOM - TOP) * up.part(value), 1)) for value, label in up.marks),
        notches=tuple(
            Tick(label, round(LEFT + step * (place + 0.5), 1))
            for place, label in enumerate(places)
            if place % max(every, 1) == 0
        ),
        series=tuple(series),
    )
