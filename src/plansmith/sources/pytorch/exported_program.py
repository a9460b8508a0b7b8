"""What torch.export saw of a module: its inputs, the sizes that they may have, and the form of its answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plansmith.config.spec import InputSpec
from plansmith.errors import SourceError, first_line
from plansmith.records.model import ANONYMOUS, BATCH, AxisRange, Dim, Tensor
from plansmith.sources.inputs.graph import name_inputs
from plansmith.sources.inputs.random import is_text, plan_drawn
from plansmith.sources.loaded_model import SEQUENCE, InputPlan

if TYPE_CHECKING:
    import torch
    from torch.export import ExportedProgram

_LARGEST_UNGUARDED = 2
"""The least size that torch.export writes down of each axis that moves, and does not insist on."""


@dataclass(frozen=True)
class Described:
    """An exported program from outside.

    Args:
        plan: what it is fed with; values are drawn, and sizes are its own.
        arguments: makes the positional and the named ones that it takes of flat tensors.
        answer: what it returns, without values.
    """

    plan: InputPlan
    arguments: Callable[..., Any]
    answer: Any


@dataclass(frozen=True)
class _Size:
    """One dim of an input: what it was at the export, and between which sizes it may be; `symbol`: empty if fixed."""

    symbol: str
    exported: int
    least: int
    most: int | None


def load_program(path: Path) -> ExportedProgram:
    """Load a file that may be loaded.

    Raises:
        SourceError: it cannot be read.
    """
    import torch

    try:
        return torch.export.load(path)
    except Exception as error:  # of a file that another release wrote, PyTorch raises anything
        raise SourceError(
            f"PyTorch cannot load {path.name}: {first_line(error)}",
            remedy="log it again from the CPU, with a release of PyTorch that is not newer than the one here",
        ) from error


def describe(program: ExportedProgram, signed: Sequence[Tensor], given: Mapping[str, InputSpec]) -> Described:
    """What a program takes and returns.

    Args:
        program: as it was loaded.
        signed: its inputs in MLflow's signature; what may vary there and was exported fixed is an axis, too, that the
            program will be found to refuse.
        given: what the spec says of them.

    Raises:
        SourceError: it takes something else than tensors of NumPy's dtypes.
        UsageError: the spec contradicts it.
    """
    from torch.utils import _pytree as trees

    taken = dict(_inputs_of(program))
    sizes = {name: [_size(program, dim) for dim in value.shape] for name, value in taken.items()}
    exported = [
        Tensor(name=name, dtype=_dtype(name, value), dims=tuple(one.symbol or one.exported for one in sizes[name]))
        for name, value in taken.items()
    ]
    tensors = name_inputs(_named(_with_signed(exported, signed)), given)
    plan = plan_drawn(tensors, given, _bounds(program, exported))
    known = {axis: one for tensor in tensors for axis, one in zip(tensor.dims, sizes[tensor.name], strict=True)}
    axes = {axis: _range(axis, usual, known[axis]) for axis, usual in plan.axes.items()}
    limits = {axis: most for axis in axes if known[axis].symbol and (most := known[axis].most) is not None}
    form = program.call_spec.in_spec
    return Described(
        plan=replace(plan, axes=axes, limits=limits, guessed=False, random_values=True),
        arguments=lambda values: trees.tree_unflatten(values, form),
        answer=trees.tree_unflatten(list(_outputs_of(program)), program.call_spec.out_spec),
    )


def _inputs_of(program: ExportedProgram) -> Iterator[tuple[str, torch.Tensor]]:
    import torch

    values = {node.name: node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder"}
    for number, name in enumerate(program.graph_signature.user_inputs):
        value = values.get(name) if isinstance(name, str) else None
        if not isinstance(value, torch.Tensor):
            raise SourceError(
                f"the exported program takes something else than a tensor as its input {number}",
                remedy="export a module whose forward takes tensors alone",
            )
        yield str(name), value


def _outputs_of(program: ExportedProgram) -> Iterator[Any]:
    values = {node.name: node.meta.get("val") for node in program.graph.nodes}
    for name in program.graph_signature.user_outputs:
        yield values.get(name) if isinstance(name, str) else None


def _dtype(name: str, value: torch.Tensor) -> str:
    import torch

    try:
        return str(torch.empty(0, dtype=value.dtype).numpy().dtype.name)
    except TypeError as error:
        raise SourceError(
            f"the exported program takes {value.dtype} as {name}, which NumPy does not have",
            remedy="export a module that takes float32 and casts it itself",
        ) from error


def _size(program: ExportedProgram, dim: Any) -> _Size:
    """A dim; one that is computed from others (twice the batch) moves, under a name of its own."""
    if isinstance(dim, int):
        return _Size("", dim, dim, dim)
    expression = dim.node.expr
    exported = int(dim.node.hint)
    if not expression.is_Symbol:
        return _Size(ANONYMOUS, exported, 0, None)
    found = program.range_constraints.get(expression)
    if found is None:
        return _Size(str(expression), exported, 0, None)
    most = int(found.upper) if found.upper.is_Integer else None
    return _Size(str(expression), exported, int(found.lower), most)


def _with_signed(exported: Sequence[Tensor], signed: Sequence[Tensor]) -> list[Tensor]:
    """The inputs with those dims unnamed that were exported fixed, although MLflow's signature lets them vary."""
    if [len(one.dims) for one in exported] != [len(one.dims) for one in signed]:
        return list(exported)
    return [
        one.model_copy(
            update={
                "dims": tuple(
                    ANONYMOUS if said == ANONYMOUS and isinstance(dim, int) else dim
                    for dim, said in zip(one.dims, other.dims, strict=True)
                )
            }
        )
        for one, other in zip(exported, signed, strict=True)
    ]


