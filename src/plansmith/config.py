"""The models of configs/models/*.yaml: one pydantic class, unknown keys refused, every problem at once."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import BeforeValidator, ConfigDict, Field, ValidationError, field_validator, model_validator

from plansmith.errors import UsageError
from plansmith.shapes import InputRange, parse_range
from plansmith.targets import DEFAULT_TARGET
from plansmith.types import Dim, EngineKind, Precision, Record, Tolerance

if TYPE_CHECKING:
    import yaml

# What Triton, its Python backend and its clients all take, in paths, arguments and URLs.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_MOST_PROBLEMS = 10
_AXIS = re.compile(r"[A-Za-z_]\w*")

# What NumPy and Triton both carry.
INPUT_DTYPES = (
    *("bool", "float16", "float32", "float64"),
    *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
)


def _read_range(given: Any) -> InputRange:
    """A range as a person writes it: YAML makes a number of 1:8:32 without quotes."""
    if isinstance(given, InputRange):
        return given
    if not isinstance(given, str):
        raise ValueError("write it as text in quotes, like '1x8:8x64:32x256'")  # noqa: TRY004 - what pydantic collects
    try:
        return parse_range("", given)
    except UsageError as error:
        raise ValueError(error.message.partition(": ")[2]) from error


class TritonOptions(Record):
    """What the served configuration says beyond what the graph determines.

    `max_queue_delay_microseconds`: how long the dynamic batcher waits to fill a batch.
    `instances`: copies of the model that answer at the same time.
    """

    max_queue_delay_microseconds: int = Field(default=100, ge=0)
    instances: int = Field(default=1, ge=1)


class InputSpec(Record):
    """One input of a model that nothing describes: its form, and what its values are drawn from.

    Without `low` and `high`, floats are drawn from the standard normal distribution, integers from 0 to 7.
    """

    dtype: str = Field(default="", description="NumPy's name of the element type; an ONNX file knows it itself.")
    dims: tuple[Dim, ...] = Field(
        default=(), description="Batch first: names of axes that move, numbers where the size is fixed."
    )
    low: float | None = Field(default=None, allow_inf_nan=False, description="Smallest value.")
    high: float | None = Field(default=None, allow_inf_nan=False, description="Largest value, included.")
    mask: bool = Field(default=False, description="Marks padding with 0: ones, then zeros, in every row.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.dtype and self.dtype not in INPUT_DTYPES:
            raise ValueError(f"dtype {self.dtype!r} is none of {', '.join(INPUT_DTYPES)}")
        if any(d < 1 if isinstance(d, int) else not _AXIS.fullmatch(d) for d in self.dims):
            raise ValueError("dims are sizes of 1 or more, or names of letters, digits and _, like [batch, 3, 224]")
        if (self.low is None) != (self.high is None):
            raise ValueError("low and high go together")
        if self.low is not None and self.high is not None and self.low > self.high:
            raise ValueError(f"low {self.low:g} is above high {self.high:g}")
        if self.mask and self.low is not None:
            raise ValueError("a mask holds zeros and ones, and has no low and high")
        return self


class ModelSpec(Record):
    """One model to compile, as a person describes it. Every field but `source` has a default."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    source: str
    name: str = ""
    engine: EngineKind = EngineKind.ONNXRUNTIME
    precision: Precision = Precision.FP32
    shapes: dict[str, Annotated[InputRange, BeforeValidator(_read_range)]] = Field(default_factory=dict)
    target: str = DEFAULT_TARGET
    repository: str = ""
    artifacts: str = "artifacts"
    random_weights: bool = False
    trust_remote_code: bool = False
    allow_pickle: bool = False
    check_served: bool = True
    allow_interface_change: bool = False
    force: bool = False
    tritonserver: str = ""
    tolerances: dict[str, Tolerance] = Field(default_factory=dict)
    triton: TritonOptions = TritonOptions()
    task: str = Field(default="", description="Which head the model gets, by the name of a transformers pipeline.")
    inputs: dict[str, InputSpec] = Field(
        default_factory=dict, description="The inputs, where nothing describes them or others are wanted."
    )
    outputs: tuple[str, ...] = Field(default=(), description="Which outputs to serve, in this order; all by default.")

    @field_validator("name")
    @classmethod
    def _check_name(cls, value: str) -> str:
        if value and not _NAME.fullmatch(value):
            raise ValueError("a name has at most 128 of A-Z a-z 0-9 . _ - and starts with a letter or digit")
        return value


