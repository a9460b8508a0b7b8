"""Rewrites of functions of torch: another form of one call, wherever a model makes it.

They act through torch's own override (`torch.overrides.TorchFunctionMode`), which sees every call while a module is
traced, so that no class of any model is touched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import signature
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from plansmith.records.model import Exporter

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class FunctionRewrite:
    """Another form of a call.

    Args:
        name: what is recorded of it.
        reason: what goes wrong without it.
        link: where that is known.
        exporters: those that need it.
        functions: what it stands for, by names below torch.
        form: takes the arguments of the call and gives its result, or NotImplemented where the call is fine as it is.
        applies: whether a module is one whose calls it is about.
    """

    name: str
    reason: str
    link: str
    exporters: frozenset[Exporter]
    functions: tuple[str, ...]
    form: Callable[..., Any]
    applies: Callable[[torch.nn.Module], bool] = lambda _: True

    def found(self) -> list[Any]:
        """The functions themselves."""
        import torch

        return [attrgetter(name)(torch) for name in self.functions]


@contextmanager
def in_their_place(rewrites: Sequence[FunctionRewrite], used: list[str]) -> Iterator[None]:
    """Put rewrites of functions in force; the names of those that something called are added to a list.

    A call that names its arguments otherwise than a form does stays as it is.
    """
    from torch.overrides import TorchFunctionMode

    table = {function: (one, signature(one.form)) for one in rewrites for function in one.found()}

    class Rewritten(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
        ) -> Any:
            rewrite, parameters = table.get(func, (None, None))
            if rewrite is not None and _suits(parameters, args, kwargs or {}):
                result = rewrite.form(*args, **(kwargs or {}))
                if result is not NotImplemented:
                    if rewrite.name not in used:
                        used.append(rewrite.name)
                    return result
            return func(*args, **(kwargs or {}))

    with Rewritten():
        yield


def _suits(parameters: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Whether arguments are those of a signature."""
    try:
        parameters.bind(*args, **kwargs)
    except TypeError:
        return False
    return True


def windows(tensor: Any, dimension: int, size: int, step: int) -> Any:
    """`Tensor.unfold` by indices: [..., length, ...] becomes [..., windows, ..., size]."""
    import torch

    place = dimension % tensor.dim()
    starts = torch.arange(0, tensor.size(place) - size + 1, step, device=tensor.device)
    indices = starts[:, None] + torch.arange(size, device=tensor.device)[None, :]
    taken = tensor.index_select(place, indices.reshape(-1))
    return torch.unflatten(taken, place, (-1, size)).movedim(place + 1, -1)


def permuted(tensor: Any, *places: Any, dims: Any = None) -> Any:
    """`Tensor.permute` to places counted from the front."""
    given = dims or (places[0] if len(places) == 1 and not isinstance(places[0], int) else places)
    if all(place >= 0 for place in given):
        return NotImplemented
    return tensor.permute([place % tensor.dim() for place in given])


def pieces(tensor: Any, split_size: Any, dim: int = 0) -> Any:
    """`Tensor.split` in pieces of a size that the tracer follows.

    How many there are is a constant of the trace: a model that gives another number of pieces at another size answers
    otherwise than its graph at the probes of odd sizes, which refuse it.
    """
    import torch

    if not isinstance(split_size, torch.Tensor):
        return NotImplemented
    count = -(-int(tensor.shape[dim]) // int(split_size))
    before = (slice(None),) * (dim % tensor.dim())
    return tuple(tensor[(*before, slice(i * split_size, (i + 1) * split_size))] for i in range(count))


def differences(tensor: Any, n: int = 1, dim: int = -1, prepend: Any = None, append: Any = None) -> Any:
    """`torch.diff` by slices."""
    import torch

    parts = [part for part in (prepend, tensor, append) if part is not None]
    whole = torch.cat(parts, dim) if len(parts) > 1 else tensor
    if n != 1 or whole.dtype is torch.bool:
        return NotImplemented
    return whole.narrow(dim, 1, whole.size(dim) - 1) - whole.narrow(dim, 0, whole.size(dim) - 1)


def counted(tensor: Any, dim: Any = None, *, axis: Any = None, dtype: Any = None) -> Any:
    """`torch.cumsum` of flags, as whole numbers."""
    import torch

    if tensor.dtype is not torch.bool:
        return NotImplemented
    return tensor.to(torch.int64 if dtype is None else dtype).cumsum(axis if dim is None else dim)


def stacked(data: Any, *, dtype: Any = None, device: Any = None, **_: Any) -> Any:
    """`torch.tensor` of numbers in lists, of which some are sizes that a trace follows as tensors."""
    if not _holds_tensors(data):
        return NotImplemented
    together = _stack(data, device)
    return together if dtype is None else together.to(dtype)


def _holds_tensors(data: Any) -> bool:
    import torch

    return isinstance(data, list | tuple) and any(isinstance(d, torch.Tensor) or _holds_tensors(d) for d in data)


def _stack(data: Any, device: Any) -> Any:
    import torch

    if isinstance(data, list | tuple):
        parts = [_stack(part, device) for part in data]
        kind = max((part.dtype for part in parts), key=lambda one: one.is_floating_point)
        return torch.stack([part.to(kind) for part in parts])
    return data.to(device) if isinstance(data, torch.Tensor) else torch.as_tensor(data, device=device)


REWRITES = (
    FunctionRewrite(
        name="sizes stacked",
        reason="a tensor made of a list of sizes is a constant to the tracer, whatever it follows those sizes as",
        link="https://github.com/pytorch/pytorch/issues/42480",
        exporters=frozenset({"torchscript"}),
        functions=("tensor", "as_tensor"),
        form=stacked,
    ),
    FunctionRewrite(
        name="flags counted as numbers",
        reason="the tracer gives CumSum the flags themselves, which it does not take",
        link="https://github.com/pytorch/pytorch/issues/74831",
        exporters=frozenset({"torchscript"}),
        functions=("cumsum", "Tensor.cumsum"),
        form=counted,
    ),
    FunctionRewrite(
        name="pieces by slices",
        reason="the tracer writes a split into pieces of a size that it follows with the sizes that it saw",
        link="https://github.com/pytorch/pytorch/blob/main/torch/onnx/_internal/torchscript_exporter/symbolic_opset13.py",
        exporters=frozenset({"torchscript"}),
        functions=("split", "Tensor.split"),
        form=pieces,
    ),
    FunctionRewrite(
        name="differences by slices",
        reason="the tracer has no translation of torch.diff, with which masks tell packed sequences apart",
        link="https://github.com/pytorch/pytorch/issues/107966",
        exporters=frozenset({"torchscript"}),
        functions=("diff", "Tensor.diff"),
        form=differences,
    ),
    FunctionRewrite(
        name="places counted from the front",
        reason="the tracer gives Transpose the places of permute as they stand, and it takes none below zero",
        link="https://github.com/pytorch/pytorch/blob/main/torch/onnx/_internal/torchscript_exporter/symbolic_opset9.py",
        exporters=frozenset({"torchscript"}),
        functions=("permute", "Tensor.permute"),
        form=permuted,
    ),
    FunctionRewrite(
        name="windows by indices",
        reason="the tracer writes Tensor.unfold only where it knows the size of the dim, and has mostly lost it",
        link="https://github.com/pytorch/pytorch/blob/main/torch/onnx/_internal/torchscript_exporter/symbolic_opset12.py",
        exporters=frozenset({"torchscript"}),
        functions=("Tensor.unfold",),
        form=windows,
    ),
)
