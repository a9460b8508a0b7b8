"""Rewrites of functions of torch: another form of one call, wherever a model makes it.

They act through torch's own override (`torch.overrides.TorchFunctionMode`), which sees every call while a module is
traced, so that no class of any model is touched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from plansmith.types import Exporter


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


def windows(tensor: Any, dimension: int, size: int, step: int) -> Any:
    """`Tensor.unfold` by indices: [..., length, ...] becomes [..., windows, ..., size]."""
    import torch

    place = dimension % tensor.dim()
    starts = torch.arange(0, tensor.size(place) - size + 1, step, device=tensor.device)
    indices = starts[:, None] + torch.arange(size, device=tensor.device)[None, :]
    taken = tensor.index_select(place, indices.reshape(-1))
    return torch.unflatten(taken, place, (-1, size)).movedim(place + 1, -1)


def pooled_by_products(tensor: Any, output_size: Any) -> Any:
    """`adaptive_avg_pool2d` as two matrix products, [..., height, width] to [..., rows, columns]."""
    sizes = (output_size, output_size) if isinstance(output_size, int) else tuple(output_size)
    if any(not isinstance(size, int) for size in sizes) or sizes == (1, 1):
        return NotImplemented
    rows, columns = (_shares(tensor, place, size) for place, size in zip((-2, -1), sizes, strict=True))
    return rows @ tensor @ columns.transpose(0, 1)


def _shares(tensor: Any, place: int, size: int) -> Any:
    """What a cell takes of a position, [cells, positions]: cell i of k those from floor(i n/k) to ceil((i + 1) n/k)."""
    import torch

    length = tensor.shape[place]
    cells = torch.arange(size, device=tensor.device)[:, None]
    positions = torch.arange(length, device=tensor.device)[None, :]
    begin = torch.div(cells * length, size, rounding_mode="floor")
    end = torch.div((cells + 1) * length + size - 1, size, rounding_mode="floor")
    within = ((positions >= begin) & (positions < end)).to(tensor.dtype)
    return within / within.sum(dim=1, keepdim=True)


def unfolded_by_convolution(tensor: Any, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1) -> Any:
    """`torch.nn.functional.unfold` as a convolution that copies: [N, C, H, W] to [N, C * kernel, places]."""
    import torch

    if tensor.dim() != 4:
        return NotImplemented
    copying = _copying_kernel(tensor, _pair(kernel_size))
    planes = tensor.flatten(0, 1).unsqueeze(1)
    taken: Any = torch.nn.functional.conv2d(planes, copying, None, stride, padding, dilation)
    return taken.flatten(2).unflatten(0, (-1, tensor.shape[1])).flatten(1, 2)


def folded_by_convolution(
    tensor: Any, output_size: Any, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1
) -> Any:
    """`torch.nn.functional.fold` as a transposed convolution: [N, C * kernel, places] to [N, C, H, W]."""
    import torch

    if tensor.dim() != 3:
        return NotImplemented
    kernel, steps, edges, gaps = map(_pair, (kernel_size, stride, padding, dilation))
    copying = _copying_kernel(tensor, kernel)
    reach = [gap * (size - 1) for gap, size in zip(gaps, kernel, strict=True)]
    places = [(n + 2 * e - r - 1) // s for n, e, r, s in zip(_pair(output_size), edges, reach, steps, strict=True)]
    left = [
        n - (p * s - 2 * e + r + 1)
        for n, p, s, e, r in zip(_pair(output_size), places, steps, edges, reach, strict=True)
    ]
    channels = tensor.shape[1] // (kernel[0] * kernel[1])
    grid = tensor.unflatten(1, (channels, -1)).flatten(0, 1).unflatten(2, (places[0] + 1, places[1] + 1))
    laid: Any = torch.nn.functional.conv_transpose2d(grid, copying, None, steps, edges, left, 1, gaps)
    return laid.squeeze(1).unflatten(0, (-1, channels))


def differences(tensor: Any, n: int = 1, dim: int = -1, prepend: Any = None, append: Any = None) -> Any:
    """`torch.diff` by slices."""
    import torch

    parts = [part for part in (prepend, tensor, append) if part is not None]
    whole = torch.cat(parts, dim) if len(parts) > 1 else tensor
    if n != 1 or whole.dtype is torch.bool:
        return NotImplemented
    return whole.narrow(dim, 1, whole.size(dim) - 1) - whole.narrow(dim, 0, whole.size(dim) - 1)


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


def _pair(value: Any) -> tuple[Any, Any]:
    return (value, value) if isinstance(value, int) else (value[0], value[1])


def _copying_kernel(tensor: Any, kernel: tuple[int, int]) -> Any:
    """A kernel for every place in it, which takes that place alone: [height * width, 1, height, width]."""
    import torch

    rows, columns = kernel
    return torch.eye(rows * columns, dtype=tensor.dtype, device=tensor.device).reshape(-1, 1, rows, columns)


def _tensors() -> tuple[Any, ...]:
    import torch

    return (torch.tensor, torch.as_tensor)


def _diff() -> tuple[Any, ...]:
    import torch

    return (torch.diff, torch.Tensor.diff)


def _unfold_of_tensors() -> tuple[Any, ...]:
    import torch

    return (torch.Tensor.unfold,)


def _adaptive_pooling() -> tuple[Any, ...]:
    import torch

    return (torch.nn.functional.adaptive_avg_pool2d,)


def _unfold() -> tuple[Any, ...]:
    import torch

    return (torch.nn.functional.unfold,)


def _fold() -> tuple[Any, ...]:
    import torch

    return (torch.nn.functional.fold,)


REWRITES = (
    FunctionRewrite(
        name="unfolding by convolution",
        reason="the tracer writes im2col as gathers of a size that it has to know, and fails where it does not",
        link="https://github.com/pytorch/pytorch/issues/67042",
        exporters=frozenset({"torchscript"}),
        functions=_unfold,
        form=unfolded_by_convolution,
    ),
    FunctionRewrite(
        name="folding by convolution",
        reason="col2im is written for a batch and a size that the tracer has to know, and fails where it does not",
        link="https://github.com/pytorch/pytorch/issues/30638",
        exporters=frozenset({"torchscript"}),
        functions=_fold,
        form=folded_by_convolution,
    ),
    FunctionRewrite(
        name="sizes stacked",
        reason="a tensor made of a list of sizes is a constant to the tracer, whatever it follows those sizes as",
        link="https://github.com/pytorch/pytorch/issues/42480",
        exporters=frozenset({"torchscript"}),
        functions=_tensors,
        form=stacked,
    ),
    FunctionRewrite(
        name="differences by slices",
        reason="the tracer has no translation of torch.diff, with which masks tell packed sequences apart",
        link="https://github.com/pytorch/pytorch/issues/107966",
        exporters=frozenset({"torchscript"}),
        functions=_diff,
        form=differences,
    ),
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