def load_spec(path: Path, overrides: Mapping[str, Any]) -> ModelSpec:
    """Read a YAML spec; `overrides` (from the command line) win over what stands in it.

    Folders in a spec are relative to the spec's own place.

    Raises:
        UsageError: the file cannot be read, or lists every problem with its line.
    """
    import yaml

    try:
        text = path.read_text(encoding="utf-8")
        tree = yaml.compose(text, Loader=yaml.SafeLoader)
        values = yaml.safe_load(text)
    except OSError as error:
        raise UsageError(f"cannot read the spec {path}: {error.strerror}", remedy="give a YAML file") from error
    except (yaml.YAMLError, ValueError) as error:
        said = str(error).replace("<unicode string>", str(path))
        raise UsageError(f"{path} is not YAML: {said}", remedy="mend the file") from error
    if not isinstance(values, dict):
        raise UsageError(
            f"{path}: a spec is a mapping with at least `source`", remedy="see configs/models for examples"
        )
    named = [k for k in ("artifacts", "repository", "tritonserver") if isinstance(values.get(k), str) and values[k]]
    folders = {k: str(path.parent / values[k]) for k in named}
    return make_spec(values | folders | dict(overrides), place=str(path), lines=_key_lines(tree, str(path)))


def make_spec(
    values: Mapping[str, Any], *, place: str = "command line", lines: Mapping[str, int] | None = None
) -> ModelSpec:
    """Check values and make a spec of them.

    Raises:
        UsageError: names every problem at once, with its line where there is one.
    """
    try:
        return ModelSpec.model_validate(dict(values))
    except ValidationError as invalid:
        found = invalid.errors()
    known = lines or {}
    found.sort(key=lambda e: _line(e, known) or 0)
    unknown = [_place(e, place, known) + f" {_path(e)!r}" for e in found if e["type"] == "extra_forbidden"]
    others = [e for e in found if e["type"] != "extra_forbidden"]
    problems = [f"unknown key(s): {', '.join(unknown)}"] if unknown else []
    problems += [_problem(e, place, known) for e in others]
    more = len(problems) - _MOST_PROBLEMS
    shown = problems[:_MOST_PROBLEMS] + ([f"… and {more} more"] if more > 0 else [])
    raise UsageError(
        "\n  ".join([f"{len(found)} problem(s) in the spec:", *shown]), remedy="mend these and run it again"
    )


def _path(error: Mapping[str, Any]) -> str:
    return ".".join(str(p) for p in error["loc"])


def _line(error: Mapping[str, Any], lines: Mapping[str, int]) -> int | None:
    return next((lines[p] for p in _prefixes(_path(error)) if p in lines), None)


def _place(error: Mapping[str, Any], place: str, lines: Mapping[str, int]) -> str:
    line = _line(error, lines)
    return f"{place}:{line}" if line else place


def _problem(error: Mapping[str, Any], place: str, lines: Mapping[str, int]) -> str:
    where, path = _place(error, place, lines), _path(error)
    if error["type"] == "missing":
        return f"{where}: {path!r} is missing"
    return f"{where}: {path!r}: {error['msg'].removeprefix('Value error, ')} (got {error['input']!r})"


def _prefixes(path: str) -> list[str]:
    parts = path.split(".")
    return [".".join(parts[:n]) for n in range(len(parts), 0, -1)]


def _key_lines(node: yaml.Node | None, place: str, prefix: str = "") -> dict[str, int]:
    """The line (from 1) of every key of a YAML tree, by its dotted path."""
    lines: dict[str, int] = {}
    for key, value in node.value if node is not None and isinstance(node.value, list) else []:
        path = f"{prefix}{key.value}"
        if path in lines:
            raise UsageError(
                f"{place}:{key.start_mark.line + 1}: {path!r} stands twice, first in line {lines[path]}",
                remedy="keep one of them",
            )
        lines[path] = key.start_mark.line + 1
        if value.id == "mapping":
            lines |= _key_lines(value, place, f"{path}.")
    return lines
