"""Trade-off of the tried recipes: accuracy against lowered nodes and against speed, as plot and table."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from plansmith.formatting import format_bytes
from plansmith.records.model import SpeedRatio, Trial
from plansmith.report import numbers
from plansmith.report.plots import Label, Tick, place_labels

WIDTH, HEIGHT = 360, 300
LEFT, RIGHT, TOP, BOTTOM = 50, 350, 14, 256

_INSET = 14  # between the frame and the first and last place of a scale

_SMALLEST_DOT, _GROWTH = 3.0, 6.0

# Scores are drawn by their distance from 1, in powers of ten; nearer than this is 1.
_NEAREST = 1e-9
_FARTHEST = 2.0
_LONG_TICK = -4
_MOST_Y_TICKS = 7

_SPEED_STEPS = (0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0)
_MOST_SPEEDS = 5


@dataclass(frozen=True)
class Dot:
    """Trial dot: its position, its file size, and the interval of its speed."""

    number: int
    state: str
    x: float
    y: float
    radius: float
    low: float
    high: float


@dataclass(frozen=True)
class Panel:
    """One plot, with axes as in `line_plot`."""

    title: str
    x_title: str
    notches: tuple[Tick, ...]
    rules: tuple[Tick, ...]
    dots: tuple[Dot, ...]
    labels: tuple[Label, ...]
    parity: float | None


@dataclass(frozen=True)
class TrialRow:
    """Trial as formatted text; `state` is chosen, possible or refused."""

    number: int
    name: str
    state: str
    precision: str
    lowered: str
    size: str
    speed: str
    interval: str
    score: str
    worst: str
    problem: str


@dataclass(frozen=True)
class Frontier:
    """Plots and table of the trade-off."""

    panels: tuple[Panel, ...]
    rows: tuple[TrialRow, ...]
    settings: tuple[str, ...]


@dataclass(frozen=True)
class _Heights:
    """Score axis: heights by distance from 1 in powers of ten; exact scores above all others."""

    scores: Sequence[float]
    exponents: list[float] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "exponents", [math.log10(m) for m in map(_missing, self.scores) if m > _NEAREST])

    @property
    def worst(self) -> int:
        return math.ceil(max(self.exponents, default=0.0))

    @property
    def best(self) -> int:
        exponent = min(math.floor(min(self.exponents, default=-1.0)), self.worst - 1)
        return exponent - 1 if any(_missing(s) <= _NEAREST for s in self.scores) else exponent

    def at(self, score: float) -> float:
        missing = _missing(score)
        exponent = math.log10(missing) if missing > _NEAREST else float(self.best)
        return TOP + (BOTTOM - TOP) * (exponent - self.best) / (self.worst - self.best)

    def ticks(self) -> tuple[Tick, ...]:
        exact = any(_missing(s) <= _NEAREST for s in self.scores)
        step = math.ceil((self.worst - self.best) / _MOST_Y_TICKS)
        return tuple(
            Tick("1" if exact and e == self.best else _format_score(e), self.at(1.0 - 10.0**e if e > -9 else 1.0))
            for e in range(self.best, self.worst + 1, step)
        )


def frontier_of(trials: Sequence[Trial]) -> Frontier | None:
    """Return the plots and the table; None without trials."""
    if not trials:
        return None
    numbered = list(enumerate(trials, 1))
    timed = [(number, trial, trial.speed) for number, trial in numbered if trial.speed is not None]
    heights = _Heights([trial.score for trial in trials])
    panels = [_by_share(numbered, heights)]
    if timed:
        panels.append(_by_speed(timed, heights, max(trial.file_bytes for trial in trials)))
    return Frontier(
        panels=tuple(panels),
        rows=tuple(_row(number, trial) for number, trial in numbered),
        settings=tuple(dict.fromkeys(f"{speed.setting}; {speed.repeats} repeats" for _, _, speed in timed)),
    )


def _by_share(numbered: Sequence[tuple[int, Trial]], heights: _Heights) -> Panel:
    largest = max(trial.file_bytes for _, trial in numbered)
    dots = []
    for number, trial in numbered:
        x = _across(_share(trial))
        dots.append(Dot(number, _state(trial), x, heights.at(trial.score), _radius(trial, largest), x, x))
    ticks = tuple(Tick(f"{share} %", _across(share / 100)) for share in (0, 25, 50, 75, 100))
    return _panel("Accuracy and nodes lowered", "nodes lowered", ticks, heights, dots)


def _by_speed(timed: Sequence[tuple[int, Trial, SpeedRatio]], heights: _Heights, largest: int) -> Panel:
    lowest, highest = min(1.0, *(s.low for _, _, s in timed)), max(1.0, *(s.high for _, _, s in timed))
    step = next((s for s in _SPEED_STEPS if (highest - lowest) / s <= _MOST_SPEEDS), (highest - lowest) / _MOST_SPEEDS)
    first, last = math.floor(lowest / step), max(math.ceil(highest / step), math.floor(lowest / step) + 1)

    def place(ratio: float) -> float:
        return _across((ratio / step - first) / (last - first))

    dots = [
        Dot(
            number,
            _state(trial),
            place(speed.ratio),
            heights.at(trial.score),
            _radius(trial, largest),
            place(speed.low),
            place(speed.high),
        )
        for number, trial, speed in timed
    ]
    ticks = tuple(Tick(f"{step * n:.3g}×", place(step * n)) for n in range(first, last + 1))
    return _panel("Accuracy and speed", "speed beside FP32", ticks, heights, dots, parity=place(1.0))


def _panel(
    title: str,
    x_title: str,
    x_ticks: tuple[Tick, ...],
    heights: _Heights,
    dots: list[Dot],
    *,
    parity: float | None = None,
) -> Panel:
    labels = place_labels([(str(dot.number), dot.x, dot.y, dot.radius) for dot in dots], (LEFT, TOP, RIGHT, BOTTOM))
    # The larger ones first, so that none hides behind another; the chosen one on top of all.
    drawn = sorted(dots, key=lambda dot: (dot.state == "chosen", -dot.radius))
    notches, rules = (
        tuple(Tick(tick.label, round(tick.at, 1)) for tick in ticks) for ticks in (x_ticks, heights.ticks())
    )
    return Panel(title, x_title, notches, rules, tuple(drawn), tuple(labels), parity)


def _row(number: int, trial: Trial) -> TrialRow:
    speed = trial.speed
    return TrialRow(
        number=number,
        name=trial.name,
        state=_state(trial),
        precision=trial.precision.upper(),
        lowered=f"{trial.lowered:,} of {trial.lowered + trial.kept:,} lowered",
        size=format_bytes(trial.file_bytes),
        speed=numbers.times(speed.ratio) if speed else "",
        interval="; ".join(_interval(speed)) if speed else "",
        score=numbers.cosine(trial.score),
        worst=numbers.cosine(trial.worst),
        problem=trial.problem or "",
    )


def _interval(speed: SpeedRatio) -> Iterator[str]:
    yield f"{numbers.times(speed.low)} to {numbers.times(speed.high)}"
    if speed.verdict != "faster":
        yield speed.verdict


def _state(trial: Trial) -> str:
    if trial.chosen:
        return "chosen"
    return "refused" if trial.problem is not None else "possible"


def _share(trial: Trial) -> float:
    whole = trial.lowered + trial.kept
    return trial.lowered / whole if whole else 0.0


def _across(part: float) -> float:
    """Return the x position for a fraction of the scale, from 0 to 1."""
    return LEFT + _INSET + (RIGHT - LEFT - 2 * _INSET) * part


def _radius(trial: Trial, largest: int) -> float:
    """Return the radius for a file size: proportional to its square root, so that areas compare."""
    return _SMALLEST_DOT + _GROWTH * math.sqrt(trial.file_bytes / largest) if largest else _SMALLEST_DOT


def _missing(score: float) -> float:
    return _FARTHEST if not math.isfinite(score) else min(max(1 - score, _NEAREST), _FARTHEST)


def _format_score(exponent: int) -> str:
    """Format a score: 0, 0.9, 0.99, 0.999, 0.9999, 1 − 10⁻⁵, …."""
    if exponent > 0:
        return "−9"
    if exponent < _LONG_TICK:
        return f"1−{numbers.scientific(10.0**exponent)}"
    return numbers.limit_of_cosine(1 - 10.0**exponent)
