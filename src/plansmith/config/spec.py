"""Model spec: one model to compile, as one pydantic class; refuses unknown keys and reports every problem at once."""

from __future__ import annotations

import re
import reprlib
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from plansmith.config.data import DataSpec
from plansmith.config.engine_options import LoweringOptions, PythonOptions, TensorRTOptions, WrittenPrecision
from plansmith.config.messages import KnownKeys, validation_message
from plansmith.config.pipeline import PipelineSpec
from plansmith.config.shapes import WrittenRange
from plansmith.config.targets import DEFAULT_TARGET, is_target_file, load_target
from plansmith.config.triton import TritonOptions
from plansmith.errors import EngineError, UsageError, in_one_line
from plansmith.formatting import count
from plansmith.records.destination import Destinations, WrittenPlace
from plansmith.records.fields import HIDDEN, Confidential, Number, Switch
from plansmith.records.model import Dim, EngineKind, ExportDevice, Precision, Record
from plansmith.records.release import SourceOverride
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


def _read_dim(value: Any) -> Dim:
    """Parse a dim: a size, or the name of a dynamic axis."""
    if isinstance(value, str) and _AXIS.fullmatch(value):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool) and value >= 1 and value == value // 1:
        return int(value)
    raise ValueError("dims are sizes of 1 or more, or names of letters, digits and _, like [batch, 3, 224]")


class InputSpec(Record):
    """Description of one input that the model leaves undescribed: its tensor form, and the source of its values.

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
    """Complete description of one input, merged from all parts of a spec by `ModelSpec.described_inputs`.

    Attributes:
        served_dtype: as in `io_dtypes`; empty for the model's own.
        layout: as in `io_layouts`; empty for the model's own.
    """

    served_dtype: Literal["", "int32"] = ""
    layout: Literal["", "nhwc"] = ""

    @property
    def is_description(self) -> bool:
        """Whether it describes the input itself, and not only the form in which it is served."""
        return self != DescribedInput(served_dtype=self.served_dtype, layout=self.layout)


def name_from(text: str) -> str:
    """Derive a valid model name from any text; drops accents and other alphabets."""
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
    return re.sub(r"[^A-Za-z0-9._-]+", "-", plain).lstrip("-._")[:_LONGEST_NAME].rstrip("-") or "model"


def _check_triton(value: str) -> str:
    wrong = wrong_triton(value)
    if wrong is not None:
        raise ValueError(f"no address of a Triton: {wrong}")
    return value


class ModelSpec(Record):
    """Spec of one model to compile. Every field but `source` has a default."""

    model_config = ConfigDict(frozen=True, defer_build=True, extra="forbid")

    source: Annotated[str, Confidential()] = Field(
        description="Where the model comes from: hf:<id or directory>[@revision], timm:<name or directory>,"
        " onnx:<file>, torch:<file.pt2>, mlflow:models:/<name>@<alias> (or /<version>, /latest) or"
        " s3://<bucket>/<prefix or key.tar.gz>; a path is relative to the spec.",
        json_schema_extra={"pattern": "^((hf|timm|onnx|torch):[^~]|mlflow:models:/.|s3://[A-Za-z0-9])"},
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
        " follow. One shape stands for all three: the axes stay dynamic for clients, other sizes are not validated, and"
        " a TensorRT plan takes none. Derived from the model when left out.",
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
    isolate: Switch = Field(
        default=True,
        description="Keep code of the model's own, pickles and functions of yours from the network and from your"
        " credentials while the model is compiled.",
    )
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
        """All input descriptions of the spec, by name."""
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
    """Problem in a spec.

    Args:
        keys: lead to it, from the outside in; none for the spec as a whole.
        kind: a key that nobody knows, one that is not there, or anything else.
        message: what is wrong, in full but for the place; for an unknown key the key alone.
        place: the file and line, or the command line.
        line: in the file, from 1; 0 where there is none.
    """

    keys: tuple[str, ...]
    kind: Literal["unknown", "missing", "wrong"]
    message: str
    place: str = "command line"
    line: int = 0


def find_problems(values: Mapping[str, Any]) -> list[Problem]:
    """Return every problem in the values of one model."""
    try:
        ModelSpec.model_validate(dict(values))
    except ValidationError as invalid:
        return problems_of(invalid, values, ModelSpec)
    return []


def problems_of(invalid: ValidationError, values: Any, model: type[BaseModel]) -> list[Problem]:
    """Return the problems of a file's values; those of unknown keys with what they may have been."""
    problems = [problem_of(error, values) for error in invalid.errors()]
    if all(problem.kind != "unknown" for problem in problems):
        return problems
    known = KnownKeys(model.model_json_schema())
    return [with_suggestion(problem, known) for problem in problems]


def make_spec(values: Mapping[str, Any], *, place: str = "command line") -> ModelSpec:
    """Validate values and build a spec from them.

    Args:
        values: by key.
        place: where they come from, for messages.

    Raises:
        UsageError: names every problem at once.
    """
    try:
        return ModelSpec.model_validate(dict(values))
    except ValidationError as invalid:
        problems = problems_of(invalid, values, ModelSpec)
    problems += unknown_targets(values.get("target"))
    raise refusal([replace(problem, place=place) for problem in problems])


