"""What the gate and a running server found: records, and what they are held against."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from plansmith.types import Device, Record
from plansmith.written import Cosine, Share


class Tolerance(Record):
    """What the gate allows for one output, relative to the output's own magnitude (see comparison)."""

    max_relative: Share = Field(description="Largest error of an element, in parts of the output's root mean square.")
    quantile_relative: Share = Field(description="Error that 99 % of the elements stay below, in the same parts.")
    min_cosine: Cosine = Field(description="Smallest cosine between a sample's answer and the reference's.")


class ToleranceChange(Record):
    """What the gate allows for one output where that is not what the precision suggests."""

    max_relative: Share | None = Field(default=None, description=Tolerance.model_fields["max_relative"].description)
    quantile_relative: Share | None = Field(
        default=None, description=Tolerance.model_fields["quantile_relative"].description
    )
    min_cosine: Cosine | None = Field(default=None, description=Tolerance.model_fields["min_cosine"].description)

    def over(self, default: Tolerance) -> Tolerance:
        """The default with what is given here."""
        return default.model_copy(update=self.model_dump(exclude_none=True))


class OutputComparison(Record):
    """How far one output of the candidate is from the reference in one case."""

    case: str
    output: str
    shape: tuple[int, ...]
    elements: int
    magnitude: float
    max_absolute: float
    max_relative: float
    quantile_absolute: float
    quantile_relative: float
    min_cosine: float
    variance: float
    failures: tuple[str, ...]


class ValidationReport(Record):
    """The gate's verdict and everything it rests on."""

    verdict: Literal["passed", "failed"]
    reference: str
    candidate: str
    data: str
    tolerances: dict[str, Tolerance]
    comparisons: tuple[OutputComparison, ...]

    def worst(self) -> dict[str, dict[str, float]]:
        """Per output the worst value of each metric over all cases."""
        rows: dict[str, dict[str, float]] = {}
        for c in self.comparisons:
            row = rows.setdefault(
                c.output,
                {
                    "max_absolute": 0.0,
                    "max_relative": 0.0,
                    "quantile_absolute": 0.0,
                    "quantile_relative": 0.0,
                    "min_cosine": 1.0,
                },
            )
            for metric, value in row.items():
                row[metric] = (min if metric == "min_cosine" else max)(value, getattr(c, metric))
        return rows

    def failures(self) -> list[str]:
        """One line per breach: output, case, shape, metric."""
        return [
            f"output {c.output!r} at {c.case} ({'x'.join(map(str, c.shape))}): {failure}"
            for c in self.comparisons
            for failure in c.failures
        ]


class ServedCheck(Record):
    """One question to the running server and how its answer compared."""

    name: str
    protocol: str
    batch: int
    max_relative: float
    seconds: float


class ServedReport(Record):
    """What a running Triton answered and what it made of our configuration.

    `device`: what the instances that answered ran on; "cpu" also where the release asks for a GPU that was not there.
    """

    server_version: str
    device: Device = "cpu"  # of releases older than this field it is true
    backend: Literal["real", "stand-in"]
    backend_runtime: str
    requests: int
    concurrent_clients: int
    median_seconds: float
    worst_seconds: float
    checks: tuple[ServedCheck, ...]
    completed: dict[str, Any]
