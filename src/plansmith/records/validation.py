"""Validation records: results of the accuracy gate and of a running server, and their limits."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from plansmith.records.engine import LayerSummary
from plansmith.records.fields import Cosine, Share
from plansmith.records.model import Device, Precision, Record, SpeedRatio

Corner = Literal["min", "opt", "max"]
"""A shape of an optimization profile."""

Against = Literal["lowered", "fp32"]
"""The graph that a plan was built from, or the one in FP32 that this was lowered from."""

AGAINST: dict[Against, str] = {"lowered": "the lowered graph", "fp32": "the FP32 graph"}
_BASELINES = {"eager": "PyTorch", "onnxruntime": "ONNX Runtime"}


class Tolerance(Record):
    """Tolerance of the gate for one output, relative to the output's own magnitude (see comparison)."""

    max_relative: Share = Field(description="Largest error of an element, in parts of the output's root mean square.")
    quantile_relative: Share = Field(description="Error that 99 % of the elements stay below, in the same parts.")
    min_cosine: Cosine = Field(description="Smallest cosine between a sample's answer and the reference's.")
    min_mean_cosine: Cosine = Field(
        default=-1.0, description="Smallest mean of these cosines over the held-out samples of `data`."
    )


class ToleranceChange(Record):
    """Tolerance change for one output, where it differs from the precision's default."""

    max_relative: Share | None = Field(default=None, description=Tolerance.model_fields["max_relative"].description)
    quantile_relative: Share | None = Field(
        default=None, description=Tolerance.model_fields["quantile_relative"].description
    )
    min_cosine: Cosine | None = Field(default=None, description=Tolerance.model_fields["min_cosine"].description)

    min_mean_cosine: Cosine | None = Field(
        default=None, description=Tolerance.model_fields["min_mean_cosine"].description
    )

    def over(self, default: Tolerance) -> Tolerance:
        """Return the default with these values applied."""
        return default.model_copy(update=self.model_dump(exclude_none=True))


class OutputComparison(Record):
    """Output comparison: the error of one output of the candidate against the reference in one case."""

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


class CornerComparison(Record):
    """Corner comparison: the error of one plan output against that of a graph, at a corner of an optimization profile.

    `plan`: the compute capability that the plan is for; `against`: the graph, which ONNX Runtime ran on a CPU with the
    same inputs.
    """

    plan: str
    profile: str
    corner: Corner
    against: Against
    found: OutputComparison

    @property
    def where(self) -> str:
        """The location, as text."""
        return f"{self.corner} of profile {self.profile!r} against {AGAINST[self.against]}"


class BaselineSpeed(Record):
    """Speedup of a plan over a baseline on the same inputs.

    `kind`: the PyTorch model as it is, the same through `torch.compile`, a graph in ONNX Runtime, or a plan of a higher
    precision; `speed`: above 1 the plan is faster; `median_ms`: how long the other took in the same rounds; `problem`:
    why there is no figure, empty where there is.
    """

    kind: Literal["eager", "torch.compile", "onnxruntime", "plan"]
    precision: Precision
    setting: str
    speed: SpeedRatio | None = None
    median_ms: float | None = None
    problem: str = ""


class PlanSpeed(Record):
    """Plan speed at the opt shapes of an optimization profile, alone and against baselines.

    `plan`: the compute capability that it is for; `shapes`: of its inputs, in words; `p95_ms` and `p99_ms`: None where
    it ran too seldom to tell; `setting`: what was on while it ran (CUDA graphs, spin wait, transfers), in words.
    """

    plan: str
    profile: str
    precision: Precision
    shapes: str
    median_ms: float
    p95_ms: float | None
    p99_ms: float | None
    repeats: int
    setting: str
    baselines: tuple[BaselineSpeed, ...] = ()


class Interval(Record):
    """Value with its 95 % confidence interval."""

    value: float
    low: float
    high: float


class OutputAgreement(Record):
    """Agreement of one output with the reference over all samples of a set.

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
    """Task metric of the reference and of the candidate on the same samples.

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

    def summary(self) -> str:
        """Return the metric in one line: both values, the change with its interval, and the conclusion."""
        low, high = self.change.low, self.change.high
        if self.agreement:
            sure = f"95 % {1 + low:.4f} to {1 + high:.4f}"
            text = f"{self.name} {self.candidate:.4f} ({sure}), allowed {1 - self.max_drop:g}"
        else:
            text = (
                f"{self.name} {self.candidate:.4f}, FP32 {self.reference:.4f}: {self.change.value:+.4f}"
                f" (95 % {low:+.4f} to {high:+.4f}), allowed -{self.max_drop:g}"
            )
        if self.reference <= 0:
            return f"{text}; tells nothing: FP32 gets none right, so that labels or weights are others"
        return text if self.failures or self.proven else f"{text}; not proven by {self.samples} samples"


