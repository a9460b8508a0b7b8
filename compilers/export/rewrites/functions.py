"""Rewrites of torch functions: an equivalent form of one call, wherever a model makes it.

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

from plansmith.compilers.export.rewrites.base import TRACER
from plansmith.records.model import Exporter

if TYPE_CHECKING:
    import torch

_PADDING = ("aten::pad", "aten::constant_pad_nd")


@dataclass(frozen=True)
class FunctionRewrite:
    """Rewrite of a function call.

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

    def find_originals(self) -> list[Any]:
        """Return the original functions."""
        import torch

        return [attrgetter(name)(torch) for name in self.functions]


@contextmanager
def in_their_place(rewrites: Sequence[FunctionRewrite], used: list[str]) -> Iterator[None]:
    """Apply function rewrites for the block, and add the names of those that were called to a list.

    A call that names its arguments otherwise than a form does stays as it is.
    """
    from torch.overrides import TorchFunctionMode

    table = {function: (entry, signature(entry.form)) for entry in rewrites for function in entry.find_originals()}

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
    """Whether arguments match a signature."""
    try:
        parameters.bind(*args, **kwargs)
    except TypeError:
        return False
    return True


def windows(tensor: Any, dimension: int, size: int, step: int) -> Any:
    """`Tensor.unfold` by indexing: [..., length, ...] becomes [..., windows, ..., size]."""
    import torch

    place = dimension % tensor.dim()
    starts = torch.arange(0, tensor.size(place) - size + 1, step, device=tensor.device)
    indices = starts[:, None] + torch.arange(size, device=tensor.device)[None, :]
    selection = tensor.index_select(place, indices.reshape(-1))
    return torch.unflatten(selection, place, (-1, size)).movedim(place + 1, -1)


def permuted(tensor: Any, *places: Any, dims: Any = None) -> Any:
    """`Tensor.permute` with non-negative dims."""
    order = dims or (places[0] if len(places) == 1 and not isinstance(places[0], int) else places)
    if all(place >= 0 for place in order):
        return NotImplemented
    return tensor.permute([place % tensor.dim() for place in order])


