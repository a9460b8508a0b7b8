"""Model and graph records, passed between steps, processes and machines.

Each is frozen and survives JSON: names, numbers, digests and paths, never tensors. A path inside a
record is relative to the folder that the record lies in, so that a folder can be moved or linked.
Sizes are bytes, times are seconds, timestamps are UTC in ISO 8601.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict

SCHEMA_VERSION = 1

Dim = int | str
"""A fixed size, or the name of an axis that varies."""

Measured = Literal["none", "accuracy", "token-f1", "answer-f1", "spearman", "neighbours"]
"""The measure of a task."""

Pooling = Literal["none", "mean", "first"]
"""How the vectors of a sample's tokens become one."""

Exporter = Literal["torchscript", "dynamo", "patched"]
"""Who writes the ONNX graph of a PyTorch model (see `compilers.exporters`)."""

UNEXPORTED = "unexported"
"""Stands for the exporter where no graph is written."""

ExportDevice = Literal["cpu", "cuda"]
"""Where PyTorch holds a model while it is asked and exported, by torch's names."""

Device = Literal["gpu", "cpu"]
"""What the instances of a served model run on."""

BATCH = "batch"
"""The axis of samples."""

ANONYMOUS = "?"
"""Stands for the name of an axis that has none."""

SourceScheme = Literal["hf", "timm", "onnx", "torch"]
"""How a model's files are read: a folder of transformers or timm, an ONNX file, a folder with a PyTorch module."""

BARE_SCHEMES = frozenset({"onnx", "torch"})
"""Those of models that bring nothing beside themselves: no configuration, tokenizer or processor."""


class Precision(StrEnum):
    """Precision: the format in which weights and activations are stored and computed."""

    FP32 = "fp32"
    FP16 = "fp16"
    BF16 = "bf16"
    FP8 = "fp8"
    INT8 = "int8"


class EngineKind(StrEnum):
    """Engine kind: the Triton backend that serves the model."""

    ONNXRUNTIME = "onnxruntime"
    TENSORRT = "tensorrt"
    PYTHON = "python"


class Record(BaseModel):
    """Base of all records: frozen; refuses unknown fields, and NaN and Inf, which JSON cannot hold.

    What was given is in no text of an error: it may hold a secret.
    """

    model_config = ConfigDict(
        frozen=True, defer_build=True, extra="forbid", allow_inf_nan=False, hide_input_in_errors=True
    )

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        """Return the record itself, as it is frozen: pydantic copies every default that has no hash."""
        return self


class AxisRange(Record):
    """Axis range: smallest, usual and largest size in service; multiples of `step` only."""

    min: int
    opt: int
    max: int
    step: int = 1


BATCH_RANGE = AxisRange(min=1, opt=8, max=32)
"""The batches of a model for which nothing else is said."""


class InputRange(Record):
    """Input range: smallest, usual and largest shape of one input, with batch; or the contents of a shape input."""

    min: tuple[int, ...]
    opt: tuple[int, ...]
    max: tuple[int, ...]

    def __str__(self) -> str:
        return ":".join("x".join(map(str, shape)) for shape in (self.min, self.opt, self.max))


class Tensor(Record):
    """Tensor: an input or output of a graph. `dtype` is NumPy's name ("int64"); `dims` include the batch."""

    name: str
    dtype: str
    dims: tuple[Dim, ...]


class FileEntry(Record):
    """File entry: a file of a folder, with its digest."""

    path: str
    bytes: int
    sha256: str


class SourceModel(Record):
    """Fetched source model: a folder with configuration and weights, or an ONNX file; and its origin.

    `task`: the kind of head that was asked for; None where the model's own configuration decides. `registered`: what a
    model registry or bucket calls it, such as mlflow:models:/ranker or s3://models/ranker, where it came from one;
    `revision` is its version there.
    """

    scheme: SourceScheme
    location: str
    revision: str | None
    licence: str | None
    digest: str
    random_weights: bool
    trust_remote_code: bool
    task: str | None = None
    registered: str = ""

    @property
    def address(self) -> str:
        """The source address without the revision."""
        return self.registered or f"{self.scheme}:{self.location}"

    @property
    def pinned_address(self) -> str:
        """The address of exactly this version in its registry or bucket."""
        return f"{self.registered}{'@' if self.registered.startswith('s3:') else '/'}{self.revision}"

    @property
    def repository(self) -> str:
        """The repository of its revisions: a name in a hub or registry, or an address in a bucket."""
        return self.registered.removeprefix("mlflow:") or self.location


