"""Rewrites of Python numbers computed from sizes, so that the tracer can follow them.

While a module is traced, sizes are tensors of no dims, and what `int`, `len`, `min`, `max` and `math` make of those are
constants of the graph. In the files of a module's classes these names stand for others while it is traced, which make
tensors of tensors and numbers of everything else.

Python computes in double precision, and a trace in single: 90 * 0.7 is 62 to the one and 63 to the other. What a graph
rounds to a whole number otherwise than Python stays the constant that it is to the tracer.
"""

from __future__ import annotations

import ast
import inspect
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

NAME = "numbers of sizes followed"
REASON = "what Python's int, len, min, max and math make of a size is a constant to the tracer"
LINK = "https://github.com/pytorch/pytorch/issues/36454"

_OWN = ("torch.", "plansmith.")
"""Packages whose files are left alone: torch knows what it does with sizes."""

_INT64 = 4
"""What the trace calls torch.int64."""

_CLOSED = {f"aten::{name}" for name in ("add", "sub", "rsub", "mul", "neg", "floor_divide", "remainder")}
"""Operators that make whole numbers of whole numbers."""


def to_integer(value: Any) -> Any:
    """`int` of a size, or of a value computed from one."""
    import torch

    return value.to(torch.int64)


def length(value: Any) -> Any:
    """`len` of a tensor."""
    return value.shape[0]


def smallest(*values: Any) -> Any:
    """`min` of sizes and numbers."""
    import torch

    return _pairwise(torch.minimum, values)


def largest(*values: Any) -> Any:
    """`max` of sizes and numbers."""
    import torch

    return _pairwise(torch.maximum, values)


def root(value: Any) -> Any:
    """`math.sqrt` of a size."""
    import torch

    return torch.sqrt(value.to(torch.float32))


def ceiling(value: Any) -> Any:
    """`math.ceil` of a value computed from a size."""
    import torch

    return torch.ceil(value.to(torch.float32)).to(torch.int64)


def floor(value: Any) -> Any:
    """`math.floor` of a value computed from a size."""
    import torch

    return torch.floor(value.to(torch.float32)).to(torch.int64)


def _pairwise(join: Callable[[Any, Any], Any], values: tuple[Any, ...]) -> Any:
    import torch

    result, *others = (v if isinstance(v, torch.Tensor) else torch.as_tensor(v) for v in values)
    for operand in others:
        kind = torch.promote_types(result.dtype, operand.dtype)
        result = join(result.to(kind), operand.to(kind))
    return result


def _are_sizes(values: tuple[Any, ...]) -> bool:
    """Whether all arguments are numbers, and at least one is a tensor of rank 0."""
    import torch

    tensors = [v for v in values if isinstance(v, torch.Tensor)]
    numbers = all(isinstance(v, int | float | torch.Tensor) for v in values)
    return bool(tensors) and numbers and all(t.dim() == 0 and t.dtype is not torch.bool for t in tensors)


def _round_alike(values: tuple[Any, ...]) -> bool:
    """Whether a size, or a value computed from one, rounds to the same integer in single as in double precision.

    Below 2^24 those are whole numbers, one division of two of them, a root, and products with powers of two: as far
    from the next whole number as their operands allow, or equal to it.
    """
    import torch

    if len(values) != 1 or not _are_sizes(values):
        return False
    if not values[0].dtype.is_floating_point:
        return True
    tracer: Any = torch._C  # noqa: SLF001 - torch.jit says nothing of single values
    if tracer._get_tracing_state() is None:  # noqa: SLF001
        return False
    trace = tracer._get_value_trace(values[0])  # noqa: SLF001
    operands = list(trace.node().inputs())
    suits = _SECOND_OPERANDS.get(trace.node().kind())
    return _is_whole(trace) or (suits is not None and _is_whole(operands[0]) and all(map(suits, operands[1:])))


def _is_whole(trace: Any) -> bool:
    """Whether a value of the trace is an integer, whatever its type."""
    kind, operands = trace.node().kind(), list(trace.node().inputs())
    if kind == "prim::Constant":
        return _constant(trace).is_integer()
    if kind == "aten::to":
        return operands[1].toIValue() == _INT64 or _is_whole(operands[0])
    return kind == "prim::NumToTensor" or (kind in _CLOSED and all(map(_is_whole, operands)))


def _constant(trace: Any) -> float:
    """The value of a constant number in the trace; NaN for every other value."""
    import torch

    value = trace.toIValue() if trace.node().kind() == "prim::Constant" else None
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        value = value.item()
    return float(value) if isinstance(value, int | float) else math.nan


