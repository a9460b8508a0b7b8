"""One model to compile as a person describes it: one pydantic class, unknown keys refused, every problem at once."""

from __future__ import annotations

import re
import reprlib
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from plansmith.config.data import DataSpec
from plansmith.config.messages import validation_message
from plansmith.config.pipeline import PipelineSpec
from plansmith.config.precision import LoweringOptions, WrittenPrecision
from plansmith.config.python import PythonOptions
from plansmith.config.shapes import WrittenRange
from plansmith.config.target.targets import DEFAULT_TARGET, load_target
from plansmith.config.tensorrt import TensorRTOptions
from plansmith.config.triton import TritonOptions
from plansmith.errors import EngineError, UsageError, in_one_line
from plansmith.records.destination import Destinations, WrittenPlace
from plansmith.records.fields import HIDDEN, Confidential, Number, Switch
from plansmith.records.fingerprint import SourceOverride
from plansmith.records.model import Dim, EngineKind, ExportDevice, Precision, Record
from plansmith.records.validation import ToleranceChange
from plansmith.system.urls import wrong_triton

# What Triton, its Python backend and its clients all take, in paths, arguments and URLs.
_LONGEST_NAME = 128
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_MOST_PROBLEMS = 10
_AXIS = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

# What NumPy and Triton both carry.
INPUT_DTYPES = (
    *("bool", "float16", "float32", "float64"),
    *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
)

_SHORT = reprlib.Repr()
_SHORT.maxlevel, _SHORT.maxstring, _SHORT.maxother = 2, 200, 200

_SECTION_WANTED = {"dict_type", "list_type", "model_attributes_type", "model_type", "tuple_type"}

_DIM_SCHEMA = {"anyOf": [{"type": "integer", "minimum": 1}, {"type": "string", "pattern": f"^{_AXIS.pattern}$"}]}


def _read_dim(given: Any) -> Dim:
    """A size, or the name of an axis that moves."""
    if isinstance(given, str) and _AXIS.fullmatch(given):
        return given
    if isinstance(given, int | float) and not isinstance(given, bool) and given >= 1 and given == given // 1:
        return int(given)
    raise ValueError("dims are sizes of 1 or more, or names of letters, digits and _, like [batch, 3, 224]")