class WorstSample(Record):
    """Worst sample: its position in the data, and its cosine."""

    row: int
    output: str
    cosine: float


class Evaluation(Record):
    """Evaluation on held-out samples; `left_out`: how many others the candidate cannot run on."""

    data: str
    samples: int
    agreements: tuple[OutputAgreement, ...]
    metrics: tuple[TaskMetric, ...]
    worst: tuple[WorstSample, ...]
    left_out: int = 0

    def failures(self, samples: str = "held-out samples") -> list[str]:
        """Return one line per breach; `samples` names the evaluated samples."""
        return [
            *(f"{m.name} on {m.samples} {samples} {f}" for m in self.metrics for f in m.failures),
            *(f"output {a.output!r} on {a.samples} {samples}: {f}" for a in self.agreements for f in a.failures),
        ]


class ValidationReport(Record):
    """Validation report: the gate's verdict and its evidence.

    `evidence`: what inputs it rests on: held-out samples that somebody gave, plansmith's own sentences and images, or
    values drawn at random. `not_validated`: what could not be tried on this machine, in words. `ran`: compute
    capabilities of the TensorRT plans that answered; none where a graph answered in their place. `at_corners`: these
    plans at the corners of their optimization profiles; `limits_of`: the precision whose limits hold, where that is not
    the candidate's own; `speeds`: of the plans, which have no say in the verdict; `layers`: theirs, with times.
    `searched`: a recipe may have been looked for on inputs of the same kind; PyTorch's own casts follow none.
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
    ran: tuple[str, ...] = ()
    limits_of: Precision | None = None
    at_corners: tuple[CornerComparison, ...] = ()
    speeds: tuple[PlanSpeed, ...] = ()
    layers: dict[str, LayerSummary] = Field(default_factory=dict)
    searched: bool = True

    def __repr__(self) -> str:
        """The verdict, and the output with the largest error relative to its magnitude."""
        errors = {name: row["max_relative"] for name, row in self.worst().items()}
        if not errors:
            return f"<ValidationReport {self.verdict}>"
        name = max(errors, key=errors.__getitem__)
        limit = self.tolerances[name].max_relative
        return f"<ValidationReport {self.verdict}: largest error {errors[name]:.1e} ({name}), allowed {limit:.1e}>"

    def worst(self) -> dict[str, dict[str, float]]:
        """Return the worst value of each metric over all cases, per output."""
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
        """Return one line per breach, held-out samples first: output, case, shape, metric."""
        compared = [(c.case, c) for c in self.comparisons] + [(c.where, c.found) for c in self.at_corners]
        at_shapes = [
            f"output {c.output!r} at {where} ({'x'.join(map(str, c.shape))}): {failure}"
            for where, c in compared
            for failure in c.failures
        ]
        return (self.evaluation.failures() if self.evaluation else []) + at_shapes


class ServedCheck(Record):
    """Served check of one request to the running server, with the comparison of its answer."""

    name: str
    protocol: str
    batch: int
    max_relative: float
    seconds: float


class ServedReport(Record):
    """Served report: answers of a running Triton, and the configuration as it interpreted it.

    `device`: what the instances that answered ran on; "cpu" also where the release asks for a GPU that was not there;
    `dali`: what answered for the DALI backend, None where nothing had to.
    """

    server_version: str
    device: Device = "cpu"  # of releases older than this field it is true
    backend: Literal["real", "stand-in"]
    backend_runtime: str
    dali: Literal["real", "stand-in"] | None = None
    requests: int
    concurrent_clients: int
    median_seconds: float
    worst_seconds: float
    checks: tuple[ServedCheck, ...]
    completed: dict[str, Any]


def baseline_name(baseline: BaselineSpeed) -> str:
    """Return the name of a plan's baseline."""
    precision = baseline.precision.upper()
    return (
        f"the {precision} plan"
        if baseline.kind == "plan"
        else f"{_BASELINES.get(baseline.kind, baseline.kind)} in {precision}"
    )
