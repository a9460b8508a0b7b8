"""Pipeline sections of a spec: raw inputs and outputs, companion models, and a script that calls them."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from plansmith.config.data import DataSpec
from plansmith.config.engine_options import LoweringOptions, WrittenPrecision
from plansmith.config.shapes import WrittenRange
from plansmith.records.fields import ByteCount, Confidential, Part, PositiveCount, Switch
from plansmith.records.model import EngineKind, Record
from plansmith.records.pipeline import RawInput, RawOutput
from plansmith.records.validation import ToleranceChange

OLD_MODELS = "beside"
"""What `models` of a pipeline was called; read until the release after 0.1."""

_NAME = re.compile(r"[a-z][a-z0-9_]{0,31}")
_TAKEN = {"main", "model"}


class DaliOptions(Record):
    """DALI settings: threads, and the GPU memory that its decoder preallocates.

    What is left out, but for the threads, is as DALI has it. Source: `num_threads` of
    https://github.com/triton-inference-server/dali_backend, and `fn.decoders.image` of
    https://docs.nvidia.com/deeplearning/dali, of whose hints "mixed" decoders take notice and those on a CPU do not.
    """

    num_threads: PositiveCount = Field(default=4, description="How many threads of the CPU work on a batch.")
    device_memory_padding: ByteCount | None = Field(
        default=None, description="Memory of the GPU that the decoder sets aside for each thread; 16M by default."
    )
    host_memory_padding: ByteCount | None = Field(
        default=None, description="Pinned memory that the decoder sets aside for each thread, twice; 8M by default."
    )
    preallocate_width_hint: PositiveCount | None = Field(
        default=None, description="Width in pixels that the GPU's JPEG decoder sets memory aside for; none by default."
    )
    preallocate_height_hint: PositiveCount | None = Field(
        default=None, description="Height in pixels that the GPU's JPEG decoder sets memory aside for; none by default."
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.preallocate_width_hint is None) != (self.preallocate_height_hint is None):
            raise ValueError("preallocate_width_hint and preallocate_height_hint go together")
        return self

    @property
    def decoder_hints(self) -> dict[str, int]:
        """The decoder's hint arguments on a GPU, by name: bytes, and pixels."""
        return self.model_dump(exclude={"num_threads"}, exclude_none=True)


class PipelineOptions(Record):
    """Pre- and postprocessing options; omitted ones are derived from the model."""

    input: RawInput | Literal[""] = Field(
        default="", description="What clients send: text, image or audio; told by the model when left out."
    )
    output: RawOutput | Literal[""] = Field(
        default="",
        description="What the server answers with, such as labels or text, or tensors for the model's own outputs; told"
        " by the model's task when left out.",
    )
    top_k: PositiveCount = Field(
        default=5, description="How many labels, or tokens for a mask, an answer has, the likeliest first."
    )
    hypothesis_template: str = Field(
        default="This is a photo of {}.",
        description="For texts that come with an image: the sentence that each is put into, in the place of {}.",
    )
    compressed_audio: Switch = Field(
        default=False,
        description="Read FLAC and MP3 files as well as WAV, with the library soundfile (extra `audio`).",
    )
    padding: Literal["longest", "opt"] = Field(
        default="longest",
        description="How far texts are padded: to the longest of a batch, or at least to the usual length (opt).",
    )
    max_length: PositiveCount | None = Field(
        default=None,
        description="Most tokens of a text; what is longer is cut off. The model's own when left out.",
    )
    max_new_tokens: PositiveCount | None = Field(
        default=None,
        description="Most tokens that a request may ask a generating model for; what the model can when left out.",
    )
    stream: Switch = Field(
        default=False,
        description="Have a generating model send its text piece by piece to requests that ask for it (gRPC alone).",
    )
    instances: PositiveCount = Field(
        default=1,
        description="How many instances of each part before and behind the model, and of a script, run at once.",
    )
    preprocessing: Literal["python", "dali"] = Field(
        default="python", description="Who makes tensors of images: Pillow in Triton's Python backend, or NVIDIA DALI."
    )
    threshold: Part = Field(default=0.5, description="What the score of an object has to be above, from 0 to 1.")
    frontend: Literal["", "dynamo"] = Field(
        default="",
        description="What asks the server in place of clients: dynamo has classifiers and embeddings of texts as"
        " /v1/classify and /v1/embeddings; a classifier answers with the scores of all classes, in their order.",
    )
    dali: DaliOptions | None = Field(default=None, description="What DALI works with, where it makes them.")

    @field_validator("hypothesis_template")
    @classmethod
    def _check_template(cls, value: str) -> str:
        if value.count("{}") != 1 or set(value.replace("{}", "")) & {"{", "}"}:
            raise ValueError(f"{value!r} has to hold {{}} once, where a text goes, and no other brace")
        return value

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.dali is not None and self.preprocessing != "dali":
            raise ValueError("dali: {…} is for preprocessing: dali; write both or neither")
        return self