class InputSpec(Record):
    """One input of a model that nothing describes: its form, and what its values are drawn from.

    Without `low` and `high`, floats are drawn from the standard normal distribution, integers from 0 to 7.
    """

    dtype: str = Field(
        default="",
        description="NumPy's name of the element type; an ONNX file knows it itself.",
        json_schema_extra={"enum": ["", *INPUT_DTYPES]},
    )
    dims: tuple[Annotated[Dim, BeforeValidator(_read_dim), WithJsonSchema(_DIM_SCHEMA)], ...] = Field(
        default=(), description="Batch first: names of axes that move, numbers where the size is fixed."
    )
    low: Number | None = Field(default=None, description="Smallest value.")
    high: Number | None = Field(default=None, description="Largest value, included.")
    mask: Switch = Field(default=False, description="Marks padding with 0: ones, then zeros, in every row.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.dtype and self.dtype not in INPUT_DTYPES:
            raise ValueError(f"dtype {self.dtype!r} is none of {', '.join(INPUT_DTYPES)}")
        if (self.low is None) != (self.high is None):
            raise ValueError("low and high go together")
        if self.low is not None and self.high is not None and self.low > self.high:
            raise ValueError(f"low {self.low:g} is above high {self.high:g}")
        if self.mask and self.low is not None:
            raise ValueError("a mask holds zeros and ones, and has no low and high")
        return self


class DescribedInput(InputSpec):
    """All that a spec says of one input, wherever it says it; made by `ModelSpec.described_inputs`.

    Attributes:
        served_dtype: as in `io_dtypes`; empty for the model's own.
        layout: as in `io_layouts`; empty for the model's own.
    """

    served_dtype: Literal["", "int32"] = ""
    layout: Literal["", "nhwc"] = ""

    @property
    def is_description(self) -> bool:
        """Whether it says what the input is, and not only in which form it is served."""
        return self != DescribedInput(served_dtype=self.served_dtype, layout=self.layout)


def name_from(text: str) -> str:
    """A name that a model can have, made from any text: its accents and other alphabets left out."""
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
    return re.sub(r"[^A-Za-z0-9._-]+", "-", plain).lstrip("-._")[:_LONGEST_NAME].rstrip("-") or "model"


def _check_triton(value: str) -> str:
    wrong = wrong_triton(value)
    if wrong is not None:
        raise ValueError(f"no address of a Triton: {wrong}")
    return value


class ModelSpec(Record):
    """One model to compile. Every field but `source` has a default."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    source: Annotated[str, Confidential()] = Field(
        description="Where the model comes from: hf:<id or directory>[@revision], timm:<name or directory>,"
        " onnx:<file>, mlflow:models:/<name>@<alias> (or /<version>, /latest) or s3://<bucket>/<prefix or key.tar.gz>;"
        " a path is relative to the spec.",
        json_schema_extra={"pattern": "^((hf|timm|onnx):[^~]|mlflow:models:/.|s3://[A-Za-z0-9])"},
    )
    source_override: SourceOverride | None = Field(
        default=None, description="How an event of a registry set the source; written by triggers alone."
    )
    name: str = Field(
        default="",
        description="Name of the model in Triton; made from the source when left out.",
        json_schema_extra={"pattern": f"^({_NAME.pattern})?$"},
    )
    engine: EngineKind = Field(default=EngineKind.ONNXRUNTIME, description="Which Triton backend serves the model.")
    precision: WrittenPrecision = Field(
        default=Precision.FP32,
        description="What the graph is stored and computed in; auto takes the fastest that is accurate enough.",
    )
    data: DataSpec | None = Field(
        default=None, description="Real inputs, and labels where there are some: what precision is judged by."
    )
    lowering: LoweringOptions = Field(
        default=LoweringOptions(), description="What may be lowered, how, and how long a recipe is looked for."
    )
    shapes: dict[str, WrittenRange] = Field(
        default_factory=dict,
        description="Smallest, usual and largest shape (min:opt:max) per input, batch first; inputs that share axes"
        " follow. Derived from the model when left out.",
    )
    target: str = Field(
        default=DEFAULT_TARGET, description="Serving runtime that the release is made for and checked with."
    )
    repository: str = Field(
        default="",
        description="Triton model repository, relative to the spec; <artifacts>/repository when left out.",
    )
    artifacts: str = Field(
        default="artifacts",
        description="Cache, logs and default repository, relative to the spec; when left out, artifacts in the"
        " working directory.",
    )
    shared_cache: WrittenPlace | None = Field(
        default=None,
        description="Where machines share finished steps: a folder, relative to the spec, or s3://bucket/prefix, or a"
        " mapping that also says how it is reached.",
    )
    random_weights: Switch = Field(default=False, description="Draw the weights instead of loading them.")
    trust_remote_code: Switch = Field(default=False, description="Run Python code that comes with the model.")
    allow_pickle: Switch = Field(default=False, description="Read pickled weights and modules, which can run any code.")
    device: ExportDevice = Field(
        default="cpu", description="Where PyTorch holds the model while it is asked and exported."
    )
    check_served: Switch = Field(default=True, description="Load and ask the release on a real Triton.")
    allow_interface_change: Switch = Field(
        default=False, description="Publish even if inputs or outputs differ from those of the version before."
    )
    load_into: Annotated[tuple[Annotated[str, AfterValidator(_check_triton)], ...], Confidential()] = Field(
        default=(),
        description="Running Tritons that read the repository and have to load the version, such as"
        " grpc://127.0.0.1:8001; one that refuses it withdraws it.",
        json_schema_extra={"uniqueItems": True},
    )
    load_seconds: Number = Field(
        default=900, gt=0, description="How long each of those may take to load it, before it counts as refused."
    )
    publish: Destinations = Field(
        default=(),
        description="Where the release is published besides: a folder, relative to the spec, or s3://bucket/prefix;"
        " with more to say of it a mapping; or a list of them.",
        json_schema_extra={"uniqueItems": True},
    )
    force: Switch = Field(default=False, description="Do every step again and publish a new version.")
    tritonserver: str = Field(
        default="", description="Triton for the check, relative to the spec; found when left out."
    )
    tolerances: dict[str, ToleranceChange] = Field(
        default_factory=dict,
        description="What the gate allows, per output; what is left out follows the precision.",
    )
    tensorrt: TensorRTOptions = Field(
        default=TensorRTOptions(), description="How a TensorRT plan is built, and for which GPUs."
    )
    python: PythonOptions = Field(
        default=PythonOptions(),
        description="How models run in the Python backend: a PyTorch model (engine python), parts of a pipeline.",
    )
    pipeline: PipelineSpec | None = Field(
        default=None,
        description="Serve raw inputs and outputs around the model: text or images in, labels or embeddings out; {}"
        " takes what the model suggests.",
    )
    triton: TritonOptions = Field(
        default=TritonOptions(), description="What the served configuration says beyond what the graph determines."
    )
    task: str = Field(default="", description="Which head the model gets, by the name of a transformers pipeline.")
    inputs: dict[str, InputSpec] = Field(
        default_factory=dict, description="The inputs, where nothing describes them or others are wanted."
    )
    io_dtypes: dict[str, Literal["int32"]] = Field(
        default_factory=dict,
        description="Inputs of int64, such as token ids, that are served as int32: {input_ids: int32}.",
    )
    io_layouts: dict[str, Literal["nhwc"]] = Field(
        default_factory=dict,
        description="Images that are served with their channels last: {pixel_values: nhwc}; `shapes` are so, too.",
    )
    outputs: tuple[str, ...] = Field(
        default=(),
        description="Which outputs to serve, in this order; all by default.",
        json_schema_extra={"uniqueItems": True},
    )

    @field_validator("name")
    @classmethod
    def _check_name(cls, value: str) -> str:
        if value and not _NAME.fullmatch(value):
            raise ValueError(
                "a name has at most 128 of A-Z a-z 0-9 . _ - and starts with a letter or digit,"
                f" such as {name_from(value)!r}"
            )
        return value

    @property
    def described_inputs(self) -> dict[str, DescribedInput]:
        """All that the spec says of inputs, by name."""
        names = dict.fromkeys((*self.inputs, *self.io_dtypes, *self.io_layouts))
        return {
            name: DescribedInput(
                **self.inputs.get(name, InputSpec()).model_dump(),
                served_dtype=self.io_dtypes.get(name, ""),
                layout=self.io_layouts.get(name, ""),
            )
            for name in names
        }

    @model_validator(mode="after")
    def _check_layouts(self) -> Self:
        if self.io_layouts and self.pipeline is not None:
            raise ValueError("clients of a pipeline send files, and not images in a layout: leave `io_layouts` out")
        return self

    @field_validator("outputs")
    @classmethod
    def _check_outputs(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        repeated = sorted({name for name in value if value.count(name) > 1})
        if repeated:
            raise ValueError(f"names {', '.join(map(repr, repeated))} more than once")
        return value


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong with a spec.

    Args:
        keys: lead to it, from the outside in; none for the spec as a whole.
        kind: a key that nobody knows, one that is not there, or anything else.
        words: what is wrong, in full but for the place; for an unknown key the key alone.
        place: the file and line, or the command line.
        line: in the file, from 1; 0 where there is none.
    """

    keys: tuple[str, ...]
    kind: Literal["unknown", "missing", "wrong"]
    words: str
    place: str = "command line"
    line: int = 0


def find_problems(values: Mapping[str, Any]) -> list[Problem]:
    """All that is wrong with the values of one model."""
    try:
        ModelSpec.model_validate(dict(values))
    except ValidationError as invalid:
        return [problem_of(error, values) for error in invalid.errors()]
    return []


def make_spec(values: Mapping[str, Any]) -> ModelSpec:
    """Check values and make a spec of them.

    Raises:
        UsageError: names every problem at once.
    """
    try:
        return ModelSpec.model_validate(dict(values))
    except ValidationError as invalid:
        found = [problem_of(error, values) for error in invalid.errors()]
    raise refusal([*found, *unknown_targets(values.get("target"))])


def unknown_targets(target: Any) -> Iterator[Problem]:
    """Of one target or a list, those that cannot be loaded: for whoever is told of other problems.

    Where nothing else is wrong, each is an error of its own.
    """
    several = isinstance(target, list)
    for number, name in enumerate(target if several else [target]):
        if isinstance(name, str) and name:
            try:
                load_target(name)
            except EngineError as error:
                keys = ("target", str(number)) if several else ("target",)
                yield Problem(keys, "wrong", f"'target': {in_one_line(error.message)}; {error.remedy}")


def refusal(
    found: Sequence[Problem], *, what: str = "the spec", remedy: str = "mend these and run it again"
) -> UsageError:
    """One error for all problems, in the order of their lines; unknown keys together, and no more than fit a screen."""
    ordered = sorted(found, key=lambda problem: problem.line)
    unknown = [f"{p.place} {p.words}" for p in ordered if p.kind == "unknown"]
    listed = [f"unknown key(s): {', '.join(unknown)}"] if unknown else []
    listed += [f"{p.place}: {p.words}" for p in ordered if p.kind != "unknown"]
    more = len(listed) - _MOST_PROBLEMS
    shown = listed[:_MOST_PROBLEMS] + ([f"… and {more} more"] if more > 0 else [])
    return UsageError("\n  ".join([f"{len(found)} problem(s) in {what}:", *shown]), remedy=remedy)


def got(value: Any) -> str:
    """What stood where something else should, in brackets; of what holds several values only its kind is shown."""
    if value and isinstance(value, list | tuple | dict):
        return f"(got a {'mapping' if isinstance(value, dict) else 'list'})"
    return f"(got {_SHORT.repr(value)})"


def escaped(value: Any) -> Any:
    """A value as it has to stand in a spec file, where $$ means a dollar sign."""
    if isinstance(value, str):
        return value.replace("$", "$$")
    if isinstance(value, list):
        return [escaped(item) for item in value]
    if isinstance(value, dict):
        return {escaped(key): escaped(item) for key, item in value.items()}
    return value


def _written(place: Sequence[str | int], values: Any) -> Iterator[str | int]:
    """The keys of a place in a document, without the kind that pydantic puts behind that of a union's member."""
    for key in place:
        if isinstance(values, Mapping) and key not in values and key in values.values():
            continue
        yield key
        values = values.get(key) if isinstance(values, Mapping) else None


def problem_of(error: Mapping[str, Any], values: Any) -> Problem:
    """One of `ValidationError.errors()` as a problem of a file that a person wrote, whose values are these."""
    keys = tuple(str(key) for key in _written(error["loc"], values))
    path = repr(".".join(keys))
    if error["type"] == "extra_forbidden":
        return Problem(keys, "unknown", path)
    if error["type"] == "missing":
        return Problem(keys, "missing", f"{path} is missing")
    words, given = f"{path}: {validation_message(error)}", error["input"]
    if given is HIDDEN:
        return Problem(keys, "wrong", words)
    # What stands in the place of a whole section may be any of its values.
    is_section = isinstance(given, str) and error["type"] in _SECTION_WANTED
    return Problem(keys, "wrong", f"{words} {'(got text)' if is_section else got(given)}")
