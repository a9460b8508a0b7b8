"""Plots of lines over an axis, as places in an SVG: `plots.html` draws them, and `plots.css` colours them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

Points = Sequence[tuple[float, float | None]]
"""A place on the lower axis and the value there, in order; None breaks the line."""

Format = Callable[[float], str]
"""A value with its unit, as it is written beside an axis."""

WIDTH, HEIGHT = 360, 210
LEFT, RIGHT, TOP, BOTTOM = 52, 352, 12, 178
"""The frame of the lines in a plot, about CSS pixels: fits a phone."""

_MAX_RULES = 4
STYLES = 6
"""The lines that a plot can tell apart."""


@dataclass(frozen=True)
class Tick:
    """A labelled place on an axis."""

    label: str
    at: float


@dataclass(frozen=True)
class Axis:
    """An axis: its least and largest value, and those with a label."""

    low: float
    high: float
    marks: tuple[tuple[float, str], ...]

    def part(self, value: float) -> float:
        """Where a value is, from 0 to 1; at an end if it is outside."""
        return (min(max(value, self.low), self.high) - self.low) / (self.high - self.low)


@dataclass(frozen=True)
class Series:
    """Values with a name."""

    name: str
    points: Points


@dataclass(frozen=True)
class Line:
    """A series as it is drawn.

    Attributes:
        name: of the series.
        path: of the SVG; broken where there are no values.
        dots: places of values without neighbours.
        largest: its largest value, formatted.
        style: its class in plots.css.
    """

    name: str
    path: str
    dots: tuple[tuple[float, float], ...]
    largest: str
    style: str

    @property
    def legend(self) -> str:
        """Its name and its largest value."""
        return f"{self.name}, up to {self.largest}"


@dataclass(frozen=True)
class LinePlot:
    """A plot.

    Attributes:
        title: above it.
        description: what it shows, for those who do not see it.
        rules: horizontal lines, with the labels of the upright axis.
        notches: labels of the lower axis.
        lines: those that have values.
    """

    title: str
    description: str
    rules: tuple[Tick, ...]
    notches: tuple[Tick, ...]
    lines: tuple[Line, ...]


def axis_from_zero(values: Iterable[float], format_value: Format, *, whole: bool = False) -> Axis:
    """From 0 to the first rule above all values; `whole` for rules at whole numbers only."""
    largest = max(values, default=0.0)
    step = max(_nice_step(largest), 1.0 if whole else 0.0)
    count = max(math.ceil(largest / step - 1e-9), 1)
    return Axis(0.0, step * count, tuple((step * number, format_value(step * number)) for number in range(count + 1)))


def line_plot(
    title: str, series: Sequence[Series], across: Axis, up: Axis, format_value: Format, *, over: str = "time"
) -> LinePlot:
    """A plot of series.

    Args:
        title: above the plot.
        series: those without a value are left out.
        across: the lower axis.
        up: the upright axis.
        format_value: for the legend and the description.
        over: what the lower axis is.
    """
    lines = tuple(
        _line(one, f"line{number % STYLES + 1}", across, up, format_value)
        for number, one in enumerate(series)
        if any(value is not None for _, value in one.points)
    )
    return LinePlot(
        title=title,
        description=f"{title} over {over}: {', '.join(f'{line.name} up to {line.largest}' for line in lines)}",
        rules=tuple(Tick(label, _height(up.part(value))) for value, label in up.marks),
        notches=tuple(Tick(label, _across(across.part(place))) for place, label in across.marks),
        lines=lines,
    )


def _nice_step(largest: float) -> float:
    """1, 2 or 5 times a power of ten, so that few rules reach the largest value."""
    if largest <= 0:
        return 1.0
    rough = largest / _MAX_RULES
    power = 10.0 ** math.floor(math.log10(rough))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))


def _across(part: float) -> float:
    return round(LEFT + (RIGHT - LEFT) * part, 1)


def _height(part: float) -> float:
    return round(BOTTOM - (BOTTOM - TOP) * part, 1)


def _line(series: Series, style: str, across: Axis, up: Axis, format_value: Format) -> Line:
    runs = [
        [(_across(across.part(place)), _height(up.part(value))) for place, value in run] for run in _runs(series.points)
    ]
    return Line(
        name=series.name,
        path=" ".join("M" + " L".join(f"{x:g} {y:g}" for x, y in run) for run in runs if len(run) > 1),
        dots=tuple(place for run in runs if len(run) == 1 for place in run),
        largest=format_value(max(value for _, value in series.points if value is not None)),
        style=style,
    )


def _runs(points: Points) -> Iterator[list[tuple[float, float]]]:
    """Values that follow each other without a break."""
    run: list[tuple[float, float]] = []
    for place, value in points:
        if value is not None:
            run.append((place, value))
        elif run:
            yield run
            run = []
    if run:
        yield run
