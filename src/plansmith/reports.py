"""What the gate and a running server found: records, and what they are held against."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from plansmith.types import Device, Precision, Record
from plansmith.written import Cosine, Share


class Tolerance(Record):
    """What the gate allows for one output, relative to the output's own magnitude (see comparison)."""

    max_relative: Share = Field(description="Largest error of an element, in parts of the output's root mean square.")
    quantile_relative: Share = Field(description="Error that 99 % of the elements stay below, in the same parts.")
    min_cosine: Cosine = Field(description="Smallest cosine between a sample's answer and the reference's.")
    min_mean_cosine: Cosine = Field(
        default=-1.0, description="Smallest mean of these cosines over the held-out samples of `data`."
    )


class ToleranceChange(Record):
    """What the gate allows for one output where that is not what the precision suggests."""

    max_relative: Share | None = Field(default=None, description=Tolerance.model_fields["max_relative"].description)
    quantile_relative: Share | None = Field(
        default=None, description=Tolerance.model_fields["quantile_relative"].description
    )
    min_cosine: Cosine | None = Field(default=None, description=Tolerance.model_fields["min_cosine"].description)

    min_mean_cosine: Cosine | None = Field(
        default=None, description=Tolerance.model_fields["min_mean_cosine"].description
    )

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


class Interval(Record):
    """A value and the interval that holds it with a confidence of 95 %."""

    value: float
    low: float
    high: float


class OutputAgreement(Record):
    """How far one output is from the reference over all samples of a set.

    Cosines are of one sample's answer with the reference's (of the pooled vector, where the output is pooled);
    `sqnr_db` is signal to noise over all elements; `kl`: mean Kullback-Leibler divergence in nats, for class scores;
    `same_first`: share of samples (or tokens) whose highest score is the same class; `first_among_five`: whose class
    by the reference is among the candidate's first five; `same_neighbour`: share of samples whose nearest other sample
    is the same. None where the output has no such thing. Answers of very few numbers have one cosine, that of all
    samples together; of integers and flags it is the share of equal elements.
    """

    output: str
    samples: int
    mean_cosine: float
    min_cosine: float
    sqnr_db: float
    kl: float | None
    same_first: float | None
    first_among_five: float | None = None
    same_neighbour: float | None
    failures: tuple[str, ...]


class TaskMetric(Record):
    """The task's own measure, of the reference and of the candidate on the same samples.

    `change` is candidate minus reference, with its paired interval; `proven`: the whole interval is within what is
    allowed, so that the samples were enough to tell; `agreement`: it counts where the candidate answers as the
    reference does, which has 1 by definition.
    """

    name: str
    samples: int
    reference: float
    candidate: float
    change: Interval
    max_drop: float
    proven: bool
    failures: tuple[str, ...]
    agreement: bool = False

    def words(self) -> str:
        """The measure in one line: both values, the change with its interval, and what that proves."""
        low, high = self.change.low, self.change.high
        if self.agreement:
            sure = f"95 % {1 + low:.4f} to {1 + high:.4f}"
            told = f"{self.name} {self.candidate:.4f} ({sure}), allowed {1 - self.max_drop:g}"
        else:
            told = (
                f"{self.name} {self.candidate:.4f}, FP32 {self.reference:.4f}: {self.change.value:+.4f}"
                f" (95 % {low:+.4f} to {high:+.4f}), allowed -{self.max_drop:g}"
            )
        if self.reference <= 0:
            return f"{told}; tells nothing: FP32 gets none right, so that labels or weights are others"
        return told if self.failures or self.proven else f"{told}; not proven by {self.samples} samples"


class WorstSample(Record):
    """A sample that was answered worst: its place in the data, and its cosine."""

    row: int
    output: str
    cosine: float


class Evaluation(Record):
    """What the held-out samples showed."""

    data: str
    samples: int
    agreements: tuple[OutputAgreement, ...]
    metrics: tuple[TaskMetric, ...]
    worst: tuple[WorstSample, ...]

    def failures(self, samples: str = "held-out samples") -> list[str]:
        """One line per breach; `samples` says what was judged."""
        return [
            *(f"{m.name} on {m.samples} {samples} {f}" for m in self.metrics for f in m.failures),
            *(f"output {a.output!r} on {a.samples} {samples}: {f}" for a in self.agreements for f in a.failures),
        ]


class ValidationReport(Record):
    """The gate's verdict and everything it rests on.

    `evidence`: what inputs it rests on: held-out samples that somebody gave, plansmith's own sentences and images, or
    values drawn at random. `not_validated`: what could not be tried on this machine, in words.
    """

    verdict: Literal["passed", "failed"]
    reference: str
    candidate: str
    precision: Precision | None = None  # of releases older than this field and the next
    data: str
    evidence: Literal["given", "shipped", "drawn"] | None = None
    tolerances: dict[str, Tolerance]
    comparisons: tuple[OutputComparison, ...]
    evaluation: Evaluation | None = None
    not_validated: tuple[str, ...] = ()

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
        """One line per breach, those on held-out samples first: output, case, shape, metric."""
        at_shapes = [
            f"output {c.output!r} at {c.case} ({'x'.join(map(str, c.shape))}): {failure}"
            for c in self.comparisons
            for failure in c.failures
        ]
        return (self.evaluation.failures() if self.evaluation else []) + at_shapes


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
