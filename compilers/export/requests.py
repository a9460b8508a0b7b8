"""Worker requests on source models and ONNX files, and the tasks that make graphs of them."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from plansmith.config.spec import DescribedInput
from plansmith.records.model import ExportDevice, InputRange, OnnxModel, Record, SourceScheme
from plansmith.system.tasks import Task


class LoadRequest(Record):
    """A source model, and how it is loaded.

    Attributes:
        scheme: what kind of source it is.
        folder: holds its files.
        location: of an ONNX file, which `folder` does not tell.
        trust_remote_code: whether the model's own Python code may be run.
        task: decides the model class; empty where the model's own configuration does.
        allow_pickle: whether pickled weights may be read.
        inputs: what the spec says of inputs, by name.
        outputs: those to keep; all of them where there are none.
        device: where the model runs.
    """

    scheme: SourceScheme
    folder: Path
    location: str = ""
    trust_remote_code: bool = False
    task: str = ""
    allow_pickle: bool = False
    inputs: dict[str, DescribedInput] = Field(default_factory=dict)
    outputs: tuple[str, ...] = ()
    device: ExportDevice = "cpu"


class ReferenceRequest(Record):
    """Request for a source model's reference outputs along its dynamic axes.

    Attributes:
        model: how it is loaded.
        shapes: the ranges of inputs that a person gave.
        out: the folder to write to.
    """

    model: LoadRequest
    shapes: dict[str, InputRange] = Field(default_factory=dict)
    out: Path


class ExportRequest(ReferenceRequest):
    """Request to also export a source model, to opset `max_opset` at most."""

    max_opset: int


class ImportRequest(Record):
    """Request to import an ONNX file as it is.

    Attributes:
        path: of the file.
        shapes: the ranges of inputs; those of the profiles where there are none.
        profiles: the ranges of a TensorRT plan, for all its profiles together.
        inputs: what the spec says of inputs, by name.
        outputs: those to keep; all of them where there are none.
        out: the folder to write to.
    """

    path: Path
    shapes: dict[str, InputRange] = Field(default_factory=dict)
    profiles: dict[str, InputRange] = Field(default_factory=dict)
    inputs: dict[str, DescribedInput] = Field(default_factory=dict)
    outputs: tuple[str, ...] = ()
    out: Path


EXPORT = Task("export", ExportRequest, OnnxModel)
RUN_REFERENCE = Task("run_reference", ReferenceRequest, OnnxModel)
IMPORT_ONNX = Task("import_onnx", ImportRequest, OnnxModel)