def _named(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The inputs with names for torch.export's symbols: batch and sequence where they are, else by a first place."""
    names: dict[str, str] = {}
    inside = {dim for tensor in tensors for dim in tensor.dims[1:]}
    for tensor in tensors:
        for place, dim in enumerate(tensor.dims):
            if isinstance(dim, str) and dim != ANONYMOUS and dim not in names:
                names[dim] = _name(tensor, place, is_first=place == 0 and dim not in inside, taken=names.values())
    return [one.model_copy(update={"dims": tuple(names.get(str(dim), dim) for dim in one.dims)}) for one in tensors]


def _name(tensor: Tensor, place: int, *, is_first: bool, taken: Any) -> str:
    if is_first and BATCH not in taken:
        return BATCH
    if place == 1 and is_text(tensor) and SEQUENCE not in taken:
        return SEQUENCE
    return f"{tensor.name}_dim{place}"


def _bounds(program: ExportedProgram, tensors: Sequence[Tensor]) -> dict[str, int]:
    """For inputs of integers: one more than the largest value of the example that the program was exported with."""
    from torch.utils import _pytree as trees

    examples = trees.tree_leaves(program.example_inputs or ())
    if len(examples) != len(tensors):
        return {}
    return {
        one.name: int(example.max()) + 1
        for one, example in zip(tensors, examples, strict=True)
        if one.dtype in {"int32", "int64"} and example.numel() and int(example.max()) > 0
    }


def _range(axis: Dim, usual: AxisRange, size: _Size) -> AxisRange:
    """The sizes of an axis: those that the program allows, around the one that it was exported with."""
    if not size.symbol:
        return AxisRange(min=1, opt=size.exported, max=2 * size.exported)
    low = size.least if size.least > _LARGEST_UNGUARDED else usual.min
    high = max(usual.max, size.exported, low)
    high = high if size.most is None else min(high, size.most)
    wanted = usual.opt if axis == BATCH else size.exported
    return AxisRange(min=min(low, high), opt=min(max(wanted, low), high), max=high)