class CompanionModel(Record):
    """Companion model that gets the same requests: its source, lowering, gate and answers.

    What is left out has its usual default, but for the precision; what cannot be said here is as the spec says it.
    """

    source: Annotated[str, Confidential()] = Field(
        description="Where the model comes from, as for the spec's own `source`.",
        json_schema_extra={"pattern": "^((hf|timm):[^~]|mlflow:models:/.|s3://[A-Za-z0-9])"},
    )
    task: str = Field(default="", description="Which head it gets, by the name of a transformers pipeline.")
    engine: EngineKind | None = Field(
        default=None,
        description="Which Triton backend serves it: python for one that generates text. That of the spec when left"
        " out.",
    )
    precision: WrittenPrecision | None = Field(
        default=None, description="What its graph is stored and computed in; that of the spec when left out."
    )
    data: DataSpec | None = Field(default=None, description="Real inputs, and labels where there are some.")
    lowering: LoweringOptions = Field(default=LoweringOptions(), description="How its precision is lowered.")
    shapes: dict[str, WrittenRange] = Field(
        default_factory=dict, description="Smallest, usual and largest shape per input; derived when left out."
    )
    tolerances: dict[str, ToleranceChange] = Field(
        default_factory=dict, description="What its gate allows, per output."
    )
    outputs: tuple[str, ...] = Field(default=(), description="Which of its outputs to serve; all by default.")
    random_weights: Switch = Field(default=False, description="Draw its weights instead of loading them.")
    trust_remote_code: Switch = Field(default=False, description="Run Python code that comes with it.")
    allow_pickle: Switch = Field(default=False, description="Read its pickled weights, which can run any code.")
    pipeline: PipelineOptions = Field(
        default=PipelineOptions(), description="What its answers are made of, as for the spec's own `pipeline`."
    )


class PipelineSpec(PipelineOptions):
    """Pipeline section of a spec: parts around its model, including companion models."""

    models: dict[str, CompanionModel] = Field(
        default_factory=dict,
        description="Further models that every request goes to, by name; their outputs begin with it, as in"
        " topics_label. What makes the same inputs is there once.",
    )
    script: str = Field(
        default="",
        description="Python file, relative to the spec, whose `answer(inputs, models)` answers requests by asking the"
        " models as it sees fit, in place of all of them being asked.",
    )

    @model_validator(mode="before")
    @classmethod
    def _read_old_name(cls, value: Any) -> Any:
        if not isinstance(value, dict) or OLD_MODELS not in value:
            return value
        if "models" in value:
            raise ValueError(f"`{OLD_MODELS}` is the old name of `models`: write one of the two")
        return {"models" if key == OLD_MODELS else key: item for key, item in value.items()}

    @field_validator("models")
    @classmethod
    def _check_names(cls, value: dict[str, CompanionModel]) -> dict[str, CompanionModel]:
        for name in value:
            if not _NAME.fullmatch(name) or name in _TAKEN:
                raise ValueError(f"{name!r} is no name for a further model: a-z, 0-9 and _, and none of main, model")
        return value

    @model_validator(mode="after")
    def _check_frontend(self) -> Self:
        several = [name for name in ("models", "script") if getattr(self, name)]
        if self.frontend and several:
            raise ValueError(f"a frontend asks one model, and there is `{several[0]}`")
        frontend_model = next((name for name, model in self.models.items() if model.pipeline.frontend), "")
        if frontend_model:
            raise ValueError(f"a frontend asks one model, and {frontend_model} stands beside another")
        return self

    @property
    def around_one(self) -> PipelineOptions:
        """Pipeline options of the model itself."""
        return PipelineOptions.model_validate({name: getattr(self, name) for name in PipelineOptions.model_fields})
