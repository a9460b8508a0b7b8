"""What an ONNX graph's inputs are called, where they vary, and which values it takes for indices."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from plansmith.config.spec import InputSpec
from plansmith.errors import UsageError
from plansmith.records.model import ANONYMOUS, BATCH, Dim, Tensor
from plansmith.sources.inputs.random import is_text
from plansmith.sources.loaded_model import SEQUENCE

if TYPE_CHECKING:
    import onnx

_BATCH_LIKE = re.compile(r"\?|n|bs|b|(.*_)?batch(_?size|_?dim)?(_\d+)?", re.IGNORECASE)
_SAME_VALUES = {"Cast", "Identity", "Reshape", "Unsqueeze", "Squeeze", "Flatten", "Clip"}
_SAME_TABLE = {"Cast", "Identity", "DequantizeLinear"}


def name_inputs(tensors: Sequence[Tensor], given: Mapping[str, InputSpec]) -> tuple[Tensor, ...]:
    """Name every dim that moves: as the spec says, else as the graph says, else by what it most likely is.

    Args:
        tensors: the inputs as the graph has them, with "?" for a dim without a name, and no dims at all where
            the graph does not know the rank.
        given: what the spec says about some of them.

    Raises:
        UsageError: the spec contradicts the graph, or the rank of an input is not known.
    """
    unknown = [name for name in given if name not in {t.name for t in tensors}]
    if unknown:
        names = ", ".join(t.name for t in tensors)
        raise UsageError(f"inputs: the model has no input {', '.join(unknown)}", remedy=f"its inputs are {names}")
    renamed: dict[str, str] = {}
    named = []
    for tensor in tensors:
        dims = _given_dims(tensor, given.get(tensor.name, InputSpec()))
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
    """For the inputs that pick rows of a stored table (a Gather): how many rows the smallest of these has."""
    tables = {t.name: tuple(t.dims) for t in model.graph.initializer}
    origin = {value.name: value.name for value in model.graph.input if value.name not in tables}
    found: dict[str, int] = {}
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
            found[name] = min(rows, found.get(name, rows))
    return found


def _given_dims(tensor: Tensor, given: InputSpec) -> tuple[Dim, ...]:
    if given.dtype and given.dtype != tensor.dtype:
        raise UsageError(
            f"inputs: {tensor.name} has dtype {tensor.dtype} in the graph, not {given.dtype}",
            remedy=f"leave its dtype out, or write {tensor.dtype}",
        )
    if not tensor.dims and not given.dims:
        raise UsageError(
            f"the graph does not say how many dims its input {tensor.name!r} has",
            remedy=f"say it in a spec:\n  inputs:\n    {tensor.name}: {{dims: [batch, 3, 224, 224]}}",
        )
    if not tensor.dims or not given.dims:
        return given.dims or tensor.dims
    form = ", ".join(map(str, tensor.dims))
    if len(given.dims) != len(tensor.dims):
        raise UsageError(
            f"inputs: {tensor.name} has {len(tensor.dims)} dims in the graph, not {len(given.dims)}",
            remedy=f"give dims for [{form}]",
        )
    for old, new in zip(tensor.dims, given.dims, strict=True):
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
    return given.dims


def _with_dims(tensor: Tensor, names: Mapping[Dim, Dim]) -> Tensor:
    return tensor.model_copy(update={"dims": tuple(names.get(d, d) for d in tensor.dims)})


def _with_batch(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Call the first dim `batch` where all inputs that vary have it in common, without a name of another kind."""
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
