"""Line plots and stacked bar plots as SVG coordinates: `plots.html` draws them, and `plots.css` colours them."""

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

_BAR_PART = 0.7
"""The part of its place that a bar takes."""

_MAX_BAR = 40.0
_MAX_LABELS = 10
LabelBox = tuple[float, float, float, float]


@dataclass(frozen=True)
class Tick:
    """Labelled tick on an axis."""

    label: str
    at: float


@dataclass(frozen=True)
class Axis:
    """Axis: its minimum and maximum, and its ticks."""

    low: float
    high: float
    marks: tuple[tuple[float, str], ...]

    def part(self, value: float) -> float:
        """Return the position of a value from 0 to 1, clamped to the ends."""
        return (min(max(value, self.low), self.high) - self.low) / (self.high - self.low)


@dataclass(frozen=True)
class Series:
    """Named series of values."""

    name: str
    points: Points


@dataclass(frozen=True)
class Line:
    """Series as drawn.

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
        """The name and the largest value of the series."""
        return f"{self.name}, up to {self.largest}"


@dataclass(frozen=True)
class LinePlot:
    """Line plot.

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
    """Return an axis from 0 to the first tick above all values; `whole` for ticks at whole numbers only."""
    largest = max(values, default=0.0)
    step = max(_nice_step(largest), 1.0 if whole else 0.0)
    count = max(math.ceil(largest / step - 1e-9), 1)
    return Axis(0.0, step * count, tuple((step * number, format_value(step * number)) for number in range(count + 1)))


def line_plot(
    title: str, series: Sequence[Series], across: Axis, up: Axis, format_value: Format, *, over: str = "time"
) -> LinePlot:
    """Return a line plot of series.

    Args:
        title: above the plot.
        series: those without a value are left out.
        across: the lower axis.
        up: the upright axis.
        format_value: for the legend and the description.
        over: what the lower axis is.
    """
    lines = tuple(
        _line(curve, f"line{number % STYLES + 1}", across, up, format_value)
        for number, curve in enumerate(series)
        if any(value is not None for _, value in curve.points)
    )
    return LinePlot(
        title=title,
        description=f"{title} over {over}: {', '.join(f'{line.name} up to {line.largest}' for line in lines)}",
        rules=tuple(Tick(label, _height(up.part(value))) for value, label in up.marks),
        notches=tuple(Tick(label, _across(across.part(place))) for place, label in across.marks),
        lines=lines,
    )


def _nice_step(largest: float) -> float:
    """Return 1, 2 or 5 times a power of ten, so that few grid lines reach the largest value."""
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
    """Yield runs of consecutive values without a gap."""
    run: list[tuple[float, float]] = []
    for place, value in points:
        if value is not None:
            run.append((place, value))
        elif run:
            yield run
            run = []
    if run:
        yield run


@dataclass(frozen=True)
class Bars:
    """Bar values of one kind, one per position."""

    name: str
    values: Sequence[float]


@dataclass(frozen=True)
class Box:
    """Segment of a stacked bar."""

    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True)
class BarSeries:
    """Bars of one kind as drawn.

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
        """The name and the total of the series."""
        return f"{self.name}, {self.total}"


@dataclass(frozen=True)
class BarPlot:
    """Stacked bar plot.

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
    """Return a plot of counts, with a bar per position.

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


CHARACTER, LINE = 7.0, 11.0


@dataclass(frozen=True)
class Label:
    """Text label with the center of its box."""

    text: str
    x: float
    y: float


def place_labels(dots: Sequence[tuple[str, float, float, float]], frame: LabelBox) -> list[Label]:
    """Place each label next to its dot where it overlaps the fewest other elements.

    Args:
        dots: text, place and radius of each.
        frame: left, top, right and bottom of the plot; labels outside of it are a last resort.
    """
    obstacles = [(x - r, y - r, x + r, y + r) for _, x, y, r in dots]
    placed: list[Label] = []
    label_boxes: list[LabelBox] = []
    for own, (text, x, y, radius) in enumerate(dots):
        wide = CHARACTER * len(text)
        others = [box for place, box in enumerate(obstacles) if place != own] + label_boxes

        def cost(place: tuple[float, float], wide: float = wide, others: list[LabelBox] = others) -> float:
            box = _box(place, wide)
            return sum(_overlap(box, obstacle) for obstacle in others) + 10 * _outside(box, frame)

        best = min(_places(x, y, radius, wide), key=cost)
        placed.append(Label(text, *best))
        label_boxes.append(_box(best, wide))
    return placed


def _places(x: float, y: float, radius: float, wide: float) -> Iterator[tuple[float, float]]:
    """Yield label box centers around a dot, most legible first; then the same farther away."""
    for far in (2.0, 9.0, 16.0):
        aside, above = radius + far + wide / 2, radius + far + LINE / 2
        yield from ((x + aside, y), (x, y - above), (x - aside, y), (x, y + above))
        slanted_x, slanted_y = 0.75 * aside, 0.75 * above
        yield from ((x + slanted_x, y - slanted_y), (x + slanted_x, y + slanted_y))
        yield from ((x - slanted_x, y - slanted_y), (x - slanted_x, y + slanted_y))


def _box(middle: tuple[float, float], wide: float) -> LabelBox:
    x, y = middle
    return (x - wide / 2, y - LINE / 2, x + wide / 2, y + LINE / 2)


def _overlap(first: LabelBox, second: LabelBox) -> float:
    wide = min(first[2], second[2]) - max(first[0], second[0])
    high = min(first[3], second[3]) - max(first[1], second[1])
    return max(wide, 0.0) * max(high, 0.0)


def _outside(box: LabelBox, frame: LabelBox) -> float:
    return sum(
        max(beyond, 0.0) for beyond in (frame[0] - box[0], frame[1] - box[1], box[2] - frame[2], box[3] - frame[3])
    )
