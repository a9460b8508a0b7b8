"""Search goal: an objective, and constraints that the configuration has to meet."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Literal, Self

from pydantic import model_validator

from plansmith.errors import UsageError
from plansmith.formatting import format_bytes
from plansmith.records.model import Record
from plansmith.sagemaker.prices import cost_per_million
from plansmith.tuning.trials.history import Measurement

Quantity = Literal["p50", "p90", "p95", "p99", "error_rate", "memory", "throughput"]

_LATENCIES = ("p50", "p90", "p95", "p99")
_QUANTITIES = (*_LATENCIES, "error_rate", "memory", "throughput")
_FORM = re.compile(r"\s*([A-Za-z_0-9]+?)\s*(<=|>=|<|>|==|=)\s*([0-9]*\.?[0-9]+(?:[eE][-+]?[0-9]+)?)\s*(\S*)\s*")
_UNITS: dict[str, dict[str, float]] = {
    "latency": {"us": 1e-3, "µs": 1e-3, "ms": 1.0, "s": 1e3},
    "error_rate": {"": 1.0, "%": 0.01},
    "memory": {"K": 2**10, "M": 2**20, "G": 2**30, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30},
    "throughput": {"": 1.0, "/s": 1.0},
}
_EXAMPLES = "p95<50ms, error_rate<1%, memory<2G or throughput>100"
_MIN_ERROR_RATE = 1e-3
"""The unit of a violation where the limit of the error rate is smaller, such as 0."""

Objective = Literal["throughput", "latency", "cost"]


class Constraint(Record):
    """Constraint: a lower limit on throughput, or an upper limit on anything else.

    Attributes:
        quantity: what is limited.
        limit: milliseconds, a share, bytes, or inferences per second.
        text: as it was typed.
    """

    quantity: Quantity
    limit: float
    text: str

    def value(self, measurement: Measurement) -> float | None:
        """Return the constrained quantity of a measurement; None if unknown."""
        if self.quantity == "error_rate":
            return measurement.error_rate
        if self.quantity == "memory":
            return measurement.memory_bytes
        if self.quantity == "throughput":
            return measurement.throughput
        return float(getattr(measurement, f"{self.quantity}_ms"))

    def violation(self, measurement: Measurement) -> float:
        """Return the violation by a measurement: 0 or less within the limit, else roughly relative to the limit.

        For latency, memory and throughput, the logarithm of the ratio. Without answers, infinite.
        """
        value = self.value(measurement)
        if value is None:
            return math.inf
        if self.quantity == "error_rate":
            return (value - self.limit) / max(self.limit, _MIN_ERROR_RATE)
        if not measurement.is_answered:
            return math.inf
        ratio = math.log(max(value, 1e-12) / max(self.limit, 1e-12))
        return -ratio if self.quantity == "throughput" else ratio

    def format_value(self, measurement: Measurement) -> str:
        """Format the constrained quantity of a measurement, such as "p95 61.3 ms"."""
        value = self.value(measurement)
        if value is None:
            return f"{self.quantity} unknown"
        if self.quantity == "error_rate":
            return f"error_rate {value:.2%}"
        if self.quantity == "memory":
            return f"memory {format_bytes(int(value))}"
        if self.quantity == "throughput":
            return f"throughput {value:.1f}/s"
        return f"{self.quantity} {value:.3g} ms"


FEW_ERRORS = Constraint(quantity="error_rate", limit=0.01, text="error_rate<1%")
"""Applies where no other limit of the error rate is given."""


def parse_constraints(texts: Sequence[str]) -> tuple[Constraint, ...]:
    """Parse the constraints of a command line, and add one on the error rate.

    Raises:
        UsageError: lists what is wrong with each of them.
    """
    constraints: list[Constraint] = []
    problems: list[str] = []
    for text in texts:
        try:
            constraints.append(parse_constraint(text))
        except UsageError as error:
            problems.append(error.message)
    quantities = [constraint.quantity for constraint in constraints]
    problems += [
        f"{name} has two limits" for name in sorted({name for name in quantities if quantities.count(name) > 1})
    ]
    if problems:
        raise UsageError("\n  ".join(["--constraint:", *problems]), remedy=f"write it like {_EXAMPLES}")
    return tuple(constraints) if "error_rate" in quantities else (*constraints, FEW_ERRORS)


def parse_constraint(text: str) -> Constraint:
    """Parse one constraint.

    Raises:
        UsageError: says what is wrong with it.
    """
    remedy = f"write it like {_EXAMPLES}"
    match = _FORM.fullmatch(text)
    if match is None:
        raise UsageError(f"{text!r} is no constraint", remedy=remedy)
    name, sign, number, unit = match.groups()
    if problem := _problem(name, sign, unit):
        raise UsageError(f"{text!r}: {problem}", remedy=remedy)
    limit = float(number) * _UNITS["latency" if name in _LATENCIES else name][unit]
    if name == "error_rate" and limit > 1:
        raise UsageError(f"{text!r}: a share is at most 1, or 100%", remedy="write it like error_rate<1%")
    if not math.isfinite(limit) or (name != "error_rate" and limit <= 0):
        raise UsageError(f"{text!r}: the limit has to be above 0 and finite", remedy=remedy)
    return Constraint.model_validate({"quantity": name, "limit": limit, "text": text.replace(" ", "")})


def _problem(name: str, sign: str, unit: str) -> str:
    if name not in _QUANTITIES:
        return f"{name} is none of {', '.join(_QUANTITIES)}"
    if sign in {"=", "=="}:
        return f"{sign} asks for one value; give a limit with < or >"
    if name == "throughput" and sign.startswith("<"):
        return "a throughput is limited from below: write >"
    if name != "throughput" and sign.startswith(">"):
        return f"{name} is limited from above: write <"
    units = _UNITS["latency" if name in _LATENCIES else name]
    if unit in units:
        return ""
    names = ", ".join(filter(None, units))
    return f"the unit {unit!r} is none of {names}" if unit else f"give the unit: one of {names}"


class Goal(Record):
    """Goal: an objective and constraints.

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
        """The objective's name for display."""
        if self.objective == "throughput":
            return "highest throughput"
        if self.objective == "latency":
            return "lowest p95 latency"
        source = f" ({self.price_source})" if self.price_source else ""
        return f"lowest cost of a million inferences, at ${self._price:g} per hour{source}"

    def value(self, measurement: Measurement) -> float:
        """Return the objective in its unit.

        Inferences per second, milliseconds, or US dollars per million inferences.
        """
        if self.objective == "throughput":
            return measurement.throughput if measurement.is_answered else 0.0
        if not measurement.is_answered:
            return math.inf
        if self.objective == "latency":
            return measurement.p95_ms
        return cost_per_million(self._price, measurement.throughput)

    def score(self, measurement: Measurement) -> float:
        """Return the logarithm of the objective, higher is better; minus infinity without successful requests."""
        value = self.value(measurement)
        if not 0 < value < math.inf:
            return -math.inf
        return math.log(value) if self.objective == "throughput" else -math.log(value)

    def gain(self, measurement: Measurement, baseline: Measurement) -> float:
        """Return the ratio by which a measurement is better than a baseline."""
        return math.exp(self.score(measurement) - self.score(baseline))

    def violations(self, measurement: Measurement) -> tuple[float, ...]:
        """Return the violation of each constraint (`Constraint.violation`)."""
        return tuple(constraint.violation(measurement) for constraint in self.constraints)

    def violation(self, measurement: Measurement) -> float:
        """Return the total violation of all constraints; 0 if all are met."""
        return sum(max(0.0, violation) for violation in self.violations(measurement))

    def is_met(self, measurement: Measurement) -> bool:
        """Whether requests succeeded, and all constraints are met."""
        return self.has_score(measurement) and self.violation(measurement) <= 0

    def has_score(self, measurement: Measurement | None) -> bool:
        """Whether a measurement can be compared with others."""
        return measurement is not None and math.isfinite(self.score(measurement))

    def rank(self, measurement: Measurement) -> tuple[float, float]:
        """Return the sort key, best first: feasible measurements by score, then the rest by violation."""
        return self.violation(measurement), -self.score(measurement)

    def format_value(self, measurement: Measurement) -> str:
        """Format the objective of a measurement with its unit."""
        if not measurement.is_answered:
            return "no answer"
        value = self.value(measurement)
        if self.objective == "throughput":
            return f"{value:.1f} inferences/s"
        return f"p95 {value:.3g} ms" if self.objective == "latency" else f"${value:.4g} per million inferences"

    def scored(self, measurements: Sequence[Measurement | None]) -> list[Measurement]:
        """Return the comparable measurements; if there are none, all of them."""
        candidates = [measurement for measurement in measurements if measurement is not None]
        return [measurement for measurement in candidates if self.has_score(measurement)] or candidates

    @property
    def _price(self) -> float:
        return self.usd_per_hour or 0.0
