"""Worker requests on pipelines and scripts."""

from __future__ import annotations

from pathlib import Path

from plansmith.compilers.export.requests import LoadRequest
from plansmith.config.pipeline import PipelineOptions
from plansmith.records.engine import Engine
from plansmith.records.model import Device, OnnxModel, Record
from plansmith.records.pipeline import Pipeline
from plansmith.records.validation import ValidationReport


class DaliJob(Record):
    """DALI version and device for image preprocessing.

    Attributes:
        version: of DALI.
        device: on which it runs.
        max_batch_size: the largest batch of its configuration.
    """

    version: str
    device: Device
    max_batch_size: int


class JoinJob(Record):
    """Model that pipeline parts are built around.

    Attributes:
        model: the source model, and how it is loaded.
        options: what the spec says of the pipeline.
        onnx: the exported model, which knows its axes.
        engine: what is served.
        engine_folder: holds its files.
        runnable: the graph that ONNX Runtime can run here with the engine's numbers; None for the engine's own.
        validation: the gate's verdict on the model, which has the tolerances.
        numpy: the version that parts run with.
        dali: None where Pillow reads images.
        dali_site: the folder that DALI is installed in.
    """

    model: LoadRequest
    options: PipelineOptions
    onnx: OnnxModel
    engine: Engine
    engine_folder: Path
    runnable: Path | None
    validation: ValidationReport
    numpy: str
    dali: DaliJob | None = None
    dali_site: Path | None = None


class JoinRequest(Record):
    """Pipeline build request; `out` receives a folder per part, and the cases."""

    job: JoinJob
    out: Path


class ScriptRequest(Record):
    """Script check request: compares a script with its models.

    Attributes:
        models: by the name that the script asks for, what the parts of each were made around.
        folders: where these lie.
        pipeline: the first one's, whose cases are asked.
        largest: the largest batch that all of them take; 0 where one does not batch.
        file: the script.
        out: takes the cases.
    """

    models: dict[str, JoinJob]
    folders: dict[str, Path]
    pipeline: Pipeline
    largest: int
    file: Path
    out: Path
