"""Shape ranges: as users write them, and as the axes of a graph.

A person writes one range per input, `min:opt:max` with sizes joined by x: `input_ids=1x8:8x64:32x256`.
A graph has named axes that inputs share, so that one range for `input_ids` also settles
`attention_mask`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import BeforeValidator, PlainSerializer, WithJsonSchema

from plansmith.errors import UsageError
from plansmith.records.model import AxisRange, InputRange, Tensor

_EXAMPLE = "1x8:8x64:32x256"

_SIZES = "[0-9]*[1-9][0-9]*(x[0-9]*[1-9][0-9]*)*"
_RANGE_SCHEMA = {
    "type": "string",
    "pattern": f"^{_SIZES}(:{_SIZES}:{_SIZES})?$",
    "description": "min:opt:max, each with its sizes joined by x, batch first; a single shape stands for all three.",
    "examples": ["1x8:8x64:32x256"],
}


def parse_shapes(text: str) -> dict[str, InputRange]:
    """Parse `name=min:opt:max,name=…`.

    Raises:
        UsageError: the text has another form, or a range that no engine can have.
    """
    ranges: dict[str, InputRange] = {}
    for part in filter(None, (p.strip() for p in text.split(","))):
        name, _, value = part.partition("=")
        if not name or not value:
            raise UsageError(
                f"--shapes: {part!r} is not name=min:opt:max",
                remedy=f'write --shapes "INPUT={_EXAMPLE}"; plansmith init SOURCE names the inputs of the model',
            )
        if name in ranges:
            raise UsageError(f"--shapes: {name} is given twice", remedy="give each input once")
        ranges[name] = parse_range(name, value)
    return ranges


def parse_range(name: str, text: str) -> InputRange:
    """Parse the `min:opt:max` of one input; a single shape is used for all three.

    Raises:
        UsageError: as for `parse_shapes`.
    """
    try:
        shapes = [tuple(_size(size) for size in shape.split("x")) for shape in text.split(":")]
    except ValueError:
        shapes = []
    if len(shapes) not in {1, 3}:
        like = f"{name}={_EXAMPLE}" if name else _EXAMPLE
        raise UsageError(f"shapes of {name}: {text!r} is not min:opt:max", remedy=f"write it like {like}")
    smallest, usual, largest = shapes if len(shapes) == 3 else shapes * 3
    if not len(smallest) == len(usual) == len(largest):
        raise UsageError(
            f"shapes of {name}: min, opt and max of {text!r} have different ranks",
            remedy="give all three the same rank",
        )
    if any(size < 1 for shape in shapes for size in shape):
        raise UsageError(f"shapes of {name}: {text!r} has a size below 1", remedy="give sizes of 1 or more")
    if not all(a <= b <= c for a, b, c in zip(smallest, usual, largest, strict=True)):
        raise UsageError(
            f"shapes of {name}: {text!r} is not min <= opt <= max in every place", remedy="order the three shapes"
        )
    return InputRange(min=smallest, opt=usual, max=largest)


def resolve_axes(
    inputs: Sequence[Tensor],
    derived: Mapping[str, AxisRange],
    limits: Mapping[str, int],
    ranges: Mapping[str, InputRange],
) -> dict[str, AxisRange]:
    """Resolve the range of every named axis: given for the inputs, otherwise suggested by the model.

    Args:
        inputs: the graph's inputs, with named dims where they vary.
        derived: a range for every named axis.
        limits: the largest size that the model can take, for the axes that have a limit.
        ranges: the ranges that a person wrote, by input.

    Raises:
        UsageError: an input that the model does not have, another rank, a fixed size that differs, or
            two inputs that contradict each other.
    """
    axes = dict(derived)
    settled: dict[str, tuple[str, AxisRange]] = {}
    by_name = {tensor.name: tensor for tensor in inputs}
    for name, input_range in ranges.items():
        if name not in by_name:
            raise UsageError(
                f"shapes: the model has no input {name!r}", remedy=f"its inputs are {', '.join(sorted(by_name))}"
            )
        dims = by_name[name].dims
        if len(dims) != len(input_range.min):
            form = " x ".join(str(d) for d in dims)
            raise UsageError(
                f"shapes of {name}: {input_range} has rank {len(input_range.min)},"
                f" the model's input has rank {len(dims)}",
                remedy=f"give sizes for {form}",
            )
        for place, dim in enumerate(dims):
            axis_range = AxisRange(min=input_range.min[place], opt=input_range.opt[place], max=input_range.max[place])
            if isinstance(dim, int):
                if (axis_range.min, axis_range.max) != (dim, dim):
                    raise UsageError(
                        f"shapes of {name}: axis {place} is fixed at {dim} in this model", remedy=f"write {dim} there"
                    )
            elif dim in settled and settled[dim][1] != axis_range:
                raise UsageError(
                    f"shapes: {name} and {settled[dim][0]} give different ranges for their common axis {dim!r}",
                    remedy=f"give the range of {dim!r} once",
                )
            else:
                settled[dim] = (name, axis_range)
                limit = limits.get(dim)
                if limit is not None and axis_range.max > limit:
                    raise UsageError(
                        f"shapes of {name}: {axis_range.max} is longer than the"
                        f" model's own limit of {limit} for {dim!r}",
                        remedy=f"give at most {limit}",
                    )
    return axes | {axis: axis_range for axis, (_, axis_range) in settled.items()}


def _size(text: str) -> int:
    """Parse an integer in plain digits: Python's int() also accepts spaces and underscores."""
    if not text.removeprefix("-").isdecimal():
        raise ValueError(text)
    return int(text)


def _read_range(value: Any) -> InputRange:
    """Parse a range as typed: YAML reads an unquoted 1:8:32 as a number."""
    if isinstance(value, InputRange):
        return value
    if not isinstance(value, str):
        raise ValueError("write it as text in quotes, like '1x8:8x64:32x256'")  # noqa: TRY004 - what pydantic collects
    try:
        return parse_range("", value)
    except UsageError as error:
        raise ValueError(error.message.partition(": ")[2]) from error


WrittenRange = Annotated[
    InputRange,
    BeforeValidator(_read_range),
    PlainSerializer(str, return_type=str),
    WithJsonSchema(_RANGE_SCHEMA),
]
"""A range as it stands in a spec."""
