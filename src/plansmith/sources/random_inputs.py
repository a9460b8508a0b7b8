"""Random inputs for an undescribed model, from the names, dtypes and ranks of its inputs."""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from plansmith.config.spec import InputSpec
from plansmith.data import synthetic
from plansmith.data.sample import Takes
from plansmith.errors import UsageError
from plansmith.records.model import ANONYMOUS, BATCH, BATCH_RANGE, AxisRange, Dim, Tensor
from plansmith.sources.collate import encode_arrays
from plansmith.sources.loaded_model import SEQUENCE, InputPlan

if TYPE_CHECKING:
    import numpy as np
    import onnx
    from numpy.typing import NDArray


_SEQUENCE_LIKE = re.compile(r"seq|len|tok|time|text|word", re.IGNORECASE)
_MASK_LIKE = re.compile(r"mask", re.IGNORECASE)
_POSITION_LIKE = re.compile(r"position", re.IGNORECASE)
_TEXT_LIKE = re.compile(r"ids?$|mask|token|segment", re.IGNORECASE)

_SEQUENCE_RANGE = AxisRange(min=1, opt=128, max=512)
_SIDE_RANGE = AxisRange(min=64, opt=224, max=448)
_OTHER_RANGE = AxisRange(min=1, opt=16, max=64)
_LARGEST_INTEGER = 7
_SMALLEST_SIDE = 16

_BATCH_LIKE = re.compile(r"\?|n|bs|b|(.*_)?batch(_?size|_?dim)?(_\d+)?", re.IGNORECASE)
_SAME_VALUES = {"Cast", "Identity", "Reshape", "Unsqueeze", "Squeeze", "Flatten", "Clip"}
_SAME_TABLE = {"Cast", "Identity", "DequantizeLinear"}


def plan_drawn(
    tensors: Sequence[Tensor], specs: Mapping[str, InputSpec], bounds: Mapping[str, int] | None = None
) -> InputPlan:
    """Plan inputs for tensors without further description.

    Args:
        tensors: names, dtypes and dims, with a name for every dim that moves.
        specs: what the spec says about their values, by input.
        bounds: for inputs that are indices: one more than the largest value that they may have.
    """
    kinds = {t.name: _kind(t, specs.get(t.name, InputSpec()), bounds or {}) for t in tensors}
    sides = {d for t in tensors if kinds[t.name] == "drawn images" for d in _sides(t) if isinstance(d, str)}
    axes = {d: default_range(d, is_side=d in sides) for t in tensors for d in t.dims if isinstance(d, str)}
    masks = [t for t in tensors if kinds[t.name] == "padding masks" and len(t.dims) == 2]
    mask = next((t.name for t in masks if t.name == "attention_mask" or specs.get(t.name, InputSpec()).mask), None)

    def make(sizes: Mapping[str, int]) -> dict[str, NDArray[np.generic]]:
        return {
            t.name: _draw(t, kinds[t.name], specs.get(t.name, InputSpec()), (bounds or {}).get(t.name), sizes)
            for t in tensors
        }

    mask = mask or (masks[0].name if len(masks) == 1 else None)
    return InputPlan(
        tensors=tuple(tensors),
        axes=axes,
        limits={},
        mask_input=mask,
        make=make,
        data=" and ".join(sorted(set(kinds.values()), key=lambda kind: (not kind.startswith("random"), kind))),
        takes=Takes((), tuple(t.name for t in tensors), optional=() if mask is None else (mask,)),
        encode=lambda samples, sizes, _: encode_arrays(tensors, mask, samples, sizes),
        guessed=True,
    )


def default_range(axis: str, *, is_side: bool = False) -> AxisRange:
    """Return the default range of an axis by its name; `is_side`: the height or width of images."""
    if axis == BATCH:
        return BATCH_RANGE
    if is_side:
        return _SIDE_RANGE
    return _SEQUENCE_RANGE if _SEQUENCE_LIKE.search(axis) else _OTHER_RANGE


def is_text(tensor: Tensor) -> bool:
    """Whether an input looks like token ids or their companions."""
    return len(tensor.dims) == 2 and tensor.dtype in {"int32", "int64"} and bool(_TEXT_LIKE.search(tensor.name))