def pieces(tensor: Any, split_size: Any, dim: int = 0) -> Any:
    """`Tensor.split` into pieces of a size that the tracer can follow.

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
    """`torch.diff` by slicing."""
    import torch

    parts = [part for part in (prepend, tensor, append) if part is not None]
    whole = torch.cat(parts, dim) if len(parts) > 1 else tensor
    if n != 1 or whole.dtype is torch.bool:
        return NotImplemented
    return whole.narrow(dim, 1, whole.size(dim) - 1) - whole.narrow(dim, 0, whole.size(dim) - 1)


def counted(tensor: Any, dim: Any = None, *, axis: Any = None, dtype: Any = None) -> Any:
    """`torch.cumsum` of Booleans, as integers."""
    import torch

    if tensor.dtype is not torch.bool:
        return NotImplemented
    return tensor.to(torch.int64 if dtype is None else dtype).cumsum(axis if dim is None else dim)


def stacked(data: Any, *, dtype: Any = None, device: Any = None, **_: Any) -> Any:
    """`torch.tensor` of nested lists of numbers, some of which are sizes that a trace follows as tensors."""
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
        kind = max((part.dtype for part in parts), key=lambda tensor: tensor.is_floating_point)
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


def pooled_by_products(tensor: Any, output_size: Any) -> Any:
    """`adaptive_avg_pool2d` as two matrix products, [..., height, width] to [..., rows, columns]."""
    sizes = (output_size, output_size) if isinstance(output_size, int) else tuple(output_size)
    if any(not isinstance(size, int) for size in sizes) or sizes == (1, 1):
        return NotImplemented
    rows, columns = (_shares(tensor, place, size) for place, size in zip((-2, -1), sizes, strict=True))
    return rows @ tensor @ columns.transpose(0, 1)


def _shares(tensor: Any, place: int, size: int) -> Any:
    """Pooling weights of positions in cells, [cells, positions].

    Cell i of k takes floor(i n/k) to ceil((i + 1) n/k).
    """
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
    patches: Any = torch.nn.functional.conv2d(planes, copying, None, stride, padding, dilation)
    return patches.flatten(2).unflatten(0, (-1, tensor.shape[1])).flatten(1, 2)


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
    # One reshape, whose first size is what is left: from several of them the exporter makes constants of the batch.
    grid = tensor.reshape(-1, kernel[0] * kernel[1], places[0] + 1, places[1] + 1)
    laid: Any = torch.nn.functional.conv_transpose2d(grid, copying, None, steps, edges, left, 1, gaps)
    return laid.squeeze(1).unflatten(0, (-1, channels))


def nearest_by_indices(input: Any, size: Any = None, *_: Any, mode: str = "nearest", **options: Any) -> Any:  # noqa: A002
    """`interpolate` to a size, in mode nearest: PyTorch takes element floor(i * (in / out)), in single precision."""
    import torch

    if mode != "nearest" or size is None or options.get("antialias") or options.get("scale_factor") is not None:
        return NotImplemented
    sizes = list(size) if isinstance(size, list | tuple) else [size] * (input.dim() - 2)
    output = input
    for place, target in enumerate(sizes, start=2):
        have = _number(input.shape[place], input.device)
        share = have.to(torch.float32) / _number(target, input.device).to(torch.float32)
        places = torch.floor(torch.arange(target, device=input.device).to(torch.float32) * share)
        output = output.index_select(place, torch.minimum(places.to(torch.int64), have - 1))
    return output


def largest_of_windows(input: Any, *places: Any, return_indices: bool = False, **options: Any) -> Any:  # noqa: A002
    """`max_pool2d` of unbatched maps as a batch of one; padded ones get a bound that changes no result."""
    import torch

    is_padded = _made_by(input) in _PADDING
    if return_indices or not (is_padded or input.dim() == 3):
        return NotImplemented
    values = input.clamp(min=torch.finfo(input.dtype).min) if is_padded else input
    if input.dim() == 3:
        return torch.max_pool2d(values.unsqueeze(0), *places, **options).squeeze(0)
    return torch.max_pool2d(values, *places, **options)


def _made_by(tensor: Any) -> str:
    """The operator that produces a tensor in the trace; empty where nothing is traced."""
    import torch

    tracer: Any = torch._C  # noqa: SLF001 - torch.jit says nothing of single values
    if tracer._get_tracing_state() is None:  # noqa: SLF001
        return ""
    return str(tracer._get_value_trace(tensor).node().kind())  # noqa: SLF001


def _number(value: Any, device: Any) -> Any:
    import torch

    return value.to(device) if isinstance(value, torch.Tensor) else torch.full((), int(value), device=device)


def _pair(value: Any) -> tuple[Any, Any]:
    return (value, value) if isinstance(value, int) else (value[0], value[1])


def _copying_kernel(tensor: Any, kernel: tuple[int, int]) -> Any:
    """A copying kernel.

    One filter per position, which selects only that position: [height * width, 1, height, width].
    """
    import torch

    rows, columns = kernel
    return torch.eye(rows * columns, dtype=tensor.dtype, device=tensor.device).reshape(-1, 1, rows, columns)


IMAGE_REWRITES = (
    FunctionRewrite(
        name="largest of windows",
        reason="ONNX Runtime makes padding with zeros and the largest of a window one operator, which pads with less"
        " than anything: zeros are lost wherever a window holds negative numbers alone. The tracer writes pooling of"
        " maps without channels with dilations of a wrong size",
        link="https://github.com/microsoft/onnxruntime/pull/18136",
        exporters=frozenset({"torchscript"}),
        functions=("nn.functional.max_pool2d",),
        form=largest_of_windows,
    ),
    FunctionRewrite(
        name="unfolding by convolution",
        reason="the tracer writes im2col as gathers of a size that it has to know, and fails where it does not",
        link="https://github.com/pytorch/pytorch/issues/67042",
        exporters=frozenset({"torchscript"}),
        functions=("nn.functional.unfold",),
        form=unfolded_by_convolution,
    ),
    FunctionRewrite(
        name="folding by convolution",
        reason="col2im is written for a batch and a size that the tracer has to know, and fails where it does not",
        link="https://github.com/pytorch/pytorch/issues/30638",
        exporters=frozenset({"torchscript"}),
        functions=("nn.functional.fold",),
        form=folded_by_convolution,
    ),
    FunctionRewrite(
        name="nearest elements by indices",
        reason="Resize divides by out / in where PyTorch multiplies by in / out, and one of the two rounds below a"
        " whole number: another element is taken",
        link="https://github.com/onnx/onnx/issues/5266",
        exporters=frozenset({"torchscript"}),
        functions=("nn.functional.interpolate",),
        form=nearest_by_indices,
    ),
    FunctionRewrite(
        name="adaptive pooling by products",
        reason="the tracer writes adaptive pooling only to sizes that divide a size that it knows",
        link="https://github.com/pytorch/pytorch/issues/42653",
        exporters=frozenset({"torchscript"}),
        functions=("nn.functional.adaptive_avg_pool2d",),
        form=pooled_by_products,
    ),
)


def reduced_apart(input: Any, dim: int, index: Any, src: Any, reduce: str, *, include_self: bool = True) -> Any:  # noqa: A002
    """`scatter_reduce` without the initial values: sums and counts, or bounds that include every value."""
    import torch

    if include_self or not input.is_floating_point() or reduce not in {"sum", "mean", "amax", "amin"}:
        return NotImplemented
    count = torch.zeros_like(input).scatter_add(dim, index, torch.ones_like(src))
    if reduce in {"sum", "mean"}:
        result = torch.zeros_like(input).scatter_add(dim, index, src)
        result = result / count.clamp(min=1) if reduce == "mean" else result
    else:
        limits = torch.finfo(input.dtype)
        bound = torch.full_like(input, limits.min if reduce == "amax" else limits.max)
        result = bound.scatter_reduce(dim, index, src, reduce)
    return torch.where(count > 0, result, input)


SCATTER_REWRITES = (
    FunctionRewrite(
        name="scattering by sums and counts",
        reason="the tracer has no translation of scatter_reduce without what stood there, nor of its means",
        link="https://github.com/pytorch/pytorch/blob/main/torch/onnx/_internal/torchscript_exporter/symbolic_opset16.py",
        exporters=TRACER,
        functions=("scatter_reduce", "Tensor.scatter_reduce"),
        form=reduced_apart,
    ),
)