_SECOND_OPERANDS: Mapping[str, Callable[[Any], bool]] = {
    "aten::sqrt": _is_whole,
    "aten::div": _is_whole,
    "aten::pow": lambda made: _constant(made) == 0.5,
    "aten::mul": lambda made: math.frexp(_constant(made))[0] == 0.5,
}
"""Operators whose results round alike, and with which operands after the first."""


def _is_tensor(values: tuple[Any, ...]) -> bool:
    import torch

    return len(values) == 1 and isinstance(values[0], torch.Tensor) and values[0].dim() > 0


@contextmanager
def followed(module: torch.nn.Module, used: list[str]) -> Iterator[None]:
    """Apply the number rewrites to a module's files; the rewrite's name is added to a list if any was used."""

    def substitute(
        usual: Callable[..., Any], form: Callable[..., Any], fits: Callable[..., bool]
    ) -> Callable[..., Any]:
        def call(*values: Any, **options: Any) -> Any:
            if options or not fits(values):
                return usual(*values, **options)
            if NAME not in used:
                used.append(NAME)
            return form(*values)

        return call

    class _IntegerMeta(type):
        def __call__(cls, *values: Any, **options: Any) -> Any:
            return make_whole(*values, **options)

        def __instancecheck__(cls, instance: Any) -> bool:
            return isinstance(instance, int)

        def __subclasscheck__(cls, subclass: type) -> bool:
            return issubclass(subclass, int)

    make_whole = substitute(int, to_integer, _round_alike)
    maths = ModuleType("math")
    vars(maths).update(vars(math))
    for name, form, fits in (
        ("sqrt", root, _are_sizes),
        ("ceil", ceiling, _round_alike),
        ("floor", floor, _round_alike),
    ):
        setattr(maths, name, substitute(getattr(math, name), form, fits))
    names: dict[str, Any] = {
        "int": _IntegerMeta("int", (), {}),
        "len": substitute(len, length, _is_tensor),
        "min": substitute(min, smallest, lambda values: len(values) > 1 and _are_sizes(values)),
        "max": substitute(max, largest, lambda values: len(values) > 1 and _are_sizes(values)),
    }
    with _named(_files(module), names, maths):
        yield


def _files(module: torch.nn.Module) -> list[ModuleType]:
    """The Python modules that define the classes of a module's parts."""
    names = {base.__module__ for part in module.modules() for base in type(part).__mro__ if base is not object}
    return [sys.modules[name] for name in sorted(names) if name in sys.modules and not name.startswith(_OWN)]


@cache
def _only_calls_int(file: ModuleType) -> bool:
    """Whether a file uses `int` only for calls, isinstance checks and annotations, and never passes it on.

    Torch takes no other class for a kind of tensors, and a class that is given to `map` is called elsewhere. What a
    file says outside of functions was done when it was imported.
    """
    try:
        tree = ast.parse(inspect.getsource(file))
    except (OSError, TypeError, SyntaxError):  # there is no file
        return True
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    suited = {name for node in ast.walk(tree) for used in _suited(node) for name in _named_int(used)}
    return all(_named_int(function) <= suited for function in functions)


def _suited(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes directly below a node where the other class can replace `int`."""
    if isinstance(node, ast.Call):
        if isinstance(node.func, ast.Name):
            yield node.func
            yield from node.args[1:2] if node.func.id == "isinstance" else ()
    elif isinstance(node, ast.arg | ast.AnnAssign):
        yield from [node.annotation] if node.annotation else ()
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        yield from [node.returns] if node.returns else ()


def _named_int(node: ast.AST) -> set[ast.Name]:
    return {name for name in ast.walk(node) if isinstance(name, ast.Name) and name.id == "int"}


@contextmanager
def _named(files: list[ModuleType], names: dict[str, Any], maths: ModuleType) -> Iterator[None]:
    """Override builtin names in some files, except where a file defines the name itself."""
    changed: list[tuple[dict[str, Any], str]] = []
    try:
        for file in files:
            namespace = vars(file)
            existing = namespace.keys() | (set() if _only_calls_int(file) else {"int"})
            for name in names.keys() - existing:
                namespace[name] = names[name]
                changed.append((namespace, name))
            if namespace.get("math") is math:
                namespace["math"] = maths
                changed.append((namespace, "math"))
        yield
    finally:
        for namespace, name in changed:
            if name == "math":
                namespace[name] = math
            else:
                del namespace[name]
