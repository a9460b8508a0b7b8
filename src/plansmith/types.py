"""The records that flow between steps, processes and machines: models, graphs and engines.

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
