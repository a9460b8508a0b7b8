"""How near the answers of plans are at the corners of their profiles, and how fast the plans are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from plansmith.records.validation import AGAINST, BaselineSpeed, PlanSpeed, ValidationReport, baseline_name
from plansmith.report import margins, numbers
from plansmith.report.accuracy import ShapeRow, limits_of


@dataclass(frozen=True)
class CornerRow:
    """One corner of a profile: the plan's answer beside a graph's; `place` is empty behind another graph's row."""

    place: str
    beside: str
    row: ShapeRow


@dataclass(frozen=True)
class CornerTable:
    """One output of one plan at all corners, and its limits."""

    plan: str
    output: str
    limits: tuple[str, str, str]
    rows: tuple[CornerRow, ...]


@dataclass(frozen=True)
class SpeedRow:
    """Something beside the plan, or the plan itself: then without a ratio; `problem` in place of figures."""

    name: str
    time: str
    note: str
    ratio: str
    interval: str
    verdict: str
    bar: str
    problem: str


@dataclass(frozen=True)
class SpeedTable:
    """A plan at the opt shapes of one profile; `settings`: what was on, a line each."""

    plan: str
    profile: str
    shapes: str
    rows: tuple[SpeedRow, ...]
    settings: tuple[str, ...]


def corner_tables(validation: ValidationReport) -> Iterator[CornerTable]:
    """A table for every output of every plan that ran."""
    for plan, output in dict.fromkeys((c.plan, c.found.output) for c in validation.at_corners):
        allowed = validation.tolerances[output]
        found = [c for c in validation.at_corners if (c.plan, c.found.output) == (plan, output)]
        places = ["", *(f"{c.corner} of {c.profile}" for c in found)]
        rows = [
            CornerRow(
                place="" if place == before else place,
                beside=AGAINST[c.against],
                row=ShapeRow(
                    case=c.corner,
                    shape=numbers.shape(c.found.shape),
                    probe=False,
                    margins=margins.of_comparison(c.found, allowed) if c.found.elements else (),
                    failures=c.found.failures,
                ),
            )
            for c, (before, place) in zip(found, pairwise(places), strict=True)
        ]
        yield CornerTable(plan, output, limits_of(allowed), tuple(rows))


def speed_table(speed: PlanSpeed) -> SpeedTable:
    """The plan first, then what stands beside it."""
    slowest = max([speed.median_ms, *(b.median_ms for b in speed.baselines if b.median_ms is not None)])
    quantiles = (("p95", speed.p95_ms), ("p99", speed.p99_ms))
    told = [f"{name} {numbers.milliseconds(value)}" for name, value in quantiles if value is not None]
    own = SpeedRow(
        name=f"This plan, {speed.precision.upper()}",
        time=numbers.milliseconds(speed.median_ms),
        note=", ".join([*told, f"of {numbers.count(speed.repeats, 'run')}"]),
        ratio="",
        interval="",
        verdict="",
        bar=numbers.width(speed.median_ms, slowest),
        problem="",
    )
    settings = [f"This plan: {speed.setting}", *(f"{_named(b)}: {b.setting}" for b in speed.baselines if b.speed)]
    return SpeedTable(
        plan=speed.plan,
        profile=speed.profile,
        shapes=speed.shapes,
        rows=(own, *(_beside(other, slowest) for other in speed.baselines)),
        settings=tuple(settings),
    )


def _beside(other: BaselineSpeed, slowest: float) -> SpeedRow:
    found = other.speed
    return SpeedRow(
        name=_named(other),
        time="" if other.median_ms is None else numbers.milliseconds(other.median_ms),
        note="",
        ratio=numbers.times(found.ratio) if found else "",
        interval=f"{numbers.times(found.low)} to {numbers.times(found.high)}" if found else "",
        verdict=found.verdict if found else "",
        bar=numbers.width(other.median_ms, slowest),
        problem="" if found else other.problem,
    )


def _named(other: BaselineSpeed) -> str:
    name = baseline_name(other)
    return f"{name[0].upper()}{name[1:]}" if other.kind == "plan" else name
