"""The records that flow between steps, processes and machines.

Each is frozen and survives JSON: names, numbers, digests and paths, never tensors. A path inside a
record is relative to the folder that the record lies in, so that a folder can be moved or linked.
Sizes are bytes, times are seconds, timestamps are UTC in ISO 8601.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from plansmith.written import Cosine, Share

SCHEMA_VERSION = 1

Dim = int | str
"""A fixed size, or the name of an axis that varies."""

Device = Literal["gpu", "cpu"]
"""What the instances of a served model run on."""

ANONYMOUS = "?"
"""Stands for the name of an axis that has none."""


class Precision(StrEnum):
    """What the graph's weights and activations are stored and computed in."""

    FP32 = "fp32"
    FP16 = "fp16"
    BF16 = "bf16"
    INT8 = "int8"


class EngineKind(StrEnum):
    """Which Triton backend serves the model."""

    ONNXRUNTIME = "onnxruntime"
    TENSORRT = "tensorrt"
    PYTHON = "python"


class Record(BaseModel):
    """Base of all records: frozen, unknown fields refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class AxisRange(Record):
    """The sizes that one axis takes in service: smallest, usual, largest."""

    min: int
    opt: int
    max: int


class Tensor(Record):
    """An input or output of a graph. `dtype` is NumPy's name ("int64"); `dims` include the batch."""

    name: str
    dtype: str
    dims: tuple[Dim, ...]


class FileEntry(Record):
    """A file of a folder, by content."""

    path: str
    bytes: int
    sha256: str


class SourceModel(Record):
    """What fetch found: a folder that holds configuration and weights, or an ONNX file; and where it came from.

    `task`: the kind of head that was asked for; None where the model's own configuration decides.
    """

    scheme: Literal["hf", "timm", "onnx"]
    location: str
    revision: str | None
    licence: str | None
    digest: str
    random_weights: bool
    trust_remote_code: bool
    task: str | None = None


class Component(Record):
    """One ONNX graph: its file, the external weight files beside it, and its interface."""

    file: str
    external_files: tuple[str, ...]
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    opset: int
    ir_version: int

    @property
    def files(self) -> tuple[str, ...]:
        """Everything that has to travel with the graph."""
        return (self.file, *self.external_files)


class ExportAttempt(Record):
    """One exporter's try: `problem` is None for the one that won."""

    exporter: Literal["torchscript", "dynamo"]
    problem: str | None


class OnnxModel(Record):
    """What export or lowering made. `exporter` is "none" where the source was an ONNX file already."""

    components: dict[str, Component]
    axes: dict[str, AxisRange]
    mask_input: str | None
    exporter: str
    attempts: tuple[ExportAttempt, ...]
    precision: Precision
    reference: ReferenceSet


class Case(Record):
    """One set of real inputs at one shape, with what the reference model answered.

    `in_range`: the shape is inside the ranges that the model is compiled for; the others are probes.
    """

    name: str
    axes: dict[str, int]
    file: str
    in_range: bool = True


class ReferenceSet(Record):
    """Inputs and FP32 answers of the source model, stored as one .npz a case.

    `data` says in words what the inputs are; `guessed`: nothing describes them, so that they were drawn at random.
    """

    runtime: str
    data: str
    cases: tuple[Case, ...]
    guessed: bool = False


class Engine(Record):
    """What compile made for one backend."""

    kind: EngineKind
    components: dict[str, Component]
    precision: Precision
    options: dict[str, str]
    toolchain: dict[str, str]


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


class Package(Record):
    """A release in the making: the files that Triton will see and the interface they promise."""

    model: str
    config_file: str
    model_files: tuple[str, ...]
    max_batch_size: int
    interface: Interface


class Interface(Record):
    """What clients rely on: a version with another interface must not stand beside this one."""

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]


class StepRecord(Record):
    """How one step went."""

    name: str
    seconds: float
    cached: bool


class Manifest(Record):
    """Everything about one release, as one JSON file in it."""

    schema_version: int = SCHEMA_VERSION
    name: str
    version: int
    created: str
    plansmith: str
    target: str
    release_digest: str
    spec: dict[str, Any]
    source: SourceModel
    onnx: OnnxModel
    engine: Engine
    package: Package
    validation: ValidationReport
    served: ServedReport | None
    files: tuple[FileEntry, ...]
    steps: tuple[StepRecord, ...]


class PublishedVersion(Record):
    """Where a release stands now."""

    name: str
    version: int
    repository: str
    release: str
    manifest_digest: str
    published: str
    unchanged: bool
