"""The records that flow between steps, processes and machines: models and graphs.

Each is frozen and survives JSON: names, numbers, digests and paths, never tensors. A path inside a
record is relative to the folder that the record lies in, so that a folder can be moved or linked.
Sizes are bytes, times are seconds, timestamps are UTC in ISO 8601.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

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


class Precision(StrEnum):
    """What the graph's weights and activations are stored and computed in."""

    FP32 = "fp32"
    FP16 = "fp16"
    BF16 = "bf16"
    FP8 = "fp8"
    INT8 = "int8"


class EngineKind(StrEnum):
    """Which Triton backend serves the model."""

    ONNXRUNTIME = "onnxruntime"
    TENSORRT = "tensorrt"
    PYTHON = "python"


class Record(BaseModel):
    """Base of all records: frozen, unknown fields refused, and NaN and Inf, which JSON cannot hold.

    What was given is in no text of an error: it may hold a secret.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, hide_input_in_errors=True)


class AxisRange(Record):
    """The sizes that one axis takes in service: smallest, usual, largest; multiples of `step` only."""

    min: int
    opt: int
    max: int
    step: int = 1


BATCH_RANGE = AxisRange(min=1, opt=8, max=32)
"""The batches of a model for which nothing else is said."""


class InputRange(Record):
    """Smallest, usual and largest shape of one input, batch included; or contents, of an input that holds a shape."""

    min: tuple[int, ...]
    opt: tuple[int, ...]
    max: tuple[int, ...]

    def __str__(self) -> str:
        return ":".join("x".join(map(str, shape)) for shape in (self.min, self.opt, self.max))


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


SourceScheme = Literal["hf", "timm", "onnx", "torch"]
"""How a model's files are read: a folder of transformers or timm, an ONNX file, a folder with a PyTorch module."""

BARE_SCHEMES = frozenset({"onnx", "torch"})
"""Those of models that bring nothing beside themselves: no configuration, tokenizer or processor."""


class SourceModel(Record):
    """What fetch found: a folder that holds configuration and weights, or an ONNX file; and where it came from.

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
        """Where it came from, without the revision."""
        return self.registered or f"{self.scheme}:{self.location}"

    @property
    def pinned_address(self) -> str:
        """What a registry or bucket calls exactly this version."""
        return f"{self.registered}{'@' if self.registered.startswith('s3:') else '/'}{self.revision}"

    @property
    def repository(self) -> str:
        """What has its revisions: its name in a hub or registry, or its address in a bucket."""
        return self.registered.removeprefix("mlflow:") or self.location


class Component(Record):
    """One ONNX graph: its file, the external weight files beside it, and its interface.

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
        """Everything that has to travel with the graph."""
        return (self.file, *self.external_files) if self.file else ()


class ExportAttempt(Record):
    """One exporter's try: `problem` is None for the one that won.

    `fixed`: axes that did not have to move in it; `rewrites`: names of the rewrites that were in force; `traced`: the
    shape that the exporter was shown.
    """

    exporter: Exporter
    problem: str | None
    traced: str = "traced"
    fixed: tuple[str, ...] = ()
    rewrites: tuple[str, ...] = ()


class FixedAxis(Record):
    """An axis that might have moved, and does not: the model takes no other size, or no exporter can move it.

    `reason`: what the model said when it was asked at another size, or what was wrong with the exported graphs;
    `by`: who refuses to move it, "model" or "exporters".
    """

    axis: str
    size: int
    by: Literal["model", "exporters"]
    reason: str

    @property
    def words(self) -> str:
        """What it means, and why it is so."""
        who = "the model takes no other" if self.by == "model" else "no exporter's graph follows it"
        return f"{self.axis} is {self.size} in the graph, and {who}: {self.reason}"


class TiedAxis(Record):
    """An axis that is another one in the graph, whose dims have that one's name: the model moves both only at once.

    `reason`: what the model said when it was asked at another size of this one alone.
    """

    axis: str
    to: str
    reason: str

    @property
    def words(self) -> str:
        """What it means, and why it is so."""
        return f"{self.axis} is always {self.to} in the graph, as the model takes no other: {self.reason}"


class OnnxModel(Record):
    """What export or lowering made; without a graph where the PyTorch model itself is served.

    `exporter` is "none" where the source was an ONNX file already, and `UNEXPORTED` where there is no graph.
    `fixed`: axes that might have moved; `tied`: axes that move with another; releases older than these have none.
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

    @property
    def describe_exporter(self) -> str:
        """Who wrote the graph, or why nobody did."""
        return {
            "none": "none: the source is an ONNX file",
            UNEXPORTED: "none: the PyTorch model itself is served",
        }.get(self.exporter, self.exporter)

    @property
    def held(self) -> tuple[FixedAxis | TiedAxis, ...]:
        """The axes that do not move by themselves; each says why in its `words`."""
        return (*self.fixed, *self.tied)

    def every_axis(self) -> dict[str, AxisRange]:
        """The ranges of all axes that might have moved by themselves: those that do not have one size."""
        return self.axes | {f.axis: AxisRange(min=f.size, opt=f.size, max=f.size) for f in self.fixed}


class Case(Record):
    """One set of real inputs at one shape, with what the reference model answered.

    `in_range`: the shape is inside the ranges that the model is compiled for; the others are probes.
    """

    name: str
    axes: dict[str, int]
    file: str
    in_range: bool = True


class SampleSet(Record):
    """Samples in the order of their use, in batches: one case each.

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
        """How many samples there are."""
        return len(self.rows)


class DataSet(Record):
    """Samples made into the model's inputs, with the FP32 answers of the source model.

    `words` says where they come from; `digest` is that of the data as it was read and `revision` the hub's;
    `available` counts its different samples. `real`: somebody gave them; else they are plansmith's own sentences and
    images, or drawn at random (`guessed`). `pooling`: how the vectors of a sentence's tokens become one, where an
    output holds such.
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


class Rounding(Record):
    """How far an output moves when every weight is moved by a unit in its last place, in parts of its magnitude."""

    max_relative: float
    quantile_relative: float
    cosine: float


class ReferenceSet(Record):
    """Inputs and FP32 answers of the source model, stored as one .npz a case.

    `data` says in words what the inputs are; `guessed`: nothing describes them, so that they were drawn at random;
    `rounding`: what rounding alone does to the outputs; releases older than this field have none.
    """

    runtime: str
    data: str
    cases: tuple[Case, ...]
    guessed: bool = False
    rounding: dict[str, Rounding] = {}


class HighPrecisionNode(Record):
    """A node that was left in higher precision, and why."""

    node: str
    op_type: str
    reason: str


class Recipe(Record):
    """How a graph was lowered.

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
    """How much faster a candidate is than a baseline, which is FP32 for a lowered graph: median and 95 % interval.

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
    """One recipe that was tried on the calibration data.

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
    """How far the lowered graph is from FP32 behind one node: signal to quantisation noise, in dB."""

    node: str
    op_type: str
    lowered: bool
    sqnr_db: float


class LoweredModel(Record):
    """What lowering made of an exported graph; the graph itself, with no recipe, for FP32.

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