def _kind(tensor: Tensor, spec: InputSpec, bounds: Mapping[str, int]) -> str:
    """Describe the values that an input is filled with."""
    if spec.mask or (spec.low is None and _MASK_LIKE.search(tensor.name) and len(tensor.dims) > 1):
        return "padding masks"
    if spec.low is not None:
        return "random values"
    if tensor.name in bounds or is_text(tensor):
        return "positions" if _POSITION_LIKE.search(tensor.name) else "random ids"
    sides = _sides(tensor)
    if sides and all(isinstance(d, str) or d >= _SMALLEST_SIDE for d in sides):
        return "drawn images"
    return "random values"


def _sides(tensor: Tensor) -> tuple[Dim, ...]:
    """Return height and width if an input can be images."""
    if len(tensor.dims) != 4 or tensor.dtype not in {"float32", "float64", "uint8"}:
        return ()
    if tensor.dims[1] in synthetic.CHANNELS:
        return tensor.dims[2:]
    return tensor.dims[1:3] if tensor.dims[3] in synthetic.CHANNELS else ()


def _draw(
    tensor: Tensor, kind: str, spec: InputSpec, bound: int | None, sizes: Mapping[str, int]
) -> NDArray[np.generic]:
    """Return the values of one input, deterministic for given sizes."""
    import numpy as np

    shape = tuple(sizes[d] if isinstance(d, str) else d for d in tensor.dims)
    seed = [zlib.crc32(tensor.name.encode()), *shape]
    if kind == "padding masks":
        return synthetic.draw_mask(shape).astype(tensor.dtype)
    if kind == "drawn images":
        is_first = tensor.dims[1] in synthetic.CHANNELS
        return synthetic.draw_images(shape, channels_first=is_first, raw=tensor.dtype == "uint8").astype(tensor.dtype)
    if kind == "positions":
        places = np.arange(shape[-1]) % (bound or shape[-1])
        return np.broadcast_to(places, shape).astype(tensor.dtype)
    rng = np.random.default_rng(seed)
    is_float = np.dtype(tensor.dtype).kind == "f"
    if spec.low is None or spec.high is None:
        largest = 1 if tensor.dtype == "bool" else (bound or _LARGEST_INTEGER + 1) - 1
        values = rng.standard_normal(shape) if is_float else rng.integers(0, largest, shape, endpoint=True)
    elif is_float:
        values = rng.uniform(spec.low, spec.high, shape)
    else:
        values = rng.integers(int(spec.low), int(spec.high), shape, endpoint=True)
    return values.astype(tensor.dtype)


def name_inputs(tensors: Sequence[Tensor], specs: Mapping[str, InputSpec]) -> tuple[Tensor, ...]:
    """Name every dynamic dim: from the spec, otherwise from the graph, otherwise by its likely meaning.

    Args:
        tensors: the inputs as the graph has them, with "?" for a dim without a name, and no dims at all where
            the graph does not know the rank.
        specs: what the spec says about some of them.

    Raises:
        UsageError: the spec contradicts the graph, or the rank of an input is not known.
    """
    unknown = [name for name in specs if name not in {t.name for t in tensors}]
    if unknown:
        names = ", ".join(t.name for t in tensors)
        raise UsageError(f"inputs: the model has no input {', '.join(unknown)}", remedy=f"its inputs are {names}")
    renamed: dict[str, str] = {}
    named = []
    for tensor in tensors:
        dims = _given_dims(tensor, specs.get(tensor.name, InputSpec()))
        for old, new in zip(tensor.dims, dims, strict=False):
            if old != new and isinstance(old, str) and old != ANONYMOUS and renamed.setdefault(old, str(new)) != new:
                raise UsageError(
                    f"inputs: the graph's axis {old!r} gets two names, {renamed[old]!r} and {new!r}",
                    remedy="give it one",
                )
        named.append(tensor.model_copy(update={"dims": dims}))
    named = [_with_dims(t, {d: renamed.get(str(d), d) for d in t.dims}) for t in named]
    return tuple(_own_names(t) for t in _with_batch(named))


