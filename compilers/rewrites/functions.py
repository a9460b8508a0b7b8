"""Rewrites of functions of torch: another form of one call, wherever a model makes it.

They act through torch's own override (`torch.overrides.TorchFunctionMode`), which sees every call while a module is
traced, so that no class of any model is touched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from plansmith.types import Exporter

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
        functions: the functions of torch that it stands for.
        form: takes the arguments of the call and gives its result, or NotImplemented where the call is fine as it is.
    """

    name: str
    reason: str
    link: str
    exporters: frozenset[Exporter]
    functions: Callable[[], Sequence[Any]]
    form: Callable[..., Any]


@contextmanager
def in_their_place(rewrites: Sequence[FunctionRewrite], used: list[str]) -> Iterator[None]:
    """Put rewrites of functions in force; the names of those that something called are added to a list."""
    from torch.overrides import TorchFunctionMode

    table = {function: rewrite for rewrite in rewrites for function in rewrite.functions()}

    class Rewritten(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
        ) -> Any:
            rewrite = table.get(func)
            if rewrite is not None:
                result = rewrite.form(*args, **(kwargs or {}))
                if result is not NotImplemented:
                    if rewrite.name not in used:
                        used.append(rewrite.name)
                    return result
            return func(*args, **(kwargs or {}))

    with Rewritten():
        yield


def windows(tensor: torch.Tensor, dimension: int, size: int, step: int) -> torch.Tensor:
    """`Tensor.unfold` by indices: [..., length, ...] becomes [..., windows, ..., size]."""
    import torch

    place = dimension % tensor.dim()
    starts = torch.arange(0, tensor.size(place) - size + 1, step, device=tensor.device)
    indices = starts[:, None] + torch.arange(size, device=tensor.device)[None, :]
    taken = tensor.index_select(place, indices.reshape(-1))
    return taken.unflatten(place, (-1, size)).movedim(place + 1, -1)


def pooled_by_products(tensor: torch.Tensor, output_size: Any) -> torch.Tensor:
    """`adaptive_avg_pool2d` as two matrix products, [..., height, width] to [..., rows, columns]."""
    sizes = (output_size, output_size) if isinstance(output_size, int) else tuple(output_size)
    if any(not isinstance(size, int) for size in sizes) or sizes == (1, 1):
        return NotImplemented
    rows, columns = (_shares(tensor, place, size) for place, size in zip((-2, -1), sizes, strict=True))
    return rows @ tensor @ columns.transpose(0, 1)


def _shares(tensor: torch.Tensor, place: int, size: int) -> torch.Tensor:
    """What a cell takes of a position, [cells, positions]: cell i of k those from floor(i n/k) to ceil((i + 1) n/k)."""
    import torch

    length = tensor.shape[place]
    cells = torch.arange(size, device=tensor.device)[:, None]
    positions = torch.arange(length, device=tensor.device)[None, :]
    begin = torch.div(cells * length, size, rounding_mode="floor")
    end = torch.div((cells + 1) * length + size - 1, size, rounding_mode="floor")
    within = ((positions >= begin) & (positions < end)).to(tensor.dtype)
    return within / within.sum(dim=1, keepdim=True)


def _unfold_of_tensors() -> tuple[Any, ...]:
    import torch

    return (torch.Tensor.unfold,)


def _adaptive_pooling() -> tuple[Any, ...]:
    import torch

    return (torch.nn.functional.adaptive_avg_pool2d,)


REWRITES = (
    FunctionRewrite(
        name="windows by indices",
        reason="the tracer writes Tensor.unfold only where it knows the size of the dim, and has mostly lost it",
        link="https://github.com/pytorch/pytorch/blob/main/torch/onnx/_internal/torchscript_exporter/symbolic_opset12.py",
        exporters=frozenset({"torchscript"}),
        functions=_unfold_of_tensors,
        form=windows,
    ),
    FunctionRewrite(
        name="adaptive pooling by products",
        reason="the tracer writes adaptive pooling only to sizes that divide a size that it knows",
        link="https://github.com/pytorch/pytorch/issues/42653",
        exporters=frozenset({"torchscript"}),
        functions=_adaptive_pooling,
        form=pooled_by_products,
    ),
)