class Component(Record):
    """Component: one ONNX graph, with its file, its external weight files, and its interface.

    The component of a model that is served as PyTorch has no opset and no IR version (0), and no file where only its
    interface is known.
    """

    file: str
    external_files: tuple[str, ...]
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    opset: int
    ir_version: int

    @property
    def files(self) -> tuple[str, ...]:
        """All files that belong to the graph."""
        return (self.file, *self.external_files) if self.file else ()


class ExportAttempt(Record):
    """Export attempt of one exporter; `problem` is None for the selected one.

    `fixed`: axes that did not have to move in it; `rewrites`: names of the rewrites that were in force; `traced`: the
    shape that the exporter was shown.
    """

    exporter: Exporter
    problem: str | None
    traced: str = "traced"
    fixed: tuple[str, ...] = ()
    rewrites: tuple[str, ...] = ()


class FixedAxis(Record):
    """Fixed axis: not dynamic, as the model accepts no other size, or no exporter supports it.

    `reason`: what the model said when it was asked at another size, or what was wrong with the exported graphs;
    `by`: who refuses to move it, "model" or "exporters".
    """

    axis: str
    size: int
    by: Literal["model", "exporters"]
    reason: str

    @property
    def explanation(self) -> str:
        """The meaning and the reason, as text."""
        cause = "the model takes no other" if self.by == "model" else "no exporter's graph follows it"
        return f"{self.axis} is {self.size} in the graph, and {cause}: {self.reason}"


class TiedAxis(Record):
    """Tied axis: shares its name and size with another axis, as the model only accepts both changed together.

    `reason`: what the model said when it was asked at another size of this one alone.
    """

    axis: str
    to: str
    reason: str

    @property
    def explanation(self) -> str:
        """The meaning and the reason, as text."""
        return f"{self.axis} is always {self.to} in the graph, as the model takes no other: {self.reason}"


class Isolation(Record):
    """Isolation of the process that ran code which others wrote: without network, credentials and its user's home.

    Attributes:
        complete: whether the kernel allowed it; else the process ran as any other.
        problem: why it did not.
    """

    complete: bool
    problem: str = ""


class OnnxModel(Record):
    """Exported or lowered model; without a graph if the PyTorch model itself is served.

    `exporter` is "none" where the source was an ONNX file already, and `UNEXPORTED` where there is no graph.
    `fixed`: axes that might have moved; `tied`: axes that move with another; `isolation`: of the process that ran
    code of the model's own; releases older than these have none.
    """

    components: dict[str, Component]
    axes: dict[str, AxisRange]
    mask_input: str | None
    exporter: str
    attempts: tuple[ExportAttempt, ...]
    precision: Precision
    reference: ReferenceSet
    fixed: tuple[FixedAxis, ...] = ()
    tied: tuple[TiedAxis, ...] = ()
    isolation: Isolation | None = None

    @property
    def describe_exporter(self) -> str:
        """The exporter of the graph, or why there was none."""
        return {
            "none": "none: the source is an ONNX file",
            UNEXPORTED: "none: the PyTorch model itself is served",
        }.get(self.exporter, self.exporter)

    @property
    def constrained_axes(self) -> tuple[FixedAxis | TiedAxis, ...]:
        """The axes that are not independently dynamic; each gives the reason in `words`."""
        return (*self.fixed, *self.tied)

    def every_axis(self) -> dict[str, AxisRange]:
        """Return the ranges of all potentially dynamic independent axes, that is, with more than one size."""
        return self.axes | {f.axis: AxisRange(min=f.size, opt=f.size, max=f.size) for f in self.fixed}


class Case(Record):
    """Case: one set of real inputs at one shape, with the reference model's outputs.

    `in_range`: the shape is inside the ranges that the model is compiled for; the others are probes.
    """

    name: str
    axes: dict[str, int]
    file: str
    in_range: bool = True


