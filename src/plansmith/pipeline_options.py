"""How a person asks for what stands around a model: raw inputs in, answers that people read out."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from plansmith.types import Record
from plansmith.written import Count, Switch

RawInput = Literal["text", "image", "audio"]
"""What clients send."""

RawOutput = Literal["embedding", "labels", "tags", "answer", "text", "tensors"]
"""What the server answers with; `text` is generated, `tensors` are the model's own outputs."""


class PipelineOptions(Record):
    """What stands before and behind the model; what is left out follows from the model."""

    input: RawInput | Literal[""] = Field(
        default="", description="What clients send: text, image or audio; told by the model when left out."
    )
    output: RawOutput | Literal[""] = Field(
        default="",
        description="What the server answers with: embedding, labels, tags, answer, text or the model's own tensors;"
        " told by the model's task when left out.",
    )
    top_k: Count = Field(default=5, ge=1, description="How many labels an answer has, the likeliest first.")
    padding: Literal["longest", "opt"] = Field(
        default="longest",
        description="How far texts are padded: to the longest of a batch, or at least to the usual length (opt).",
    )
    max_length: Count | None = Field(
        default=None,
        ge=1,
        description="Most tokens of a text; what is longer is cut off. The model's own when left out.",
    )
    max_new_tokens: Count | None = Field(
        default=None,
        ge=1,
        description="Most tokens that a request may ask a generating model for; what the model can when left out.",
    )
    stream: Switch = Field(
        default=False,
        description="Have a generating model send its text piece by piece to requests that ask for it (gRPC alone).",
    )
    instances: Count = Field(
        default=1,
        ge=1,
        description="How many instances of each part before and behind the model, and of a script, run at once.",
    )
    preprocessing: Literal["python", "dali"] = Field(
        default="python", description="Who makes tensors of images: Pillow in Triton's Python backend, or NVIDIA DALI."
    )
