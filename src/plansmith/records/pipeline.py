"""Pipeline records: the models before and after a model on Triton, and the expected answers."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from plansmith.records.model import Record, Tensor

RawInput = Literal["text", "image", "audio"]
"""What clients send."""

RawOutput = Literal[
    "embedding",
    "labels",
    "zero-shot",
    "tags",
    "answer",
    "fill-mask",
    "transcript",
    "objects",
    "segmentation",
    "text",
    "tensors",
]
"""What the server answers with.

`zero-shot` ranks texts that come with a request, `text` is generated, `tensors` are the model's own outputs.
"""

PREPARED_INPUTS = frozenset({"input_ids", "pixel_values", "input_values", "input_features"})
"""Inputs that a tokenizer or processor of transformers makes of raw ones."""

MODEL_PART = "model"
"""The name of the part that is the model itself."""

PartBackend = Literal["python", "dali"]


class Part(Record):
    """Part: a model before or after the main model.

    `name`: also that of its folder in the pipeline's; `files`: in that folder, as they lie in a version's folder, the
    first one being what the backend opens; `inputs` and `outputs`: batch first, with names that are those of the
    ensemble's tensors: what one part gives, another takes by the same name. `joins_requests`: whether Triton may answer
    several requests in one execution; `parameters`: of its configuration.
    """

    name: str
    backend: PartBackend
    files: tuple[str, ...]
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    joins_requests: bool = True
    parameters: dict[str, str] = Field(default_factory=dict)


class RawCase(Record):
    """Raw case: a request of raw inputs and the source library's answer, in one file (see `pipeline.raw_cases`)."""

    name: str
    file: str
    rows: int


class RawAgreement(Record):
    """Agreement of one request's answer with that of the source's own library.

    `same`: every text is the same one, and every number within what is allowed; `failures`: what is not, in words, as
    far as it may not be.
    """

    case: str
    rows: int
    same: bool
    failures: tuple[str, ...]


class Script(Record):
    """User script that answers requests by calling the models of its release.

    `outputs`: what it answers with; `cases`: requests, and what it answers where each model answers as the source's own
    library does; `refused`: names of requests that it refuses of itself; `source`: these libraries, in words;
    `agreements`: in manifests of earlier builds, which compared its answers before a server was asked.
    """

    outputs: tuple[Tensor, ...]
    cases: tuple[RawCase, ...]
    refused: tuple[str, ...]
    source: str
    agreements: tuple[RawAgreement, ...] = ()


class Pipeline(Record):
    """Pipeline of a model: parts in request order, and the clients' inputs and outputs.

    `inputs` and `outputs`: of the ensemble; `source`: whose answers the cases hold, in words; `agreements`: how the
    parts' answers compare with these, before any server is asked; none where the model cannot run here; `instances`: of
    each part; `labels`: of outputs that have a score for each class, the names of the classes; `frontend`: as in the
    spec.
    """

    input: RawInput
    output: RawOutput
    before: tuple[Part, ...]
    after: tuple[Part, ...]
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    cases: tuple[RawCase, ...]
    source: str
    agreements: tuple[RawAgreement, ...] = ()
    instances: int = 1
    labels: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    frontend: str = ""