class SampleSet(Record):
    """Sample set in order of use, in batches: one case each.

    `rows`: places of the samples in the data, from 0; `digests`: of each sample as it was read, so that no sample can
    stand in two sets; `labelled`: every case's file holds labels too; `joined`: the last so many are several texts in
    one, and no samples of the data.
    """

    cases: tuple[Case, ...]
    rows: tuple[int, ...]
    digests: tuple[str, ...]
    labelled: bool
    joined: int = 0

    @property
    def count(self) -> int:
        """The number of samples."""
        return len(self.rows)


class DataSet(Record):
    """Data set: samples as model inputs, with the FP32 outputs of the source model.

    `words` says where they come from; `digest` is that of the data as it was read and `revision` the hub's;
    `available` counts its different samples. `real`: somebody gave them; else they are plansmith's own sentences and
    images, or drawn at random (`guessed`). `pooling`: how the vectors of a sentence's tokens become one, where an
    output holds such. `isolation`: of the process that read them, where it ran code of somebody else.
    """

    words: str
    digest: str
    revision: str | None
    available: int
    seed: int
    real: bool
    guessed: bool
    metric: Measured
    pooling: Pooling
    calibration: SampleSet
    evaluation: SampleSet | None
    isolation: Isolation | None = None


class Rounding(Record):
    """Rounding sensitivity.

    The relative change of an output when every weight changes by one unit in the last place.
    """

    max_relative: float
    quantile_relative: float
    cosine: float


class ReferenceSet(Record):
    """Reference set: inputs and FP32 outputs of the source model, stored as one .npz per case.

    `data` says in words what the inputs are; `guessed`: nothing describes them, so that they were drawn at random;
    `rounding`: what rounding alone does to the outputs; releases older than this field have none.
    """

    runtime: str
    data: str
    cases: tuple[Case, ...]
    guessed: bool = False
    rounding: dict[str, Rounding] = {}


class HighPrecisionNode(Record):
    """Node kept in higher precision, with the reason."""

    node: str
    op_type: str
    reason: str


class Recipe(Record):
    """Recipe of a lowering.

    `method` in words ("INT8, dynamic"); `lowered` counts nodes per operator; `kept`: those that could have been
    lowered and were not; `settings`: what the method was told; `calibration`: digest of the samples that it looked
    at, empty for none; `not_validated`: what could not be tried on this machine, in words.
    """

    precision: Precision
    method: str
    engine: EngineKind
    lowered: dict[str, int]
    kept: tuple[HighPrecisionNode, ...]
    settings: dict[str, str]
    calibration: str
    calibration_samples: int
    not_validated: tuple[str, ...]


class SpeedRatio(Record):
    """Speed ratio of a candidate to a baseline, which is FP32 for a lowered graph: median and 95 % interval.

    Of paired, interleaved repeats; above 1 is faster. The verdict is "undecided" where the interval holds 1.
    `setting`: shape, threads, machine.
    """

    ratio: float
    low: float
    high: float
    repeats: int
    setting: str
    verdict: Literal["faster", "slower", "undecided"]


class Trial(Record):
    """Trial: one recipe tried on the calibration data.

    `score`: mean cosine of the answers (for a constant or integer output, the share that is equal); `problem`: why it
    cannot be taken, None where it can.
    """

    name: str
    precision: Precision
    lowered: int
    kept: int
    file_bytes: int
    score: float
    worst: float
    problem: str | None
    speed: SpeedRatio | None
    chosen: bool


class LayerError(Record):
    """Layer error of the lowered graph against FP32 after one node: signal-to-quantization-noise ratio, in dB."""

    node: str
    op_type: str
    lowered: bool
    sqnr_db: float


class LoweredModel(Record):
    """Lowered model from an exported graph; for FP32 the graph itself, without a recipe.

    Without components nothing was accurate enough, and `trials` say why.
    `fp32_bytes`: size of the graph that it began with, 0 where nothing was lowered.
    `runnable`: the file of a twin with the same numbers, where ONNX Runtime cannot run the graph itself on a CPU.
    `warnings`: what is doubtful in a graph that came lowered, a line each.
    """

    components: dict[str, Component]
    precision: Precision
    runnable: str | None = None
    fp32_bytes: int = 0
    recipe: Recipe | None
    trials: tuple[Trial, ...]
    layers: tuple[LayerError, ...]
    warnings: tuple[str, ...] = ()
