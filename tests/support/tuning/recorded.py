"""A full grid that a real server answered, recorded by `python -m benchmarks.tuning grid`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

from plansmith.records.model import Record
from plansmith.tuning.configuration import Configuration, SearchSpace
from plansmith.tuning.objective import Goal
from plansmith.tuning.trials.history import Measurement, TrialFailed

RECORDINGS = Path(__file__).parents[2] / "tuning"
MIB = 2**20

Row = tuple[float, float, int]
"""Throughput, p95 in milliseconds, memory in MiB."""


class RecordedGrid(Record):
    """A full grid.

    Attributes:
        about: model, load and machine in words.
        space: all configurations.
        current: the configuration that a compile makes by default.
        passes: each a row for every configuration in the order of the space; None where it could not be served.
    """

    about: str
    space: SearchSpace
    current: Configuration
    passes: tuple[tuple[Row | None, ...], ...]

    def only(self, number: int) -> RecordedGrid:
        """The grid with one pass."""
        return self.model_copy(update={"passes": (self.passes[number],)})

    def measure(self, configuration: Configuration, seconds: float = 3.0) -> Measurement:
        """A `Benchmark`: what the first pass recorded.

        Raises:
            TrialFailed: it was not served.
        """
        points = list(self.space.points)
        number = points.index(self.space.configuration_at(self.space.nearest_point(configuration)))
        row = self.passes[0][number]
        if row is None:
            raise TrialFailed("it was not served when the grid was recorded")
        return measurement_from_row(row, seconds)

    def share_of_best(self, goal: Goal, configuration: Configuration) -> float:
        """The objective of a configuration in parts of the best of the whole grid."""
        rows = [row for row in self.passes[0] if row is not None]
        best = min((measurement_from_row(row, 3.0) for row in rows), key=goal.rank)
        return goal.gain(self.measure(configuration), best)


def recording(model: str) -> Path:
    """The file of a model's grid."""
    return RECORDINGS / f"recorded_{model}.json"


@cache
def recorded_grid(model: str) -> RecordedGrid:
    """A recording of the tests."""
    return RecordedGrid.model_validate_json(recording(model).read_text())


def row_of(measurement: Measurement | None) -> Row | None:
    """What is recorded, to four digits."""
    if measurement is None:
        return None
    rate, p95 = (float(f"{value:.4g}") for value in (measurement.throughput, measurement.p95_ms))
    return rate, p95, (measurement.memory_bytes or 0) // MIB


def measurement_from_row(row: Sequence[float], seconds: float) -> Measurement:
    """What a row says."""
    rate, p95, memory = row
    return Measurement(
        seconds=seconds,
        requests=1000,
        throughput=rate,
        p50_ms=p95,
        p90_ms=p95,
        p95_ms=p95,
        p99_ms=p95,
        memory_bytes=int(memory) * MIB,
    )
