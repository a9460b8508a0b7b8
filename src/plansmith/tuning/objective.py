"""The goal of a search: an objective, and constraints that the configuration has to meet."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, Self

from pydantic import model_validator

from plansmith.records.model import Record
from plansmith.sagemaker.prices import cost_per_million
from plansmith.tuning.constraint import Constraint
from plansmith.tuning.trials.measurement import Measurement

Objective = Literal["throughput", "latency", "cost"]


class Goal(Record):
    """An objective and constraints.

    Attributes:
        objective: highest throughput, lowest p95 latency, or lowest cost of a million inferences.
        constraints: limits.
        usd_per_hour: price of the machine; the cost needs it.
        price_source: instance type, and where its price comes from.
    """

    objective: Objective = "throughput"
    constraints: tuple[Constraint, ...] = ()
    usd_per_hour: float | None = None
    price_source: str = ""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.objective == "cost" and not self._price > 0:
            raise ValueError("the objective cost needs a price per hour above 0")
        return self

    @property
    def label(self) -> str:
        """The objective in words."""
        if self.objective == "throughput":
            return "highest throughput"
        if self.objective == "latency":
            return "lowest p95 latency"
        source = f" ({self.price_source})" if self.price_source else ""
        return f"lowest cost of a million inferences, at ${self._price:g} per hour{source}"

    def value(self, measurement: Measurement) -> float:
        """The objective in its own unit: inferences per second, milliseconds, or US dollars per million inferences."""
        if self.objective == "throughput":
            return measurement.throughput if measurement.is_answered else 0.0
        if not measurement.is_answered:
            return math.inf
        if self.objective == "latency":
            return measurement.p95_ms
        return cost_per_million(self._price, measurement.throughput)

    def score(self, measurement: Measurement) -> float:
        """The logarithm of the objective, higher for better; minus infinity without answers."""
        value = self.value(measurement)
        if not 0 < value < math.inf:
            return -math.inf
        return math.log(value) if self.objective == "throughput" else -math.log(value)

    def gain(self, measurement: Measurement, baseline: Measurement) -> float:
        """How many times better a measurement is than another one."""
        return math.exp(self.score(measurement) - self.score(baseline))

    def violations(self, measurement: Measurement) -> tuple[float, ...]:
        """Of each constraint (`Constraint.violation`)."""
        return tuple(constraint.violation(measurement) for constraint in self.constraints)

    def violation(self, measurement: Measurement) -> float:
        """Of all constraints together; 0 where all are met."""
        return sum(max(0.0, violation) for violation in self.violations(measurement))

    def is_met(self, measurement: Measurement) -> bool:
        """Whether requests were answered, within all constraints."""
        return self.has_score(measurement) and self.violation(measurement) <= 0

    def has_score(self, measurement: Measurement | None) -> bool:
        """Whether a measurement can be compared with others."""
        return measurement is not None and math.isfinite(self.score(measurement))

    def rank(self, measurement: Measurement) -> tuple[float, float]:
        """Sort key, best first: what meets the constraints by score, then the rest by its violation."""
        return self.violation(measurement), -self.score(measurement)

    def format_value(self, measurement: Measurement) -> str:
        """The objective of a measurement with its unit."""
        if not measurement.is_answered:
            return "no answer"
        value = self.value(measurement)
        if self.objective == "throughput":
            return f"{value:.1f} inferences/s"
        return f"p95 {value:.3g} ms" if self.objective == "latency" else f"${value:.4g} per million inferences"

    def scored(self, measurements: Sequence[Measurement | None]) -> list[Measurement]:
        """Those that can be compared; where none can, all that there are."""
        known = [measurement for measurement in measurements if measurement is not None]
        return [measurement for measurement in known if self.has_score(measurement)] or known

    @property
    def _price(self) -> float:
        return self.usd_per_hour or 0.0