def index_bounds(model: onnx.ModelProto) -> dict[str, int]:
    """Return, for inputs that index a stored table (a Gather), the number of rows of the smallest table."""
    tables = {t.name: tuple(t.dims) for t in model.graph.initializer}
    origin = {value.name: value.name for value in model.graph.input if value.name not in tables}
    bounds: dict[str, int] = {}
    for node in model.graph.node:
        first = node.input[0] if node.input else ""
        if node.op_type == "Constant" and node.attribute and node.attribute[0].HasField("t"):
            tables[node.output[0]] = tuple(node.attribute[0].t.dims)
        if node.op_type in _SAME_TABLE and first in tables:
            tables[node.output[0]] = tables[first]
        if node.op_type in _SAME_VALUES and first in origin:
            origin[node.output[0]] = origin[first]
        if node.op_type == "Gather" and tables.get(first) and node.input[1] in origin:
            axis = next((a.i for a in node.attribute if a.name == "axis"), 0)
            name, rows = origin[node.input[1]], tables[first][axis]
            bounds[name] = min(rows, bounds.get(name, rows))
    return bounds


def _given_dims(tensor: Tensor, spec: InputSpec) -> tuple[Dim, ...]:
    if spec.dtype and spec.dtype != tensor.dtype:
        raise UsageError(
            f"inputs: {tensor.name} has dtype {tensor.dtype} in the graph, not {spec.dtype}",
            remedy=f"leave its dtype out, or write {tensor.dtype}",
        )
    if not tensor.dims and not spec.dims:
        raise UsageError(
            f"the graph does not say how many dims its input {tensor.name!r} has",
            remedy=f"say it in a spec:\n  inputs:\n    {tensor.name}: {{dims: [batch, 3, 224, 224]}}",
        )
    if not tensor.dims or not spec.dims:
        return spec.dims or tensor.dims
    form = ", ".join(map(str, tensor.dims))
    if len(spec.dims) != len(tensor.dims):
        raise UsageError(
            f"inputs: {tensor.name} has {len(tensor.dims)} dims in the graph, not {len(spec.dims)}",
            remedy=f"give dims for [{form}]",
        )
    for old, new in zip(tensor.dims, spec.dims, strict=True):
        if isinstance(old, int) and old != new:
            raise UsageError(
                f"inputs: {tensor.name} is fixed at {old} where {new} is given: its dims are [{form}]",
                remedy=f"write {old} there",
            )
        if isinstance(old, str) and isinstance(new, int):
            raise UsageError(
                f"inputs: a dim of {tensor.name} moves in the graph where {new} is given: its dims are [{form}]",
                remedy=f"give it a name there, and its size with `shapes`: {new} for min, opt and max",
            )
    return spec.dims


def _with_dims(tensor: Tensor, names: Mapping[Dim, Dim]) -> Tensor:
    return tensor.model_copy(update={"dims": tuple(names.get(d, d) for d in tensor.dims)})


def _with_batch(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Name the first dim `batch` if all dynamic inputs share it and it has no other kind of name."""
    moving = [t for t in tensors if any(isinstance(d, str) for d in t.dims)]
    first = {t.dims[0] for t in moving}
    elsewhere = {d for t in moving for d in t.dims[1:] if d != ANONYMOUS}
    is_batch = all(isinstance(d, str) and _BATCH_LIKE.fullmatch(d) for d in first)
    if not is_batch or len(first - {ANONYMOUS}) > 1 or elsewhere & {BATCH, *first}:
        return list(tensors)
    return [t.model_copy(update={"dims": (BATCH, *t.dims[1:])}) if isinstance(t.dims[0], str) else t for t in tensors]


def _own_names(tensor: Tensor) -> Tensor:
    text = is_text(tensor)
    dims = [
        (SEQUENCE if text and place == 1 else f"{tensor.name}_dim{place}") if dim == ANONYMOUS else dim
        for place, dim in enumerate(tensor.dims)
    ]
    return tensor.model_copy(update={"dims": tuple(dims)})