def unknown_targets(target: Any) -> Iterator[Problem]:
    """Return the targets, of one or a list, that cannot be loaded, to add to reports of other problems.

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


def refusal(problems: Sequence[Problem], *, subject: str = "the spec", remedy: str = "") -> UsageError:
    """Build one error of all problems, in line order; unknown keys are grouped, and the length fits a screen.

    Without a remedy of their own they are to be mended.
    """
    ordered = sorted(problems, key=lambda problem: problem.line)
    unknown = [f"{p.place} {p.message}" for p in ordered if p.kind == "unknown"]
    listed = [f"unknown key{'s' * (len(unknown) > 1)}: {', '.join(unknown)}"] if unknown else []
    listed += [f"{p.place}: {p.message}" for p in ordered if p.kind != "unknown"]
    more = len(listed) - _MOST_PROBLEMS
    shown = listed[:_MOST_PROBLEMS] + ([f"… and {more} more"] if more > 0 else [])
    return UsageError(
        "\n  ".join([f"{count(len(problems), 'problem')} in {subject}:", *shown]),
        remedy=remedy or f"mend {'this' if len(problems) == 1 else 'these'} and run it again",
    )


def with_suggestion(problem: Problem, known: KnownKeys) -> Problem:
    """Return a problem; that of an unknown key with its place, or with the known key that resembles it."""
    if problem.kind != "unknown":
        return problem
    return replace(problem, message=f"{problem.message}{known.suggestion(problem.keys)}")


def got(value: Any) -> str:
    """Format an unexpected value in brackets; of a collection only its type."""
    if value and isinstance(value, list | tuple | dict):
        return f"(got a {'mapping' if isinstance(value, dict) else 'list'})"
    return f"(got {_SHORT.repr(value)})"


def escaped(value: Any) -> Any:
    """Escape a value for a spec file, where $$ stands for a dollar sign."""
    if isinstance(value, str):
        return value.replace("$", "$$")
    if isinstance(value, list):
        return [escaped(item) for item in value]
    if isinstance(value, dict):
        return {escaped(key): escaped(item) for key, item in value.items()}
    return value


def _written(place: Sequence[str | int], values: Any) -> Iterator[str | int]:
    """Return the key path in a document, without the union member tag that pydantic appends."""
    for key in place:
        if isinstance(values, Mapping) and key not in values and key in values.values():
            continue
        yield key
        values = values.get(key) if isinstance(values, Mapping) else None


def problem_of(error: Mapping[str, Any], values: Any) -> Problem:
    """Convert one of `ValidationError.errors()` to a problem of the user's file with these values."""
    keys = tuple(str(key) for key in _written(error["loc"], values))
    path = repr(".".join(keys))
    if error["type"] == "extra_forbidden":
        return Problem(keys, "unknown", path)
    if error["type"] == "missing":
        return Problem(keys, "missing", f"{path} is missing")
    message, value = f"{path}: {validation_message(error)}", error["input"]
    if value is HIDDEN:
        return Problem(keys, "wrong", message)
    # What stands in the place of a whole section may be any of its values.
    is_section = isinstance(value, str) and error["type"] in _SECTION_WANTED
    return Problem(keys, "wrong", f"{message} {'(got text)' if is_section else got(value)}")


@dataclass(frozen=True)
class NamedSpec:
    """Model of a spec file, with its name, set or derived from its source.

    Args:
        name: of the model.
        spec: for one target.
        target: what the target was called where a list of them was given; such a model is there once for each.
    """

    name: str
    spec: ModelSpec
    target: str = ""

    @property
    def label(self) -> str:
        """A label that distinguishes the model from the others of its file."""
        return f"{self.name} for {self.target}" if self.target else self.name


def without_targets(values: Mapping[str, Any]) -> tuple[dict[str, Any], list[Any] | None]:
    """Return the values without their list of targets, and the list; None if there is none."""
    targets = values.get("target")
    if not isinstance(targets, list):
        return dict(values), None
    return {key: value for key, value in values.items() if key != "target"}, targets


def for_targets(named: NamedSpec, targets: Sequence[str]) -> list[NamedSpec]:
    """Return one spec per target, each with a repository and stores of its own.

    Raises:
        UsageError: the list is empty, two of them would have one repository, or servers are to load the model.
    """
    problems = list(target_problems(list(targets)))
    if named.spec.load_into and len(targets) > 1:
        message = (
            "'load_into': a server reads the repository of one target, and here are several: compile one at a time"
        )
        problems.append(Problem(("load_into",), "wrong", message))
    if problems:
        raise refusal(problems)
    base = repository_of(named.spec.model_dump())
    return [
        replace(
            named,
            spec=named.spec.model_copy(
                update={
                    "target": target,
                    "repository": str(base / folder_of(target)),
                    "publish": tuple(place.within(folder_of(target)) for place in named.spec.publish),
                }
            ),
            target=folder_of(target),
        )
        for target in targets
    ]


def folder_of(target: str) -> str:
    """Return the folder name of a target's repository: the target's name, or that of its file."""
    return Path(target).stem if is_target_file(target) else target


def target_problems(targets: Sequence[Any]) -> Iterator[Problem]:
    """Return the problems of a list of targets; whether they exist is checked later, target by target."""
    if not targets:
        yield Problem(("target",), "wrong", "'target': a list names at least one (got [])")
    for number, target in enumerate(targets):
        if not isinstance(target, str) or not target:
            yield Problem(("target", str(number)), "wrong", f"'target': must be text {got(target)}")
        elif folder_of(target) in [folder_of(item) for item in targets[:number] if isinstance(item, str)]:
            yield Problem(("target", str(number)), "wrong", f"'target' names {folder_of(target)!r} more than once")


def repository_of(values: Mapping[str, Any]) -> Path:
    """Return the repository of a model; for several targets, the parent folder of their repositories."""
    return Path(str(values.get("repository") or Path(str(values.get("artifacts", "artifacts"))) / "repository"))
